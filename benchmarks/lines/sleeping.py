"""Jobs that only wait: how near to what the slots allow at best."""

from __future__ import annotations

from typing import Any

from benchmarks import jobs, tables, workers
from benchmarks.figures import Result, at_most, middle
from benchmarks.plan import Plan
from django_pgjobs.jobs import JobDefinition

TITLE = "Jobs that sleep"
JOBS = 200
SLOTS = 20
SECONDS = 0.05


def measure(plan: Plan) -> Result:
    """Run 200 jobs of 50 ms in 20 slots: threads, then coroutines."""
    ideal = JOBS / SLOTS * SECONDS
    rounds = plan.rounds(5)
    threads = [seconds / ideal for seconds in _run(jobs.nap, rounds, processes=2, threads=SLOTS // 2)]
    coroutines = [seconds / ideal for seconds in _run(jobs.async_nap, rounds, processes=1, async_slots=SLOTS)]
    return Result(
        [
            middle("threads", f"{JOBS} × 50 ms in {SLOTS} threads ÷ ideal", threads, "×", at_most(1.15)),
            middle("coroutines", f"{JOBS} × 50 ms in {SLOTS} coroutines ÷ ideal", coroutines, "×"),
        ],
        f"ideal is {ideal:g} s; 2 processes with 10 threads, 1 process with 20 async slots",
    )


def _run(nap: JobDefinition[[float], Any], rounds: int, **options: Any) -> list[float]:
    seconds = []
    with workers.working(**options) as worker:
        for _ in range(rounds):
            nap.register_many([(SECONDS,)] * JOBS)
            seconds.append(workers.drained(worker, JOBS))
            tables.clear_jobs()
    return seconds
