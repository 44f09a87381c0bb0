"""Local workers: so many at once and no more, in every process anew, and a limited time at exit."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from unittest.mock import patch

import pytest

from django_pgjobs.registering.local_pool import LocalPool
from tests.plugins.fix_db import patience


@pytest.fixture
def pool() -> LocalPool:
    return LocalPool()


def test_so_many_run_at_once_and_nothing_waits_for_a_place(pool: LocalPool) -> None:
    """A38."""
    go, ran = threading.Event(), []

    def call() -> None:
        go.wait(patience(10))
        ran.append(threading.current_thread().name)

    assert [pool.submit(call, limit=2, exit_seconds=0) for _ in range(4)] == [True, True, False, False]
    assert pool.running == 2
    assert not pool.wait(0)
    go.set()
    assert pool.wait(patience(10))
    assert ran == ["pgjobs-bypass"] * 2
    assert pool.submit(call, limit=2, exit_seconds=0)
    assert pool.wait(patience(10))


def test_an_error_in_a_call_is_logged_and_frees_its_place(pool: LocalPool, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise SystemExit(3)

    for _ in range(3):
        assert pool.submit(fail, limit=1, exit_seconds=0)
        assert pool.wait(patience(10))
    assert [record.message for record in caplog.records] == ["local worker failed"] * 3


def test_a_thread_that_cannot_be_started_is_no_worker(pool: LocalPool, caplog: pytest.LogCaptureFixture) -> None:
    with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        assert not pool.submit(lambda: None, limit=1, exit_seconds=0)
    assert (caplog.records[0].levelno, pool.running) == (logging.ERROR, 0)


FORKED = """
import os, threading
from django_pgjobs.registering.local_pool import of_this_process as pool
pool.submit(threading.Event().wait, limit=1, exit_seconds=0)
pool._idle.acquire()  # as a thread may hold it at the fork
child = os.fork()
if not child:
    done = threading.Event()
    assert pool.running == 0
    assert pool.submit(done.set, limit=1, exit_seconds=0)
    assert pool.wait(10) and done.is_set()
    os._exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
pool._idle.release()
raise SystemExit(code)
"""

AT_EXIT = """
import sys, threading
from django_pgjobs.registering.local_pool import of_this_process as pool
started = threading.Event()
def call():
    started.set()
    threading.Event().wait({seconds})
    print("done", flush=True)
pool.submit(call, limit=1, exit_seconds={exit_seconds})
started.wait()
"""


def _run(code: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_begins_with_all_its_places_free() -> None:
    """A37: the pool is made per process, after the fork."""
    code, _, errors = _run(FORKED)
    assert code == 7, errors


def test_the_exit_of_the_process_waits_for_what_runs() -> None:
    assert _run(AT_EXIT.format(seconds=0.2, exit_seconds=60)) == (0, "done\n", "")


def test_the_exit_of_the_process_waits_no_longer_than_it_may() -> None:
    code, printed, errors = _run(AT_EXIT.format(seconds=3600, exit_seconds=0.05))
    assert (code, printed) == (0, "")
    assert "process exits, jobs that bypassed the queue are lost running=1" in errors
