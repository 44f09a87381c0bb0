"""Jobs in thousands of queues against as many in one, and what a job of another queue waits meanwhile."""

from __future__ import annotations

import time
from statistics import median

from django.db import connection

from benchmarks import jobs, tables, workers
from benchmarks.figures import Figure, Result
from benchmarks.plan import Plan

TITLE = "Many queues"
NUMBERS = (1_000, 10_000, 20_000, 50_000)
COUNT = 250_000
OTHER = "other"


def measure(plan: Plan) -> Result:
    """Drain the same number of jobs, in one queue and in so many; register into another meanwhile."""
    count = plan.count(COUNT, least=500)
    one, _ = _run(count, 1)
    figures = [Figure("one", f"{count:,} jobs in one queue", one, "jobs/s")]
    for number in NUMBERS:
        queues = plan.count(number, least=100)
        rate, waits = _run(count, queues)
        figures += [
            Figure(f"many_{number}", f"as many in {queues:,} queues", rate, "jobs/s"),
            Figure(f"of_one_{number}", f"{queues:,} queues ÷ one", rate / one, "×"),
            Figure(f"waits_{number}", "a job of another queue meanwhile waits, median", median(waits), "ms"),
            Figure(f"most_{number}", "a job of another queue meanwhile waits, longest", max(waits), "ms"),
        ]
    return Result(figures, "two processes; the other queue gets a job each 50 ms")


def _run(count: int, queues: int) -> tuple[float, list[float]]:
    """Return the jobs a second, and the milliseconds that each job of the other queue waited."""
    with workers.working(processes=2) as worker:
        tables.seed(count, queues=queues)
        others = 0
        while tables.finished() < count:
            jobs.noop.using(queue=OTHER).register(others)
            others += 1
            time.sleep(0.05)
            if worker.process.poll() is not None:
                raise workers.BenchmarkError("the worker has ended")
        seconds = workers.drained(worker, count + others)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1000 * extract(epoch FROM claimed_at - created_at)::float8 FROM pgjobs_job WHERE queue = %s",
            [OTHER],
        )
        return (count + others) / seconds, [row[0] for row in cursor.fetchall()]
