"""Jobs that bypass the queue, started by a job in an executor: it waits for them before it leaves."""

from __future__ import annotations

import signal

from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended


def test_an_executor_waits_for_what_bypassed_the_queue_before_it_leaves(worker: Workers, stage: Stage) -> None:
    """As any process that exits: what a job has started there is not cut off by the worker's drain."""
    process = worker(processes=1, threads=1)
    ended(jobs.bypasses.register("one"))
    wait_until(lambda: stage.count("bypassed", "one") == 1, 10, "it runs past the queue")
    process.signal(signal.SIGTERM)
    process.wait_for_log("executor waits for jobs that bypassed the queue")
    stage.open("one")
    assert process.wait() == 0
    assert stage.count("bypassed-end", "one") == 1
