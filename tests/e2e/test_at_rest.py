"""What workers without anything to do cost: transactions, connections, wake-ups (ADR-0043)."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

from django_pgjobs.models import LeaderTerm
from tests.e2e import jobs
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers, ended

SECONDS = 10.0
WINDOWS = 5
"""So many looks at most: a VACUUM of the server's own, or the turn of a minute, may fall into one."""

TRANSACTIONS = 4.0
"""A second: three of the leader's and one of another worker."""

SWITCHES = 20.0
"""A second and worker: twice what a quiet machine shows, half of what it was."""


def switches(process: WorkerProcess) -> int:
    """Return how often the threads of a worker and of its children were switched to."""
    total = 0
    for pid in process.processes():
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            with suppress(OSError):
                total += sum(map(int, re.findall(r"voluntary_ctxt_switches:\s+(\d+)", status.read_text())))
    return total


def transactions(raw: RawDatabase) -> int:
    raw.query("SELECT pg_stat_clear_snapshot()")
    asked = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    return int(raw.value(asked))


def roles(raw: RawDatabase, process: WorkerProcess) -> set[str]:
    """Return what a worker's connections are for."""
    names = raw.query("SELECT application_name FROM pg_stat_activity WHERE position(%s IN application_name) > 0",
                      [f"pgjobs {process.name} "])  # fmt: skip
    return {name.rpartition(" ")[2] for (name,) in names}


def test_workers_at_rest_send_little_and_wake_seldom(worker: Workers, raw: RawDatabase) -> None:
    two = [worker(), worker()]
    at_rest = {"claim", "keep", "listen", "maintenance"}
    wait_until(lambda: all(roles(raw, process) == at_rest for process in two), 60, "both rest")
    sent, woken = [], []
    for _ in range(WINDOWS):
        before, slept, began = transactions(raw), [switches(each) for each in two], time.monotonic()
        while time.monotonic() < began + SECONDS:
            time.sleep(0.5)  # not for a fact: the time is what is measured
            for process in two:
                assert roles(raw, process) <= at_rest | {"upkeep"}
        seconds = time.monotonic() - began
        own = 2 * SECONDS / 0.5 + 2
        sent.append((transactions(raw) - before - own) / seconds)
        woken.append(max(switches(each) - then for each, then in zip(two, slept, strict=True)) / seconds)
        if sent[-1] <= TRANSACTIONS and woken[-1] <= SWITCHES:
            break
    assert min(sent) <= TRANSACTIONS, sent
    assert min(woken) <= SWITCHES, woken


def test_what_comes_to_a_worker_at_rest_has_all_it_needs(worker: Workers, raw: RawDatabase) -> None:
    """The connection for ends is made when the first job is claimed, the one for slow duties when one is due."""
    process = worker()
    wait_until(lambda: roles(raw, process) == {"claim", "keep", "listen", "maintenance"}, 40, "it rests")
    assert LeaderTerm.current() is not None
    (job,) = ended(jobs.no_op.register())
    assert job.outcome == "succeeded"
    assert "finalise" in roles(raw, process)
