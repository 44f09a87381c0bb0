"""What every role of the database may do without end costs a worker no more than a bound says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from django_pgjobs.worker.threads.listener import MOST_RECEIVED
from tests.e2e import jobs
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_roles import Role
from tests.plugins.fix_worker import Workers, ended

FLOOD = """
import psycopg, sys
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    for turn in range(10):
        connection.execute(
            "SELECT pg_notify('pgjobs', %s || ':q' || n) FROM generate_series(1, %s) AS n",
            [turn, int(sys.argv[2])],
        )
"""


# pgjobs test-… listen: the session whose unread notifications are the worker's.
LISTENING = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgjobs ' || %s || '%% listen'"

SESSIONS = """
SELECT pid, datname, application_name, state, wait_event, xact_start, left(query, 60)
FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
ORDER BY wait_event = 'ClientWrite' DESC, xact_start
"""


def megabytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 // 1_000_000


def wait_until_queue_is_empty(raw: RawDatabase) -> None:
    """Fail with the sessions of the whole server: one that listens and is not read (ClientWrite) holds the queue."""
    try:
        wait_until(lambda: raw.value("SELECT pg_notification_queue_usage()") == 0, 30, "the server's queue is empty")
    except pytest.fail.Exception as error:
        sessions = "\n".join(map(str, raw.query(SESSIONS)))
        raise pytest.fail.Exception(f"{error} Its sessions:\n{sessions}") from None


def test_a_role_that_may_only_connect_fills_neither_a_workers_memory_nor_the_servers_queue(
    role: Callable[..., Role], worker: Workers, raw: RawDatabase
) -> None:
    """Ten times as many notifications as it listens to: it says so, polls, and runs jobs meanwhile."""
    nobody = role()
    process = worker(conf={"POLL_SECONDS": 1.0})
    wait_until(lambda: raw.value(LISTENING, [process.name]) == 1, 10, "the worker listens")
    before = megabytes(process.pid)
    flood = subprocess.Popen([sys.executable, "-c", FLOOD, nobody.url, str(MOST_RECEIVED)])
    process.wait_for_log("notifications on the channel pgjobs in 5 s, so it polls for 60 s instead of listening", 60)
    wait_until(lambda: raw.value(LISTENING, [process.name]) == 0, 10, "the worker's session has ended")
    assert flood.wait(120) == 0
    wait_until_queue_is_empty(raw)
    [done] = ended(jobs.effect.register("k"))
    assert done.outcome == "succeeded"
    assert megabytes(process.pid) < before + 100
