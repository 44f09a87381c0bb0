"""Jobs that send statements of their own: what a job costs that reads, on the loop too, or writes, or inserts a row."""

from __future__ import annotations

from typing import Any

from django.db import connection

from benchmarks import jobs, tables, workers
from benchmarks.figures import Result, middle
from benchmarks.plan import Plan
from django_pgjobs.jobs import JobDefinition

TITLE = "Jobs with one statement"
JOBS: dict[str, JobDefinition[[int], Any]] = {
    "none": jobs.noop,
    "read": jobs.reads,
    "async_read": jobs.areads,
    "write": jobs.writes,
    "insert": jobs.inserts,
}
THINGS = 1000


def measure(plan: Plan) -> Result:
    """Drain in turns jobs that send no statement of their own, and jobs that send one."""
    thing = jobs.things().model
    if thing._meta.db_table not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(thing)
    count = plan.count(30_000, least=2000)
    rates: dict[str, list[float]] = {kind: [] for kind in JOBS}
    for _ in range(plan.rounds(3)):
        for kind in JOBS:
            jobs.things().all().delete()
            jobs.things().bulk_create(thing(pk=number, name=f"thing {number}") for number in range(THINGS))
            rates[kind].append(_rate(kind, count))
    tables.empty()
    figures = [middle(f"jobs_{kind}", f"statements of its own: {kind}", rates[kind], "jobs/s") for kind in JOBS]
    return Result(figures, f"{count:,} jobs a round, 2 processes")


def _rate(kind: str, count: int) -> float:
    with workers.working(processes=2) as worker:
        workers.warm_up(worker)
        JOBS[kind].register_many([(number % THINGS,) for number in range(count)])
        return count / workers.drained(worker, count)
