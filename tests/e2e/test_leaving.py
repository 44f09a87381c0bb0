"""What is left to be written when an executor leaves, is."""

from __future__ import annotations

import os
import signal

from tests.e2e import libraries
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended

# Prints


def test_a_printed_line_is_there_at_once_and_half_a_line_when_the_worker_drains(worker: Workers, stage: Stage) -> None:
    process = worker(env={"PYTHONUNBUFFERED": ""})
    job = libraries.prints.register("one")
    wait_until(lambda: stage.count("printed", "one"), 15, "it has printed")
    assert "printed one\n" in process.log
    stage.open("one")
    assert ended(job)[0].result == {"stderr": True}
    assert "half a line" not in process.log
    assert process.stop() == 0
    assert "half a line of one" in process.log


def test_half_a_printed_line_is_not_lost_with_the_supervisor(worker: Workers, stage: Stage) -> None:
    process = worker(env={"PYTHONUNBUFFERED": ""})
    stage.open("one")
    ended(libraries.prints.register("one"))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not process.processes(), 10, "its executor has left")
    assert "half a line of one" in process.log
