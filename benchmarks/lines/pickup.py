"""From the commit of a registration to the first line of the job, on a worker that has nothing else to do."""

from __future__ import annotations

import random
import time

from benchmarks import jobs, stamps, workers
from benchmarks.figures import Figure, Result, Series, percentile
from benchmarks.plan import Plan

TITLE = "Pickup latency, idle worker"
WARM_UP = 20


def measure(plan: Plan) -> Result:
    """Register one job at a time, with a pause between that no period of anybody fits."""
    count = plan.fixed(1000, quick=60)
    with workers.stamp_file() as path, workers.working(processes=1, stamps=path):
        returned = [_register(number) for number in range(count + WARM_UP)]
        if stamps.wait_for(path, count + WARM_UP - 1, 10) is None:
            raise workers.BenchmarkError("a job did not start")
        started = stamps.read(path)
    waits = [(started[number] - returned[number]) * 1000 for number in range(WARM_UP, count + WARM_UP)]
    return Result(
        [
            Figure("p50", "commit → first line of the job, p50", percentile(waits, 0.5), "ms"),
            Figure("p99", "commit → first line of the job, p99", percentile(waits, 0.99), "ms"),
            Figure("longest", "the longest", max(waits), "ms"),
        ],
        f"{count} jobs, direct connection, 1 process; the clock starts when register() has returned",
        {"milliseconds by share": distribution(waits)},
    )


def distribution(waits: list[float]) -> Series:
    """Return (share in percent, wait) for a plot."""
    return [(share, percentile(waits, share / 100)) for share in (1, 5, 10, 25, 50, 75, 90, 95, 99, 100)]


def _register(number: int) -> float:
    time.sleep(0.02 + random.random() * 0.03)
    jobs.note.register(number)
    return stamps.now()
