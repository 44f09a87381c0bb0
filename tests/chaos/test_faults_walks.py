"""Workers are drained and killed again and again under jobs that go through many rows, each batch one commit.

``PGJOBS_TEST_WALK_SECONDS=600 PGJOBS_TEST_WALK_ROWS=200000`` is ten minutes of it, with a deploy or a death each ten
seconds under jobs of 30 seconds; then the work also has to end within 1.1 of the time that it takes undisturbed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group

from django_pgjobs import register_many
from django_pgjobs.models import Attempt, Job
from tests.e2e import walking
from tests.plugins.fix_db import empty, patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

SECONDS = float(os.environ.get("PGJOBS_TEST_WALK_SECONDS", "12"))
ROWS = int(os.environ.get("PGJOBS_TEST_WALK_ROWS", "4000"))
LONG = SECONDS >= 60
PAUSE = 10.0 if LONG else 2.0
JOB_SECONDS = 30.0 if LONG else 3.0

THREADS = 4
CONF = {"LEASE_SECONDS": 3.0, "RENEW_SECONDS": 1.0, "POLL_SECONDS": 1.0, "DRAIN_SECONDS": 60.0}

RATIO = 1.1
"""At most how much longer the work may take when it is disturbed."""

COMPARED = SECONDS >= 600
"""In less time the end counts for too much, when fewer jobs are left than threads."""


@pytest.fixture(autouse=True)
def rows(committed: None) -> Iterator[list[int]]:
    with walking.laid_out():
        Group.objects.bulk_create((Group(name=f"g{number}") for number in range(ROWS)), batch_size=5000)
        yield list(Group.objects.order_by("pk").values_list("pk", flat=True))


def registered(rows: list[int]) -> list[int]:
    """Register jobs that keep all threads busy for ``SECONDS``, each of them for ``JOB_SECONDS``."""
    count = max(1, round(SECONDS * THREADS / JOB_SECONDS))
    size = -(-len(rows) // count)
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return list(register_many(walking.rows.bind(part[0], part[-1], JOB_SECONDS / size) for part in parts))


def left(ids: list[int]) -> int:
    return Job.objects.filter(pk__in=ids, finished_at=None).count()


def worked(worker: Workers, rows: list[int], change: Callable[[Workers, WorkerProcess], WorkerProcess]) -> float:
    """Run all jobs while ``change`` puts another worker in the place of the one that runs them; return how long."""
    running = worker(threads=THREADS, conf=CONF)
    ids, began = registered(rows), time.monotonic()
    changes, until = 0, began + patience(20 * SECONDS + 60)
    while left(ids):
        at = time.monotonic() + PAUSE

        def is_time(at: float = at) -> bool:
            return time.monotonic() >= at or not left(ids)

        wait_until(is_time, PAUSE + 30, "it is time for the next change")
        assert time.monotonic() < until, f"{left(ids)} jobs are left after {changes} changes"
        if left(ids):
            running, changes = change(worker, running), changes + 1
    seconds = time.monotonic() - began
    assert set(Job.objects.filter(pk__in=ids).values_list("outcome", flat=True)) == {"succeeded"}
    assert walking.counts() == {1: len(rows)}
    return seconds


def stays(worker: Workers, running: WorkerProcess) -> WorkerProcess:
    return running


def deploys(worker: Workers, running: WorkerProcess) -> WorkerProcess:
    """Start the next worker, and drain the one before."""
    following = worker(threads=THREADS, conf=CONF)
    assert running.stop(60) == 0, running.log
    return following


def dies(worker: Workers, running: WorkerProcess) -> WorkerProcess:
    """Kill a worker with all that it has started, and start the next one."""
    following = worker(threads=THREADS, conf=CONF)
    for pid in [running.pid, *running.processes()]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    running.process.wait(patience(30))
    worker.started.remove(running)
    return following


def test_rows_are_done_once_while_workers_are_drained_again_and_again(
    worker: Workers, rows: list[int], record_property: Any
) -> None:
    """And nothing is charged: each attempt is the first."""
    alone = worked(worker, rows, stays) if COMPARED else 0.0
    anew(worker)
    seconds = worked(worker, rows, deploys)
    record_property("walk_seconds", (alone, seconds))
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
    assert set(Attempt.objects.values_list("cause", flat=True)) == {"released"}
    assert not COMPARED or seconds <= RATIO * alone


def test_rows_are_done_once_while_workers_are_killed_again_and_again(
    worker: Workers, rows: list[int], record_property: Any
) -> None:
    """A lease of three seconds passes each time before others continue."""
    seconds = worked(worker, rows, dies)
    record_property("walk_seconds_killed", seconds)
    assert set(Attempt.objects.values_list("cause", flat=True)) == {"lost"}


def anew(worker: Workers) -> None:
    """Leave nothing of the work before."""
    for each in worker.started:
        each.stop()
    empty()
    walking.clear()
