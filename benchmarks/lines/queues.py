"""Thousands of queues with a few jobs each, against as many jobs in one."""

from __future__ import annotations

from benchmarks import tables, workers
from benchmarks.figures import Figure, Result
from benchmarks.plan import Plan

TITLE = "Many queues"


def measure(plan: Plan) -> Result:
    """Drain the same number of jobs, in 10,000 queues and in one."""
    queues = plan.count(10_000, least=100)
    count = queues * 5
    many, one = _run(count, queues), _run(count, 1)
    return Result(
        [
            Figure("many", f"{count:,} jobs in {queues:,} queues", many, "jobs/s"),
            Figure("one", f"{count:,} jobs in one queue", one, "jobs/s"),
            Figure("many_of_one", "many queues ÷ one", many / one, "×"),
        ]
    )


def _run(count: int, queues: int) -> float:
    with workers.working(processes=2) as worker:
        tables.seed(count, queues=queues)
        return count / workers.drained(worker, count)
