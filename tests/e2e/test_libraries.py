"""What libraries do with processes works in a job as it does anywhere else."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.e2e import libraries
from tests.plugins.fix_worker import WorkerProcess, ended, history

ARGUMENTS = ()
# As where a shell script has started the worker, and where its output goes to a file.
WORKER = {"env": {"PYTHONUNBUFFERED": ""}, "program": ("/bin/sh", "-c", "trap '' CHLD; exec \"$@\"", "sh")}
WORKER["program"] = (*WORKER["program"], sys.executable, "-m", "django")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_processes_works_in_a_job(shared_worker: WorkerProcess, method: str) -> None:
    """Its children end by the signal they are sent; with our handlers the job would wait for them for ever."""
    pool, executor = libraries.maps_in_a_pool.register(method), libraries.maps_in_an_executor.register(method)
    after = ended(pool, executor, timeout=60)
    assert [(job.outcome, job.result) for job in after] == [("succeeded", [1, 2, 3])] * 2


def test_signals_end_children_of_a_job_and_their_statuses_are_told(shared_worker: WorkerProcess) -> None:
    """Though the worker was started with SIGCHLD ignored, which would make every status 0."""
    (job,) = ended(libraries.ends_children.register(), timeout=60)
    assert job.result == {"SIGTERM": -15, "SIGINT": -2, "SIGHUP": -1, "false": 1}


def test_how_an_executor_died_is_told_where_sigchld_was_ignored(shared_worker: WorkerProcess) -> None:
    (job,) = ended(libraries.dies_by.register(int(signal.SIGSEGV)))
    assert history(job) == [(1, "crashed")]
    assert "SIGSEGV" in job.attempts.get().message


def test_the_ladder_ends_forked_children_before_it_kills(shared_worker: WorkerProcess) -> None:
    """A job that waits for a child goes on when SIGTERM has ended the child."""
    (job,) = ended(libraries.waits_for_a_child.register("child"))
    assert (job.outcome, job.result) == ("succeeded", -signal.SIGTERM)
    assert shared_worker.stage.count("swallowed", "child", "DeadlinePassed") == 1
