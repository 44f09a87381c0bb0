"""Nothing between a body and its outcome takes the thread along: project code may raise anything wherever it is called.

One worker for all: a thread, a loop or a control thread that died of one test would be missed by the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from django_pgjobs.models import Job
from tests.e2e import decorated, hostile, jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history

THREADS = 2
ARGUMENTS: tuple[str, ...] = ("-v2",)
WORKER: dict[str, object] = {
    "threads": THREADS,
    "env": {"PGJOBS_TEST_HOSTILE": "1"},
    "conf": {"MIDDLEWARE": ["tests.e2e.hostile.layer"], "POLL_SECONDS": 60},
}
LOGGING = ("handler", "formatter", "filter of a handler", "filter of a logger", "record factory")
SIGNALS = ("job_started", "attempt_ended", "job_finished", "job_retried")


@pytest.fixture
def worker_at_work(shared_worker: WorkerProcess) -> Iterator[WorkerProcess]:
    """The worker, with a neighbour at work in a thread and one on the loop: neither may notice anything.

    Afterwards each of its threads runs a job at the same time as all the others, in the process that there was.
    """
    stage = shared_worker.stage
    (pid,) = shared_worker.ready_executors()
    neighbours = [jobs.awaits.register("beside"), jobs.waits.register("beside")]
    wait_until(lambda: stage.count("start", "beside") == len(neighbours), 10, "the neighbours run")
    yield shared_worker
    be_hostile(stage, "")
    stage.open("beside")
    for after in ended(*neighbours):
        assert (after.outcome, after.attempt) == ("succeeded", 1), after.error
    crowd = [*(jobs.waits.register("crowd") for _ in range(THREADS)), jobs.awaits.register("crowd")]
    wait_until(lambda: stage.count("start", "crowd") == len(crowd), 10, "each thread and the loop run a job")
    stage.open("crowd")
    assert [after.outcome for after in ended(*crowd)] == ["succeeded"] * len(crowd)
    assert shared_worker.ready_executors() == [pid], shared_worker.log[-5000:]
    Path(stage.path / "hostile").unlink(missing_ok=True)


def be_hostile(stage: Stage, what: str) -> None:
    new = stage.path / "hostile.new"
    new.write_text(what)
    new.rename(stage.path / "hostile")


FAILED_TWICE = [(1, "failed"), (2, "failed")]


def failures_that_were_not_recorded(jobs_by_name: Mapping[str, Job]) -> dict[str, object]:
    ended(*jobs_by_name.values())
    found = {name: history(job) for name, job in jobs_by_name.items()}
    return {name: kept for name, kept in found.items() if kept != FAILED_TWICE}


@pytest.mark.parametrize("what", ["error", "leaving", "recursion"])
@pytest.mark.parametrize("place", LOGGING)
def test_logging_that_raises_costs_no_outcome(worker_at_work: WorkerProcess, place: str, what: str) -> None:
    """A3: of a failure, in a thread and on the loop, and of a success; more of them than there are threads."""
    be_hostile(worker_at_work.stage, f"{place}: {what}")
    failures = {
        f"{job.name} {n}": job.register() for n in range(THREADS + 1) for job in (hostile.fails, hostile.afails)
    }
    succeeding = hostile.succeeds.register()
    giving_up = hostile.gives_up.register()
    assert failures_that_were_not_recorded(failures) == {}
    assert ended(succeeding)[0].result == 7
    assert ended(giving_up)[0].outcome == "abandoned"
    assert worker_at_work.stage.count("callback", giving_up.pk) == 1


def test_what_a_broken_handler_does_not_write_is_on_stderr(worker_at_work: WorkerProcess) -> None:
    """Neither the record nor the reason is lost."""
    be_hostile(worker_at_work.stage, "handler: leaving")
    failing = hostile.fails.register()
    ended(failing)
    worker_at_work.wait_for_log(rf"logging failed with tests\.e2e\.hostile\.Leaving: handler; .* job={failing.pk} ")


@pytest.mark.parametrize("what", ["error", "leaving", "exit", "interrupt"])
@pytest.mark.parametrize("signal", SIGNALS)
def test_a_receiver_that_raises_changes_nothing(worker_at_work: WorkerProcess, signal: str, what: str) -> None:
    """Of whatever kind it is."""
    be_hostile(worker_at_work.stage, f"receiver of {signal}: {what}")
    failures = {job.name: job.register() for job in (hostile.fails, hostile.afails)}
    succeeding = hostile.succeeds.register()
    assert failures_that_were_not_recorded(failures) == {}
    assert ended(succeeding)[0].result == 7


@pytest.mark.parametrize("what", ["error", "leaving", "exit"])
@pytest.mark.parametrize("place", ["middleware in", "middleware out"])
def test_middleware_that_raises_is_a_failure(worker_at_work: WorkerProcess, place: str, what: str) -> None:
    """A layer is the job's own code, its ``finally`` too."""
    be_hostile(worker_at_work.stage, f"{place}: {what}")
    failures = {job.name: job.register() for job in (hostile.fails, hostile.afails)}
    assert failures_that_were_not_recorded(failures) == {}


def test_an_exception_may_be_of_any_kind(worker_at_work: WorkerProcess) -> None:
    """A3: its properties, methods and kind are the job's code, and so are those of its causes."""
    raised = {what: hostile.raises.register(what) for what in hostile.ERRORS}
    kinds = hostile.ERRORS.keys() - {"generator"}
    araised = {f"async {what}": hostile.araises.register(what) for what in kinds}
    assert failures_that_were_not_recorded({**raised, **araised}) == {}


@pytest.mark.parametrize("name", sorted(hostile.RULED))
def test_a_rule_that_leaves_lets_the_job_be_retried(worker_at_work: WorkerProcess, name: str) -> None:
    """By the numeric backoff, as after an error in the rule."""
    ruled = hostile.RULED[name].register()
    wait_until(lambda: history(ruled)[:1] == [(1, "failed")], 10, "the failure is recorded")
    worker_at_work.wait_for_log(r"(backoff|retry rule) failed name=hostile\." + name.replace(" ", "_"))


def test_a_value_that_cannot_be_read_is_no_result(worker_at_work: WorkerProcess) -> None:
    """Whatever its methods do."""
    returned = {what: hostile.returns_hostile.register(what) for what in hostile.VALUES}
    afters = dict(zip(returned, ended(*returned.values()), strict=True))
    for what in ("mute", "dying", "kind"):
        assert afters[what].outcome == "succeeded", what
        assert "$unstored" in str(afters[what].result), what


def test_progress_of_hostile_values_ends_no_thread(worker_at_work: WorkerProcess) -> None:
    told = {what: hostile.progresses_by.register(what) for what in hostile.PROGRESS}
    ended(*told.values())


def test_a_context_that_a_job_has_patched_ends_no_thread(worker_at_work: WorkerProcess) -> None:
    """What is told of an attempt's end does not depend on what the job made of it."""
    assert [after.outcome for after in ended(*[hostile.leaves_behind.register("context") for _ in range(5)])] == [
        "succeeded"
    ] * 5


def test_an_async_job_that_has_returned_has_succeeded(worker_at_work: WorkerProcess) -> None:
    """A3: a clean-up that fails does not replace what the job came to."""
    for after in ended(*[hostile.cancels_itself_and_returns.register() for _ in range(5)]):
        assert (after.outcome, after.attempt, after.result) == ("succeeded", 1, "done"), after.error


def test_hostile_things_on_the_loop_end_no_task(worker_at_work: WorkerProcess) -> None:
    """Exception handlers, task factories and callbacks of tasks are a project's too."""
    (after,) = ended(hostile.puts_hostile_things_on_the_loop.register())
    assert after.result == "done"
    failures = {job.name: job.register() for job in (hostile.fails, hostile.afails)}
    assert failures_that_were_not_recorded(failures) == {}


@pytest.mark.parametrize("kind", decorated.LAZY)
def test_what_runs_only_when_somebody_takes_its_items_is_refused(worker_at_work: WorkerProcess, kind: str) -> None:
    """The code of a generator has not run: no job, step, callback or compensation that returns one has succeeded."""
    body, plain, atomic, step, callback, undone = ended(
        decorated.lazy.register(kind),
        decorated.lazy_without_result.register(kind),
        decorated.lazy_and_atomic.register(kind),
        decorated.has_a_lazy_step.register(kind),
        decorated.gives_up.register(kind),
        decorated.is_undone_lazily.register(kind),
    )
    for row, whose in ((body, "The job"), (plain, "The job"), (atomic, "The job"), (step, "Step 'lazy_part'")):
        assert (row.outcome, row.attempt) == ("abandoned", 1), row.name
        assert f"{whose} returned a {kind}, which is never consumed: its code has not run." in row.error
    assert f"The callback returned a {kind}, which is never consumed" in worker_at_work.log
    assert callback.error == f"ValueError: {kind}"
    wait_until(lambda: Job.objects.filter(name="pgjobs.undo", target_id=undone.pk).exists(), 20, "it is being undone")
    (undo,) = ended(Job.objects.get(name="pgjobs.undo", target_id=undone.pk))
    assert undo.outcome == "abandoned"
    (compensation,) = Job.objects.filter(name=decorated.lazy_compensation.name).order_by("-pk")[:1]
    assert (compensation.outcome, compensation.attempt) == ("abandoned", 1)
    assert f"The job returned a {kind}" in compensation.error
