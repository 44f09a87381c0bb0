"""What a job costs the server: statements and WAL."""

from __future__ import annotations

from benchmarks import jobs, tables, workers
from benchmarks.figures import Figure, Result, at_most
from benchmarks.plan import Plan

TITLE = "Cost per job at full speed"
TEXT = "x" * 122
"""Makes a payload of 150 bytes."""


def measure(plan: Plan) -> Result:
    """Register and drain jobs with a payload of 150 bytes."""
    count = plan.count(200_000, least=5000)
    with workers.working(processes=2) as worker:
        plan.server.settle()
        before = plan.server.wal_bytes()
        jobs.carry.register_many([(TEXT,)] * count)
        registered = plan.server.wal_bytes()
        workers.drained(worker, count)
        ended = plan.server.wal_bytes()
        size = int(tables.value("SELECT octet_length(payload::text) FROM pgjobs_job LIMIT 1"))
    costs = worker.costs
    kib = 1024 * count
    return Result(
        [
            Figure("statements", "SQL statements", costs["statements"] / count, "a job", at_most(0.02)),
            Figure("wal", "WAL, registration included", (ended - before) / kib, "KiB", at_most(1.75)),
            Figure("wal_registering", "WAL of the registration alone", (registered - before) / kib, "KiB"),
            Figure("cpu_supervisor", "CPU of the supervisor", costs["cpu_supervisor"] / count * 1e6, "µs"),
            Figure("cpu_executors", "CPU of the executors", costs["cpu_executors"] / count * 1e6, "µs"),
        ],
        f"{count:,} jobs with {size} B of payload; a worker's start and end, and all the server's WAL, count in",
    )
