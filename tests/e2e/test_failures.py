"""How attempts fail and what follows: callbacks, the job's own wishes, and whatever a body can raise."""

from __future__ import annotations

import pytest

from django_pgjobs.conf import LADDER_SECONDS
from django_pgjobs.models import Job
from tests import jobs as cast
from tests.e2e import jobs
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history, read

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"conf": {"CALLBACK_SECONDS": 1.0, "POLL_SECONDS": 60}}


def test_the_last_failure_is_followed_by_one_call_of_on_abandon(shared_worker: WorkerProcess) -> None:
    """A3 A4 A5 P26 P27: after the second of two attempts, with the error; the whole chain of causes is kept."""
    doomed = jobs.doomed.register()
    (after,) = ended(doomed)
    assert after.outcome == "abandoned"
    assert history(doomed) == [(1, "failed"), (2, "failed")]
    assert shared_worker.stage.count("on_abandon", doomed.pk) == 1
    assert after.error == "ValueError: outer ← KeyError: 'inner'"
    kept = doomed.attempts.get(number=2)
    assert 'raise ValueError("outer") from error' in kept.traceback
    assert kept.duration_seconds is not None
    [trace] = shared_worker.stage.traces("ended_by", doomed.pk)
    assert trace.words[2:] == ("ValueError", "outer", "ValueError", "KeyError", "ValueError:_outer")


def test_an_error_in_on_abandon_is_logged_and_changes_nothing(shared_worker: WorkerProcess) -> None:
    """A7."""
    doomed = jobs.doomed.register("raise")
    (after,) = ended(doomed)
    assert (after.outcome, after.error) == ("abandoned", "ValueError: outer ← KeyError: 'inner'")
    assert shared_worker.stage.count("on_abandon", doomed.pk) == 1
    shared_worker.wait_for_log("callback failed callback=on_abandon name=tests.e2e.jobs.doomed")
    assert shared_worker.said("the callback fails too")


def test_an_on_abandon_that_sleeps_a_minute_is_stopped_at_its_limit(shared_worker: WorkerProcess) -> None:
    """A6: stopped after CALLBACK_SECONDS, once; the job is abandoned with its own error."""
    doomed = jobs.doomed.register("sleep")
    (after,) = ended(doomed)
    assert (after.outcome, after.error) == ("abandoned", "ValueError: outer ← KeyError: 'inner'")
    assert shared_worker.stage.count("on_abandon", doomed.pk) == 1
    shared_worker.wait_for_log(f"callback was stopped at its time limit .*job={doomed.pk} ")
    failed = doomed.attempts.get(number=2)
    assert after.finished_at is not None
    assert failed.ended_at is not None
    # A sleep in C hears no exception: after its limit of 1 s the callback goes down the whole ladder.
    assert 0.9 < (after.finished_at - failed.ended_at).total_seconds() < 1 + LADDER_SECONDS + patience(2)


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_an_on_abandon_that_kills_its_process_is_started_three_times_at_most(
    shared_worker: WorkerProcess, how: str
) -> None:
    """§5 callbacks: a crash repeats it, then the end is written with the job's own error."""
    doomed = jobs.doomed.register(how)
    (after,) = ended(doomed)
    assert after.outcome == "abandoned"
    assert after.error == "ValueError: outer ← KeyError: 'inner'"
    assert shared_worker.stage.count("on_abandon", doomed.pk) == 3
    shared_worker.wait_for_log(f"callback lost 3 processes or workers.*job={doomed.pk} ")


def test_an_on_cancel_that_kills_its_process_is_started_three_times_at_most(shared_worker: WorkerProcess) -> None:
    """§5 callbacks: a cancelled job ends too, and its callback is not repeated for ever."""
    watched = jobs.watched.register("k", "kill")
    wait_until(lambda: shared_worker.stage.count("start", "k"), 10, "it runs")
    read(watched).cancel(by="a test", reason="no need")
    shared_worker.stage.open("k")
    (after,) = ended(watched)
    assert after.outcome == "cancelled"
    assert shared_worker.stage.count("on_cancel", watched.pk) == 3


def test_a_job_says_itself_what_becomes_of_it(shared_worker: WorkerProcess) -> None:
    """§2: Cancel, Abandon: at once, whatever attempts are left."""
    cancelled, abandoned = ended(jobs.steers.register("cancel"), jobs.steers.register("abandon"))
    assert (cancelled.outcome, cancelled.cancel_reason, cancelled.attempt) == ("cancelled", "no need", 1)
    assert (abandoned.outcome, abandoned.attempt) == ("abandoned", 1)
    assert "no use" in abandoned.error


@pytest.mark.parametrize("how", ["exit", "interrupt", "generator"])
def test_what_derives_from_base_exception_is_a_failure_and_the_worker_lives(
    shared_worker: WorkerProcess, how: str
) -> None:
    """C28: SystemExit, KeyboardInterrupt, GeneratorExit."""
    left, neighbour = cast.leaves.register(how), jobs.effect.register("neighbour")
    assert [job.outcome for job in ended(left, neighbour)] == ["abandoned", "succeeded"]
    assert history(left) == [(1, "failed"), (2, "failed")]
    assert len(shared_worker.executors()) == 1


@pytest.mark.parametrize("how", ["exit", "interrupt", "cancelled"])
def test_the_same_on_the_event_loop(shared_worker: WorkerProcess, how: str) -> None:
    """C28 A3: neighbours on the loop live."""
    neighbour = jobs.awaits.register(f"n-{how}")
    wait_until(lambda: shared_worker.stage.count("start", f"n-{how}"), 10, "the neighbour runs")
    assert ended(jobs.aleaves.register(how))[0].outcome == "abandoned"
    shared_worker.stage.open(f"n-{how}")
    (after,) = ended(neighbour)
    assert (after.outcome, after.attempt) == ("succeeded", 1)


def test_a_sub_task_that_leaves_takes_neither_its_job_nor_its_neighbours_along(shared_worker: WorkerProcess) -> None:
    """C28: SystemExit in an asyncio sub-task comes out of the loop's run_forever."""
    neighbour = jobs.awaits.register("beside")
    wait_until(lambda: shared_worker.stage.count("start", "beside"), 10, "the neighbour runs")
    leaving = jobs.leaves_in_a_subtask.register()
    assert ended(leaving)[0].result == "still here"
    shared_worker.stage.open("beside")
    (after,) = ended(neighbour)
    assert (after.outcome, after.attempt) == ("succeeded", 1)


def test_a_stack_overflow_is_a_failure(shared_worker: WorkerProcess) -> None:
    """A3: RecursionError."""
    overflowing = cast.overflows.using(max_attempts=1).register()
    assert "RecursionError" in ended(overflowing)[0].error


def test_texts_that_postgresql_cannot_hold_are_kept_as_well_as_they_can(shared_worker: WorkerProcess) -> None:
    """C27 P27: NUL and lone surrogates in messages and reasons, a message that cannot be read."""
    words = ["a\\0b", "c\\ud800d"]
    for how, outcome in (
        ("fail", "abandoned"),
        ("key", "abandoned"),
        ("abandon", "abandoned"),
        ("cancel", "cancelled"),
    ):
        for escaped in words:
            job = jobs.says_escaped.register(escaped, how)
            (after,) = ended(job)
            assert after.outcome == outcome, (how, escaped, after.error)
            assert "UnstorableResult" not in after.error, (how, escaped)
    assert ended(jobs.unspeakable.register())[0].outcome == "abandoned"


def test_a_job_without_attempts_left_runs_no_more(shared_worker: WorkerProcess) -> None:
    """C17 C18: attempt > max_attempts at the start: abandoned without running."""
    exhausted = jobs.effect.using(delay=60, max_attempts=1).register("never")
    Job.objects.filter(pk=exhausted.pk).update(attempt=1)
    Job.objects.filter(pk=exhausted.pk).reschedule(delay=0)
    (after,) = ended(exhausted)
    assert after.outcome == "abandoned"
    assert not shared_worker.stage.count("effect")
