"""How a running job is stopped: told, interrupted, its executor terminated or killed; and who pays for it."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from django_pgjobs import register_many
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.models import Job
from django_pgjobs.worker.executor.stacks import INTERRUPTED as STACK_TITLE
from tests.e2e import hard, jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history, read

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"threads": 8, "conf": {"POLL_SECONDS": 60, "CALLBACK_SECONDS": 0.5}}

SOFT = [
    (hard.goes_on, "sleeps"),
    (hard.goes_on, "queue"),
    (hard.goes_on, "spins"),
    (hard.goes_on, "swallows exceptions"),
    (hard.goes_on, "database"),
    (hard.goes_on, "transaction"),
    (hard.agoes_on, "sleeps"),
    (hard.agoes_on, "database"),
]


def deaths(worker: WorkerProcess) -> int:
    """Return how many executors were killed or died so far: one that is recycled after an interrupt does neither."""
    return len(re.findall("executor killed|executor ended", worker.log))


def started(stage: Stage, key: str) -> float:
    wait_until(lambda: stage.count("start", key), 15, f"{key} runs")
    return stage.traces("start", key)[0].at


def begin(worker: WorkerProcess, definition: JobDefinition[..., Any], how: str, key: str, **options: Any) -> Job:
    job = definition.using(**options).register(how, key)
    started(worker.stage, key)
    return job


@pytest.mark.parametrize(("definition", "how"), SOFT, ids=lambda value: value if isinstance(value, str) else "")
def test_an_interrupt_is_seen_within_a_second_and_stops_nobody_else(
    shared_worker: WorkerProcess, definition: JobDefinition[..., Any], how: str
) -> None:
    """C25 X10: from the commit of the cancel to the exception in the job; its ``finally`` runs, its process lives."""
    stage, before = shared_worker.stage, shared_worker.executors()
    neighbour = begin_neighbour(shared_worker)
    job = begin(shared_worker, definition, how, "hard")
    asked_at = time.monotonic()
    job.cancel(mode="interrupt", by="anna", reason="enough")
    (after,) = ended(job)
    (stopped,) = stage.traces("stopped", "hard")
    assert stopped.at - asked_at < patience(1)
    assert stage.count("finally", "hard") == 1
    assert (after.outcome, after.attempt, after.cancel_mode) == ("cancelled", 1, "interrupt")
    assert (after.cancel_by, after.cancel_reason, history(after)) == ("anna", "enough", [(1, "cancelled")])
    assert set(before) <= set(shared_worker.executors()), "it lives on with its neighbour until its successor is ready"
    stage.open("beside")
    assert [(each.outcome, each.attempt, history(each)) for each in ended(neighbour)] == [("succeeded", 1, [])]
    assert stage.count("start", "beside") == 1


@pytest.mark.parametrize("definition", [hard.goes_on, hard.agoes_on])
def test_a_running_job_is_stopped_at_its_own_deadline(
    shared_worker: WorkerProcess, definition: JobDefinition[..., Any]
) -> None:
    """D26, D27: whatever its timeout; it is abandoned at once, for no attempt could start in time."""
    stage = shared_worker.stage
    deadline = timezone.now() + timedelta(seconds=patience(3))
    job = begin(shared_worker, definition, "sleeps", "hard", deadline=deadline, timeout=None, max_attempts=5)
    (after,) = ended(job)
    assert stage.count("stopped", "hard") == 1
    assert (after.outcome, after.attempt, history(after)) == ("abandoned", 1, [(1, "timeout")])
    assert after.finished_at is not None
    assert after.finished_at > deadline - timedelta(seconds=1)
    assert "deadline passed while the attempt ran" in after.error


def begin_neighbour(worker: WorkerProcess) -> Job:
    job = jobs.waits.register("beside")
    started(worker.stage, "beside")
    return job


@pytest.mark.parametrize("how", ["sleeps", "database"])
def test_a_deadline_interrupts_before_it_kills(shared_worker: WorkerProcess, raw: RawDatabase, how: str) -> None:
    """C26 A30 §4: a second after the deadline; recorded as timeout, retried whatever its retry rule names."""
    stage, before = shared_worker.stage, deaths(shared_worker)
    neighbour = begin_neighbour(shared_worker)
    job = begin(shared_worker, hard.goes_on, how, "late", timeout=0.5)
    (after,) = ended(job)
    assert (after.outcome, history(after)) == ("abandoned", [(1, "timeout"), (2, "timeout")])
    assert after.error.startswith("DeadlinePassed: The attempt ran longer than 0.5 s (its timeout).")
    assert "in goes_on" in after.attempts.get(number=2).traceback
    assert {trace.words[2] for trace in stage.traces("stopped", "late")} == {"DeadlinePassed"}
    took = stage.traces("stopped", "late")[0].at - stage.traces("start", "late")[0].at
    assert 1.4 < took < patience(2), took
    assert deaths(shared_worker) == before
    stage.open("beside")
    assert [(each.outcome, each.attempt, history(each)) for each in ended(neighbour)] == [("succeeded", 1, [])]
    active = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND application_name LIKE %s AND query LIKE"
    assert raw.value(f"{active} '%%pg_sleep(60)%%'", [f"%{shared_worker.name}%"]) == 0


@pytest.mark.parametrize(("cancelled", "word"), [(True, "CancelRequested"), (False, "DeadlinePassed")])
def test_a_job_that_catches_the_interrupt_and_returns_has_succeeded(
    shared_worker: WorkerProcess, cancelled: bool, word: str
) -> None:
    """C30 A54: what has finished first stands. Its context says why it was stopped."""
    job = hard.comes_through.using(timeout=600 if cancelled else 0.3).register("through")
    started(shared_worker.stage, "through")
    if cancelled:
        job.cancel(mode="interrupt")
    (after,) = ended(job)
    assert (after.outcome, after.result, history(after)) == ("succeeded", "came through", [])
    (trace,) = shared_worker.stage.traces("stopped", "through")
    assert trace.words[2:4] == (word, str(cancelled))
    assert cancelled or trace.words[4] == "0.0"


@pytest.mark.slow
def test_a_job_that_waits_for_a_program_is_stopped_by_sigterm(shared_worker: WorkerProcess) -> None:
    """Trap 6: three seconds after the deadline, to the whole group; the executor lives on, and its other jobs."""
    stage, before = shared_worker.stage, shared_worker.executors()
    neighbour = begin_neighbour(shared_worker)
    innocent = begin(shared_worker, hard.goes_on, "program", "innocent", max_attempts=1)
    job = begin(shared_worker, hard.goes_on, "program", "guilty", timeout=0.3, max_attempts=1)
    (after,) = ended(job)
    assert (after.outcome, history(after)) == ("abandoned", [(1, "timeout")])
    took = stage.traces("stopped", "guilty")[0].at - stage.traces("start", "guilty")[0].at
    assert 3.0 < took < patience(4), took
    shared_worker.wait_for_log(f"job does not stop, executor terminated cause=timeout .*job={job.pk} ")
    shared_worker.wait_for_log("job has stopped, executor continues")
    wait_until(lambda: stage.count("start", "innocent") == 2, 20, "the other one failed of it, and runs again")
    assert (history(read(innocent)), read(innocent).attempt) == ([(1, "released")], 1)
    assert shared_worker.executors() == before
    stage.open("beside")
    assert [(each.outcome, history(each)) for each in ended(neighbour)] == [("succeeded", [])]
    innocent.cancel(mode="kill")
    assert ended(innocent)[0].outcome == "cancelled"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("definition", "how"), [(hard.goes_on, "swallows everything"), (hard.agoes_on, "swallows")], ids=["thread", "task"]
)
def test_who_swallows_everything_is_killed_within_the_ladder(
    shared_worker: WorkerProcess, definition: JobDefinition[..., Any], how: str
) -> None:
    """A30, C26, §4: five seconds after the deadline; the neighbour is released uncharged and runs again.

    The history of one in a thread shows where it hung.
    """
    stage, before = shared_worker.stage, shared_worker.executors()
    neighbour = begin_neighbour(shared_worker)
    job = begin(shared_worker, definition, how, "deaf", timeout=0.3, max_attempts=1)
    (after,) = ended(job)
    assert (after.outcome, history(after)) == ("abandoned", [(1, "timeout")])
    assert 5.0 < (after.attempts.get().duration_seconds or 0) < patience(6)
    assert stage.count("swallowed") == 1
    if definition is hard.goes_on:
        trace = after.attempts.get().traceback
        assert trace.startswith(f"{STACK_TITLE}\n")
        assert "hard.py" in trace.splitlines()[1]
        assert "in goes_on" in trace.splitlines()[1]
    assert not set(before) & set(shared_worker.executors())
    wait_until(lambda: stage.count("start", "beside") == 2, 20, "the neighbour runs again")
    stage.open("beside")
    assert [(each.outcome, each.attempt, history(each)) for each in ended(neighbour)] == [
        ("succeeded", 1, [(1, "released")])
    ]


def test_a_job_that_has_moved_its_process_to_another_group_is_killed_there(shared_worker: WorkerProcess) -> None:
    """Its executor leads no group any more, and takes the supervisor's along no more than its own."""
    before = shared_worker.executors()
    job = begin(shared_worker, hard.goes_on, "moves away", "away")
    wait_until(lambda: shared_worker.stage.count("moved", shared_worker.pid), 5, "it has moved")
    job.cancel(mode="kill")
    wait_until(lambda: set(before) - set(shared_worker.executors()), 5, "its process is dead")
    assert ended(job)[0].outcome == "cancelled"
    assert ended(jobs.effect.register("after"))[0].outcome == "succeeded"


def test_an_attempt_that_was_killed_for_a_cancel_is_told_as_cancelled(shared_worker: WorkerProcess) -> None:
    """A54 §4: in the history, in the shell and on its page; nobody looks for an error of the job's own."""
    job = begin(shared_worker, hard.goes_on, "swallows everything", "deaf")
    job.cancel(mode="kill", by="anna", reason="wrong file")
    (after,) = ended(job)
    words = "The job was cancelled, and the process that ran it was killed."
    assert (after.outcome, after.error, history(after)) == ("cancelled", f"ExecutorDied: {words}", [(1, "cancelled")])
    shell = StringIO()
    call_command("pgjobs", "show", str(job.pk), stdout=shell)
    assert re.search(rf"^attempt 1 cancelled at .*\n.*{words}$", shell.getvalue(), re.M)
    client, reader = Client(), User.objects.create_superuser("reader")
    client.force_login(reader)
    page = client.get(f"/admin/pgjobs/job/{job.pk}/change/").content.decode()
    reader.delete()
    assert re.search(r"<td[^>]*>1</td>\s*<td[^>]*>Cancelled\s*</td>", page)


@pytest.mark.slow
def test_interrupt_stops_at_the_interrupt_and_kill_goes_on(shared_worker: WorkerProcess) -> None:
    """X10 §4: nobody's process is killed for a cancel that did not ask for it."""
    before = shared_worker.executors()
    job = begin(shared_worker, hard.goes_on, "swallows everything", "deaf")
    job.cancel(mode="interrupt")
    wait_until(lambda: shared_worker.stage.count("swallowed"), 5, "it was interrupted")
    # Another job lives and ends meanwhile, longer than a ladder lasts.
    assert ended(jobs.effect.register("slow", seconds=5.5))[0].outcome == "succeeded"
    assert (read(job).state, shared_worker.executors()) == ("running", before)
    assert shared_worker.stage.count("swallowed") == 1
    job.cancel(mode="ask")
    assert read(job).cancel_mode == "interrupt"
    asked_at = time.monotonic()
    job.cancel(mode="kill")
    wait_until(lambda: not set(before) & set(shared_worker.executors()), 5, "its process is dead")
    assert time.monotonic() - asked_at < patience(1)
    assert ended(job)[0].outcome == "cancelled"


def test_a_job_that_was_taken_away_is_stopped_and_changes_nothing(
    shared_worker: WorkerProcess, raw: RawDatabase
) -> None:
    """W23 C44: its flag is set, then it is interrupted; its end is dropped, said, and not written."""
    job = begin(shared_worker, hard.goes_on, "sleeps", "taken")
    seen = jobs.obedient.using(timeout=60).register("succeed")
    started(shared_worker.stage, str(seen.pk))
    take = "UPDATE pgjobs_job SET claim_id = gen_random_uuid(), error = 'another owner' WHERE id = ANY(%s)"
    raw.query(take, [[job.pk, seen.pk]])
    before = [raw.row(job.pk), raw.row(seen.pk)]
    wait_until(lambda: shared_worker.stage.count("stopped", "taken"), 10, "it was interrupted")
    assert shared_worker.stage.traces("stopped", "taken")[0].words[2] == "WorkerStopping"
    assert shared_worker.stage.traces("saw", seen.pk)[0].words[2:3] == ("True",)
    for each in (job, seen):
        shared_worker.wait_for_log(f"lease lost, nothing of the job was changed .*job={each.pk} ")
    assert [raw.row(job.pk), raw.row(seen.pk)] == before
    raw.query("UPDATE pgjobs_job SET claim_id = NULL, outcome = 'cancelled', finished_at = now()")


def test_a_released_job_is_interrupted_and_runs_again(shared_worker: WorkerProcess) -> None:
    """P34: as a wish of an operator; nobody else notices."""
    before = deaths(shared_worker)
    job = begin(shared_worker, hard.goes_on, "sleeps", "back")
    job.release(by="anna")
    wait_until(lambda: shared_worker.stage.count("start", "back") == 2, 20, "it runs again")
    assert shared_worker.stage.traces("stopped", "back")[0].words[2] == "WorkerStopping"
    assert (read(job).attempt, history(read(job)), deaths(shared_worker)) == (1, [(1, "released")], before)
    job.cancel(mode="interrupt")
    ended(job)


def test_a_callback_over_its_time_is_interrupted_and_its_job_ends(shared_worker: WorkerProcess) -> None:
    """§5 callbacks: time-limited; whatever becomes of one, the end is written, and no process dies for it."""
    before = deaths(shared_worker)
    (after,) = ended(hard.gives_up_slowly.register("slow"))
    assert (after.outcome, shared_worker.stage.count("callback")) == ("abandoned", 1)
    assert shared_worker.stage.count("callback_stopped", "slow") == 1
    assert "at once" in after.error
    assert deaths(shared_worker) == before
    shared_worker.wait_for_log("callback failed callback=on_abandon name=tests.e2e.hard.gives_up_slowly")


def test_jobs_around_their_interrupt_end_once_each(shared_worker: WorkerProcess) -> None:
    """C30: 60 jobs that finish within some ms of being interrupted: one outcome each, no result of another."""
    before = deaths(shared_worker)
    calls = (hard.ends_about.using(timeout=0.2).bind(n, seconds=1.17 + n / 500) for n in range(60))
    after = ended(*Job.objects.filter(pk__in=register_many(calls)).order_by("id"), timeout=90)
    for n, job in enumerate(after):
        if job.outcome == "succeeded":
            assert (job.result, history(job)) == (n, [])
        else:
            assert (job.outcome, history(job)) == ("abandoned", [(1, "timeout")])
    assert {job.outcome for job in after} == {"succeeded", "abandoned"}
    assert deaths(shared_worker) == before
