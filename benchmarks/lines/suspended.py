"""Durable functions that sleep or wait for an event: what they cost an idle worker and its server."""

from __future__ import annotations

import time
from typing import LiteralString, NamedTuple

from django.db import connection

from benchmarks import jobs, tables, workers
from benchmarks.figures import Figure, Result, at_most
from benchmarks.plan import Plan

TITLE = "Durable functions that sleep and wait"
WINDOW_SECONDS = 60.0
REST_SECONDS = 30.0
"""Before each window: what the worker does after a load, such as vacuums, is over, and all sessions have reported."""

QUIET = "SELECT count(*) FROM pgjobs_memo WHERE finished_at IS NULL AND wake_at > now() + interval '1 hour'"
COUNTERS: tuple[LiteralString, ...] = (
    "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s",
    "SELECT active_time FROM pg_stat_database WHERE datname = %s",
    "SELECT tup_returned FROM pg_stat_database WHERE datname = %s",
)
LEASES = "SELECT count(*) FROM pgjobs_claim"


class Idle(NamedTuple):
    """What an idle worker cost the server in a second: transactions, statements' time, rows read by scans."""

    transactions: float
    milliseconds: float
    rows: float


def measure(plan: Plan) -> Result:
    """Watch an idle worker with no job at all, then with half of them asleep and half of them waiting."""
    each, seconds = plan.count(10_000), plan.seconds(WINDOW_SECONDS)
    with workers.working(processes=2) as worker:
        workers.warm_up(worker)
        before = _watched(plan, seconds)
        began = time.perf_counter()
        jobs.dozes.register_many([(number,) for number in range(each)])
        jobs.waits.register_many([(number,) for number in range(each)])
        workers.wait_until(worker, lambda: tables.value(QUIET) == 2 * each, what="has not suspended all", pause=0.2)
        rate = 2 * each / (time.perf_counter() - began)
        workers.wait_until(worker, lambda: not tables.value(LEASES), what="still has leases")
        after = _watched(plan, seconds)
        leases, asleep = tables.value(LEASES), tables.value(QUIET)
    if asleep != 2 * each:
        raise workers.BenchmarkError(f"{2 * each - asleep} jobs went on although nobody woke them")
    return Result(
        [
            Figure("transactions_ratio", "transactions of an idle worker, with ÷ without them",
                   after.transactions / before.transactions, "×", at_most(1.1)),
            Figure("transactions", "transactions of an idle worker with them", after.transactions, "a second"),
            Figure("transactions_without", "without them", before.transactions, "a second"),
            Figure("busy", "time of its statements with them", after.milliseconds, "ms a second"),
            Figure("busy_without", "without them", before.milliseconds, "ms a second"),
            Figure("rows", "rows that its scans return with them", after.rows, "a second"),
            Figure("rows_without", "without them", before.rows, "a second"),
            Figure("leases", "leases that they hold", float(leases), "", at_most(0)),
            Figure("suspended", "registered, run and suspended", rate, "jobs/s"),
        ],
        f"{each:,} jobs that sleep, {each:,} that wait for an event each; {seconds:g} s without and with them",
    )  # fmt: skip


def _watched(plan: Plan, seconds: float) -> Idle:
    """Return what the server does for this database while nobody but the worker uses it."""
    plan.server.settle()
    time.sleep(plan.seconds(REST_SECONDS))
    first = _counters(plan)
    time.sleep(seconds)
    last = _counters(plan)
    return Idle(*((b - a) / (last[0] - first[0]) for a, b in zip(first[1:], last[1:], strict=True)))


def _counters(plan: Plan) -> tuple[float, float, float, float]:
    """Read the server's counters through another database, so that reading counts for none."""
    name = connection.settings_dict["NAME"]
    connection.close()
    transactions, milliseconds, rows = (float(plan.server.value(each, name)) for each in COUNTERS)
    return time.monotonic(), transactions, milliseconds, rows
