"""Jobs that take their process along, and jobs whose time is up: the guilty one is named, the others pay nothing."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

from django_pgjobs import register_many
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.models import Job
from tests.e2e import jobs
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, age, ended, history, read

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"threads": 4, "conf": {"POLL_SECONDS": 60}}


def waiting(worker: WorkerProcess, key: str, count: int = 1) -> list[Job]:
    """Register jobs that wait for ``key`` and return them once they run."""
    ids = register_many(jobs.waits.bind(key) for _ in range(count))
    wait_until(lambda: worker.stage.count("start", key) >= count, 15, f"{count} jobs wait for {key}")
    return list(Job.objects.filter(pk__in=ids).order_by("id"))


@pytest.mark.parametrize(
    ("how", "words"), [("exit", "exited with status 3"), ("kill", "killed by SIGKILL"), ("abort", "killed by SIGABRT")]
)
def test_a_job_that_ends_its_process_has_crashed_and_the_cause_is_named(
    shared_worker: WorkerProcess, how: str, words: str
) -> None:
    """C29 A3: charged each time it does so alone; on the last attempt abandoned."""
    (after,) = ended(jobs.dies.register(how))
    assert after.outcome == "abandoned"
    assert words in after.error
    assert history(after) == [(1, "crashed"), (2, "crashed")]
    assert shared_worker.stage.count("dies", after.pk) == 2
    assert after.attempts.get(number=1).worker_name == shared_worker.name


def test_with_one_attempt_it_never_runs_twice(shared_worker: WorkerProcess) -> None:
    """C17 C36 X8: max_attempts=1 and alone in its process."""
    (after,) = ended(jobs.dies_once.register("kill"))
    assert (after.outcome, history(after)) == ("abandoned", [(1, "crashed")])
    assert shared_worker.stage.count("dies", after.pk) == 1


def test_after_a_crash_a_job_that_may_run_once_is_abandoned_and_its_callback_runs(shared_worker: WorkerProcess) -> None:
    """C17: with attempts left for its exceptions; its neighbour in the process, too, if it is of the same kind."""
    beside = jobs.waits.using(on_crash="abandon").register("beside")
    wait_until(lambda: shared_worker.stage.count("start", "beside") == 1, 15, "its neighbour runs")
    (after, neighbour) = ended(jobs.crashes.register("kill"), beside)
    assert (after.outcome, history(after)) == ("abandoned", [(1, "crashed")])
    assert after.error.endswith('SIGKILL. It is not run again: on_crash="abandon".')
    assert shared_worker.stage.count("crashes", after.pk) == 1
    assert shared_worker.stage.count("on_abandon", after.pk, 1) == 1
    assert (neighbour.outcome, history(neighbour)) == ("abandoned", [(1, "crashed")])
    (failed,) = ended(jobs.crashes.register("raise"))
    assert (failed.outcome, history(failed)) == ("abandoned", [(n, "failed") for n in (1, 2, 3)])


def test_a_success_is_notified_at_least_once_and_stands_whatever_the_callback_does(
    shared_worker: WorkerProcess,
) -> None:
    """The result is there before the callback; one that ends its process starts three times, and the body once."""
    fine, failing, coroutine = jobs.tells.register(""), jobs.tells.register("raise"), jobs.atells.register()
    first = ended(fine, failing, coroutine)[:2]
    dying = jobs.tells.register("kill")
    for after in (*first, *ended(dying, timeout=60)):
        assert (after.outcome, after.attempt) == ("succeeded", 1)
        assert after.result == f"told {after.payload['args'][0]}"
    assert ended(coroutine)[0].result == "told"
    told = shared_worker.stage.count
    assert [told("on_success", job.pk) for job in (fine, failing, dying, coroutine)] == [1, 1, 3, 1]


def test_neighbours_of_a_crash_run_again_by_halves_and_uncharged(shared_worker: WorkerProcess) -> None:
    """D18, §4 deaths: who did it is found by running halves again, the latest first; the innocent have one attempt."""
    halved = "each half runs again by itself"
    before = len(re.findall(halved, shared_worker.log))
    first, last = waiting(shared_worker, "first", 2), waiting(shared_worker, "last")
    dying = jobs.dies.register("kill", "now")
    wait_until(lambda: shared_worker.stage.count("dies", dying.pk) == 1, 10, "the fourth runs beside them")
    shared_worker.stage.open("now")
    # It may die before the other half of its pair has come to its first line, or has begun at all.
    wait_until(lambda: shared_worker.said(halved, before + 2) or history(dying), 20, "the others are told apart")
    shared_worker.stage.open("first")
    shared_worker.stage.open("last")
    neighbours = ended(*first, *last)
    (guilty,) = ended(dying)
    assert (guilty.outcome, history(guilty)) == ("abandoned", [(1, "crashed"), (2, "crashed")])
    assert [(job.outcome, job.attempt) for job in neighbours] == [("succeeded", 1)] * 3
    wait_until(lambda: all(job.attempts.exists() for job in neighbours), 5, "what was not charged leaves a trace, soon")
    assert [history(job) for job in neighbours] == [[], [], []]
    assert shared_worker.stage.count("dies", dying.pk) <= 5


@pytest.mark.slow
def test_suspects_that_run_for_long_stay_alone_one_after_the_other(shared_worker: WorkerProcess) -> None:
    """§4 deaths: the second waits for the first longer than a job otherwise waits for room, and is still alone."""
    first = waiting(shared_worker, "first")[0]
    dying = jobs.dies.register("kill", "now")
    wait_until(lambda: shared_worker.stage.count("dies", dying.pk) == 1, 10, "both run")
    shared_worker.stage.open("now")
    wait_until(lambda: shared_worker.stage.count("start", "first") == 2, 20, "the first runs again")
    wait_until(lambda: shared_worker.stage.count("never") or age(first) > 8, 20, "it has run for some seconds")
    shared_worker.stage.open("first")
    assert [job.outcome for job in ended(first, dying)] == ["succeeded", "abandoned"]
    assert (read(first).attempt, shared_worker.stage.count("start", "first")) == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("job", [jobs.holds_the_gil, jobs.spins_on_the_loop], ids=lambda job: job.func.__name__)
def test_a_job_over_its_time_is_stopped_whatever_it_does(
    shared_worker: WorkerProcess, job: JobDefinition[..., Any]
) -> None:
    """C25 C26 A30 W17: C code that keeps the interpreter, a coroutine that never yields: killed with its process."""
    neighbour = waiting(shared_worker, "beside")[0]
    before = shared_worker.executors()
    (late,) = ended(job.register())
    assert (late.outcome, history(late)) == ("abandoned", [(1, "timeout")])
    assert "ran longer than 1 s" in late.error
    assert 5.9 < (late.attempts.get().duration_seconds or 0) < patience(7)
    assert not set(before) & set(shared_worker.executors())
    shared_worker.stage.open("beside")
    (after,) = ended(neighbour)
    assert (after.outcome, after.attempt) == ("succeeded", 1)
    assert history(after) == [(1, "released")]
    assert ended(jobs.effect.register("after"))[0].outcome == "succeeded"


def test_a_timeout_retries_while_attempts_are_left(shared_worker: WorkerProcess) -> None:
    """C33 A30: by the numeric backoff, as after a kill."""
    late = jobs.spins.using(max_attempts=2).register()
    wait_until(lambda: history(late) == [(1, "timeout")], 15, "the first attempt was stopped")
    assert read(late).state == "ready"
    Job.objects.filter(pk=late.pk).reschedule(delay=0)
    (after,) = ended(late)
    assert (after.outcome, history(after)) == ("abandoned", [(1, "timeout"), (2, "timeout")])


def test_an_executor_killed_from_outside_is_replaced(shared_worker: WorkerProcess) -> None:
    """C12 C29: with one job it is charged as crashed and tried again, with none nothing is charged."""
    (pid,) = shared_worker.executors()
    os.kill(pid, signal.SIGKILL)
    assert ended(jobs.effect.register("idle"))[0].attempt == 1
    running = waiting(shared_worker, "one")[0]
    (pid,) = shared_worker.executors()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: shared_worker.stage.count("start", "one") == 2, 20, "it runs again")
    shared_worker.stage.open("one")
    (after,) = ended(running)
    assert (after.outcome, after.attempt, history(after)) == ("succeeded", 2, [(1, "crashed")])


def test_a_frozen_or_terminated_executor_does_not_end_by_sigterm(shared_worker: WorkerProcess) -> None:
    """§4 trap 4: SIGTERM and SIGINT to an executor alone stop no job."""
    running = waiting(shared_worker, "one")[0]
    (pid,) = shared_worker.executors()
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    assert ended(jobs.effect.register("beside"))[0].outcome == "succeeded"
    shared_worker.stage.open("one")
    (after,) = ended(running)
    assert (after.outcome, after.attempt, history(after)) == ("succeeded", 1, [])


def test_the_programs_a_job_started_go_with_its_process(shared_worker: WorkerProcess) -> None:
    """Protocol R7: the whole process group of a killed executor."""
    ended(jobs.starts_a_program.register(300))
    ended(jobs.starts_a_program.register(301, inherit=True))
    ended(jobs.dies_once.register("kill"))

    def sleeping() -> list[bytes]:
        found = []
        for pid in shared_worker.processes():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as text:
                    found.append(text.read())
            except OSError:
                continue
        return [line for line in found if line.startswith(b"sleep")]

    wait_until(lambda: not sleeping(), 5, "no program is left")


def test_programs_inherit_neither_channel_nor_board(shared_worker: WorkerProcess) -> None:
    """Protocol trap 8: an inherited end would keep the channel open after the executor."""
    assert ended(jobs.descriptors_of_a_child.register())[0].result == []


def test_a_fork_in_a_job_reports_nothing_twice(shared_worker: WorkerProcess) -> None:
    """Protocol R9: the child returns from the job function as well, and ends there."""
    forked, multi = jobs.forks.register("fork"), jobs.forks.register("multiprocessing")
    one, two = ended(forked, multi)
    assert one.outcome == "succeeded"
    assert one.result
    assert (two.outcome, two.result) == ("succeeded", 0)
    assert shared_worker.stage.count("child", forked.pk) == 1
    assert shared_worker.stage.count("parent", forked.pk) == 1
    wait_until(lambda: len(shared_worker.executors()) == 1, 5, "the child has ended")


def test_a_fork_in_an_async_job_reports_nothing_twice(shared_worker: WorkerProcess) -> None:
    """Protocol R9 on the loop: the child shares the loop's descriptors and must not go on with it."""
    neighbour = jobs.awaits.register("beside-fork")
    wait_until(lambda: shared_worker.stage.count("start", "beside-fork"), 10, "a neighbour runs")
    (after,) = ended(jobs.aforks.register())
    assert (after.outcome, after.result) == ("succeeded", "parent")
    shared_worker.stage.open("beside-fork")
    assert ended(neighbour)[0].outcome == "succeeded"
    wait_until(lambda: shared_worker.stage.count("end", "beside-fork") == 1, 5, "it ended")
    wait_until(lambda: len(shared_worker.executors()) == 1, 5, "the child has ended")
