"""What could be overlooked behind a worker's frontier: how long the longest of it waits, with real workers.

A wait is from the instant at which a job could be claimed (its commit, or the later ``run_at``) to its first line. Of
thousands that are set free at once the first hundred count, as the others wait for those before them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from django.db import connection, transaction

from benchmarks import jobs, stamps, tables, workers
from benchmarks.figures import Figure, Result, at_most
from benchmarks.plan import Plan
from django_pgjobs.store import notifying
from django_pgjobs.store.database import on

TITLE = "Nothing waits behind the frontier"
MOST_MS = 1200.0
"""A second behind the frontier, and what a pickup takes."""

PATIENCE_SECONDS = 120.0
FIRST = 100
STREAM_SECONDS = 0.01
CALLERS = 8

Instants = dict[int, float]
"""Number of a job → when it could be claimed."""


def measure(plan: Plan) -> Result:
    """Play each case on one worker, the last on two; the next begins when all of one have started."""
    waits: dict[str, list[float]] = {}
    with workers.stamp_file() as path:
        with workers.working(processes=1, stamps=path) as worker:
            workers.warm_up(worker)
            for number, (name, (_, case)) in enumerate(CASES.items()):
                waits[name] = _waits(path, case(plan, (number + 1) * 1_000_000))
                tables.clear_jobs()
        waits["two_workers"] = _waits(path, _two_workers(plan, path))
    texts = {name: text for name, (text, _) in CASES.items()} | {
        "two_workers": "two workers, half of the slots busy for a second each, one worker stopped"
    }
    return Result(
        [Figure(name, texts[name], max(found) * 1000, "ms", at_most(MOST_MS)) for name, found in waits.items()],
        "the longest wait of each case: " + ", ".join(f"{len(found):,}" for found in waits.values()) + " jobs",
        raw={name: {"jobs": len(found), "seconds": sorted(found)[-5:]} for name, found in waits.items()},
    )


def _waits(path: str, ready: Instants) -> list[float]:
    """Wait until all have started and return how many seconds each waited."""
    until = stamps.now() + PATIENCE_SECONDS
    while missing := ready.keys() - (started := stamps.read(path)).keys():
        if stamps.now() > until:
            raise workers.BenchmarkError(f"{len(missing)} jobs did not start")
        time.sleep(0.2)
    return [max(0.0, started[number] - instant) for number, instant in ready.items()]


# The cases: each registers jobs numbered from ``first`` on, and says when each could be claimed


def _late_commits(plan: Plan, first: int) -> Instants:
    """Transactions that stay open while others register and commit behind them."""
    longest = plan.seconds(3.0)

    def late(ready: Instants, caller: int) -> None:
        with transaction.atomic():
            jobs.note.register(first + caller)
            time.sleep(longest * (caller + 1) / CALLERS)
        ready[first + caller] = stamps.now()

    return _beside_a_stream(late)


def _equal_instants(plan: Plan, first: int) -> Instants:
    """One ``run_at`` for all, whose commits come before and after it."""
    each = plan.fixed(40, quick=10)
    clock = _server_clock()
    due = clock + timedelta(seconds=1)
    due_at = stamps.now() + 1.0

    def equal(ready: Instants, caller: int) -> None:
        for number in range(first + caller, first + CALLERS * each, CALLERS):
            jobs.note.using(run_at=due).register(number)
            ready[number] = max(due_at, stamps.now())
            time.sleep(2.0 / each)

    return _beside_a_stream(equal)


def _set_back(seconds: float) -> Callable[[Plan, int], Instants]:
    def set_back(plan: Plan, first: int) -> Instants:
        """What is registered after the server's clock was set back so far: its ``run_at`` is behind the frontier."""
        each = plan.fixed(5, quick=2)

        def behind(ready: Instants, caller: int) -> None:
            for number in range(first + caller, first + CALLERS * each, CALLERS):
                jobs.note.using(run_at=_server_clock() - timedelta(seconds=seconds)).register(number)
                ready[number] = stamps.now()
                time.sleep(0.1)

        return _beside_a_stream(behind)

    return set_back


def _bulk_retry(plan: Plan, first: int) -> Instants:
    """Thousands of abandoned jobs are retried by one call."""
    from django_pgjobs.models import Job

    _seed(plan.count(20_000, least=500), first, "outcome, finished_at", "'abandoned', statement_timestamp()")
    _stream_for(0.5)
    Job.objects.filter(outcome="abandoned").retry()
    return dict.fromkeys(range(first, first + FIRST), stamps.now())


def _behind_running(plan: Plan, first: int) -> Instants:
    """New jobs behind thousands that another worker runs."""
    _seed_running(plan.count(50_000, least=500), first)
    ready: Instants = {}
    for number in range(first + 500_000, first + 500_000 + FIRST):
        jobs.note.register(number)
        ready[number] = stamps.now()
        time.sleep(STREAM_SECONDS)
    return ready


def _released(plan: Plan, first: int) -> Instants:
    """A million rows that another worker had claimed are released by one commit."""
    _seed_running(plan.count(1_000_000, least=2000), first)
    _stream_for(0.5)
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH gone AS (DELETE FROM pgjobs_claim)"
            " UPDATE pgjobs_job SET claim_id = NULL, attempt = 0 WHERE claim_id IS NOT NULL AND finished_at IS NULL"
            " AND run_at < statement_timestamp() - interval '1 minute'"
        )
    notifying.notify_queues(on("default"), {("default", 0)}, behind=True)  # as every release of ours does
    return dict.fromkeys(range(first, first + FIRST), stamps.now())


CASES: dict[str, tuple[str, Callable[[Plan, int], Instants]]] = {
    "late_commits": ("commits that come up to 3 s late", _late_commits),
    "equal_instants": ("one run_at, committed before and after it", _equal_instants),
    "set_back_near": ("the clock set back by 50 s", _set_back(50.0)),
    "set_back_far": ("the clock set back by a day", _set_back(86_400.0)),
    "bulk_retry": ("thousands retried at once, the first hundred", _bulk_retry),
    "behind_running": ("behind thousands of running jobs", _behind_running),
    "released": ("a million released at once (times the scale), the first hundred", _released),
}


def _two_workers(plan: Plan, path: str) -> Instants:
    """Short jobs all the time; what the worker that is stopped had taken is the other's."""
    ready: Instants = {}
    seconds = plan.seconds(8.0)
    with (
        workers.working(processes=1, threads=2, stamps=path) as stopped,
        workers.working(processes=1, threads=2, stamps=path, empty=False),
    ):
        began, naps = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            if naps < 2 * passed:
                jobs.nap.register(1.0)
                naps += 1
            number = len(ready)
            jobs.note.register(number)
            ready[number] = stamps.now()
            if passed > seconds / 2 and stopped.process.poll() is None and not stopped.asked:
                stopped.stop()
            time.sleep(STREAM_SECONDS)
        _waits(path, ready)
    return ready


# What is around them


def _beside_a_stream(act: Callable[[Instants, int], None]) -> Instants:
    """Let callers act, each on a connection of its own, while new jobs take the frontier ahead."""
    ready: Instants = {}

    def call(caller: int) -> None:
        try:
            act(ready, caller)
        finally:
            connection.close()

    callers = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for caller in callers:
        caller.start()
    while any(caller.is_alive() for caller in callers):
        _stream_for(STREAM_SECONDS)
    return ready


def _stream_for(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        jobs.noop.register(0)
        time.sleep(STREAM_SECONDS)


def _server_clock() -> datetime:
    clock: datetime = tables.value("SELECT clock_timestamp()")
    return clock


def _seed(count: int, first: int, columns: str, values: str) -> None:
    """Insert so many rows that are due for an hour; the first hundred are noted when they start."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO pgjobs_job (name, payload, timeout_seconds, run_at, {columns})"
            " SELECT 'benchmarks.jobs.' || CASE WHEN n < %s THEN 'note' ELSE 'noop' END,"
            " jsonb_build_object('args', jsonb_build_array(%s + n), 'kwargs', '{}'::jsonb), 1800,"
            f" statement_timestamp() - interval '1 hour' + make_interval(secs => n * 0.0001), {values}"
            " FROM generate_series(0, %s) AS n",
            [FIRST, first, count - 1],
        )


def _seed_running(count: int, first: int) -> None:
    """Insert rows that a worker elsewhere runs: claimed, under a lease that does not end meanwhile."""
    claim_id = tables.value("SELECT gen_random_uuid()::text")
    _seed(count, first, "claim_id, claimed_at, attempt", f"'{claim_id}'::uuid, statement_timestamp(), 1")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgjobs_claim (claim_id, part, worker, lease_expires_at, check_at, job_ids)"
            " SELECT %s::uuid, part, gen_random_uuid(), statement_timestamp() + interval '1 hour',"
            " statement_timestamp() + interval '1 hour', array_agg(id)"
            " FROM (SELECT id, (row_number() OVER (ORDER BY id) - 1) / 200 AS part"
            " FROM pgjobs_job WHERE claim_id = %s::uuid) AS numbered GROUP BY part",
            [claim_id, claim_id],
        )
    tables.vacuum()
