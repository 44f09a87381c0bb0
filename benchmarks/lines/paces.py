"""From the commit of a registration to the first line of the job, at steady paces of one producer."""

from __future__ import annotations

from benchmarks import jobs, stamps, workers
from benchmarks.figures import Figure, Result, percentile
from benchmarks.plan import Plan

TITLE = "Pickup latency at steady paces"


def measure(plan: Plan) -> Result:
    """Register at each pace for some seconds, without the first fifth."""
    figures: list[Figure] = []
    for rate in stamps.RATES:
        with workers.stamp_file() as path, workers.working(processes=1, stamps=path):
            waits = kept([_register(number) for number in stamps.paced(pace_of(plan, rate))], path)
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            figures.append(
                Figure(f"{name}_{rate}", f"{rate}/s: commit → first line, {name}", percentile(waits, share), "ms")
            )
    return Result(figures, "1 producer, direct connection, 1 process; the clock starts when register() has returned")


def pace_of(plan: Plan, rate: int) -> str:
    """Return the pace for ``stamps.paced``: ten seconds, but 12 jobs at least."""
    return f"{max(12, rate * plan.fixed(10, quick=2))}@{rate}"


def kept(returned: list[float], path: str) -> list[float]:
    """Return the milliseconds between these instants and the starts that ``path`` has, without the first fifth."""
    if stamps.wait_for(path, len(returned) - 1, 10) is None:
        raise workers.BenchmarkError("a job did not start")
    started = stamps.read(path)
    return [(started[number] - at) * 1000 for number, at in enumerate(returned) if number >= len(returned) // 5]


def _register(number: int) -> float:
    jobs.note.register(number)
    return stamps.now()
