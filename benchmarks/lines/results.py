"""Results that are worth keeping: what a job costs that returns 150 bytes of JSON instead of a few."""

from __future__ import annotations

from typing import Any

from benchmarks import jobs, tables, workers
from benchmarks.figures import Result, middle
from benchmarks.plan import Plan
from django_pgjobs.jobs import JobDefinition

TITLE = "Results of 150 B"


def measure(plan: Plan) -> Result:
    """Drain in turns jobs that return a number, and jobs that return a text."""
    count = plan.count(200_000, least=2000)
    rates: dict[str, list[float]] = {"few": [], "many": []}
    for _ in range(plan.rounds(3)):
        rates["few"].append(_rate(jobs.noop, count))
        rates["many"].append(_rate(jobs.answer, count))
    size = int(tables.value("SELECT octet_length(result::text) FROM pgjobs_job LIMIT 1"))
    tables.empty()
    shares = [many / few for few, many in zip(rates["few"], rates["many"], strict=True)]
    return Result(
        [
            middle("jobs_many", f"results of {size} B", rates["many"], "jobs/s"),
            middle("jobs_few", "results of a few bytes", rates["few"], "jobs/s"),
            middle("many_of_few", f"results of {size} B ÷ of a few bytes", shares, "×"),
        ],
        f"{count:,} jobs a round, 2 processes",
    )


def _rate(definition: JobDefinition[[int], Any], count: int) -> float:
    with workers.working(processes=2) as worker:
        workers.warm_up(worker)
        definition.register_many([(number,) for number in range(count)])
        return count / workers.drained(worker, count)
