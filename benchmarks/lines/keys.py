"""As many keys as jobs: what a key costs where every job has one of its own."""

from __future__ import annotations

import time
from typing import Any

from benchmarks import jobs, tables, workers
from benchmarks.figures import Figure, Result
from benchmarks.plan import Plan
from django_pgjobs.jobs import JobDefinition

TITLE = "A million distinct keys"
CHUNK = 20_000


def measure(plan: Plan) -> Result:
    """Register and drain jobs that each have a key, and fewer that have none; then register keys that are taken."""
    count = plan.count(1_000_000, least=2000)
    registered, drained = _run(jobs.keyed, count)
    taken = _register(jobs.keyed, min(count, CHUNK), again=True)
    plain_registered, plain_drained = _run(jobs.noop, plan.count(200_000, least=2000))
    tables.empty()
    return Result(
        [
            Figure("register", f"register_many, {count:,} distinct keys", registered, "jobs/s"),
            Figure("register_of_plain", "register_many, with keys ÷ without", registered / plain_registered, "×"),
            Figure("taken", "register_many, every key taken", taken, "jobs/s"),
            Figure("drain", f"drain, {count:,} distinct keys", drained, "jobs/s"),
            Figure("drain_of_plain", "drain, with keys ÷ without", drained / plain_drained, "×"),
        ],
        f"{count:,} jobs, {CHUNK:,} a call; the default scope, until the job has finished",
    )


def _run(definition: JobDefinition[[int], Any], count: int) -> tuple[float, float]:
    """Return the jobs a second of registering so many, and of draining them."""
    tables.empty()
    registered = _register(definition, count)
    tables.vacuum()
    with workers.working(processes=2, empty=False) as worker:
        return registered, count / workers.drained(worker, count)


def _register(definition: JobDefinition[[int], Any], count: int, *, again: bool = False) -> float:
    """Register; with ``again`` the same once before, which is not timed, so that every key is taken."""
    chunks = [range(begin, min(begin + CHUNK, count)) for begin in range(0, count, CHUNK)]
    if again:
        for chunk in chunks:
            definition.register_many([(number,) for number in chunk])
    began = time.perf_counter()
    for chunk in chunks:
        definition.register_many([(number,) for number in chunk])
    return count / (time.perf_counter() - began)
