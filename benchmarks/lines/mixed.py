"""Short jobs between long ones: nobody waits long while a slot is free."""

from __future__ import annotations

import time

from benchmarks import jobs, stamps, workers
from benchmarks.figures import Figure, Result, at_most, percentile
from benchmarks.plan import Plan

TITLE = "Jobs of 1 µs among jobs of 1 s"
SLOTS = 8
LONG_SECONDS = 1.0


def measure(plan: Plan) -> Result:
    """Keep about half of the slots busy with long jobs and register short ones all the time."""
    seconds = plan.seconds(15.0)
    with workers.stamp_file() as path, workers.working(processes=2, threads=SLOTS // 2, stamps=path) as worker:
        returned = _feed(seconds)
        workers.until_idle(worker)
        started = stamps.read(path)
    if missing := returned.keys() - started.keys():
        raise workers.BenchmarkError(f"{len(missing)} short jobs did not start")
    waits = [(started[number] - instant) * 1000 for number, instant in returned.items()]
    return Result(
        [
            Figure("p50", "a short job waits, p50", percentile(waits, 0.5), "ms"),
            Figure("p99", "a short job waits, p99", percentile(waits, 0.99), "ms"),
            Figure("longest", "the longest of all", max(waits), "ms", at_most(1000.0)),
        ],
        f"{len(waits)} short jobs in {seconds:g} s; {SLOTS} slots, 4 jobs of 1 s a second",
    )


def _feed(seconds: float) -> dict[int, float]:
    returned: dict[int, float] = {}
    began, long_ones = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        if long_ones < passed * SLOTS / 2:
            jobs.nap.register(LONG_SECONDS)
            long_ones += 1
        number = len(returned)
        jobs.note.register(number)
        returned[number] = stamps.now()
        time.sleep(0.005)
    return returned
