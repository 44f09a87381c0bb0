"""Listeners that are always there and say for each end whether they want to hear of it."""

from __future__ import annotations

from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended


def test_a_worker_tells_a_listener_the_ends_that_it_wants_at_that_moment(worker: Workers, stage: Stage) -> None:
    """§1.6: a change of mind reaches the supervisor before the next outcome, with no receiver connected at all."""
    worker(threads=1, env={"PGJOBS_TEST_LISTENER": "1"})
    told = stage.count
    quiet, doomed = jobs.effect.register("quiet"), jobs.doomed.register()
    ended(quiet)
    ended(doomed)
    wait_until(lambda: told("signal", doomed.pk, "finished", "abandoned", "abandoned") == 1, 15, "the failure is told")
    stage.open("hear-all")
    loud = jobs.effect.register("loud")
    wait_until(lambda: told("signal", loud.pk, "finished", "succeeded", "succeeded") == 1, 15, "the success is told")
    assert told("signal", quiet.pk) == 0
    assert told("signal", doomed.pk) == 1, "no retry is told to it"
