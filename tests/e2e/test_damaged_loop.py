"""What jobs do to the event loop they run on, beyond what their neighbours can be spared without help."""

from __future__ import annotations

from tests.e2e import hostile, jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended, history


def test_a_task_that_ends_without_an_outcome_gets_one(worker: Workers) -> None:
    """Python lets no coroutine end in a GeneratorExit of its own; the attempt is charged all the same."""
    worker()
    worker.expect("executor failed around")
    (after,) = ended(hostile.araises.register("generator"))
    assert (after.outcome, history(after)) == ("abandoned", [(1, "failed"), (2, "failed")])


def test_a_loop_whose_descriptor_a_job_has_closed_goes_on(worker: Workers, stage: Stage) -> None:
    """It waits on a new one, in the same process; its neighbour notices nothing, and the log has one line."""
    process = worker()
    before = process.ready_executors()
    neighbour = jobs.awaits.register("beside")
    wait_until(lambda: stage.count("start", "beside") == 1, 20, "the neighbour runs")
    (closer,) = ended(hostile.closes_the_selector.register())
    assert (closer.outcome, closer.result, closer.attempt) == ("succeeded", "done", 1)
    (after,) = ended(jobs.aeffect.register("next", seconds=0.05))
    assert (after.outcome, after.attempt) == ("succeeded", 1)
    stage.open("beside")
    (beside,) = ended(neighbour)
    assert (beside.outcome, beside.attempt, history(beside)) == ("succeeded", 1, [])
    assert process.log.count("event loop cannot wait, its selector is replaced") == 1
    assert process.ready_executors() == before
