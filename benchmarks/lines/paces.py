"""From the commit of a registration to the first line of the job, at steady paces of one producer and of sixteen."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping

from benchmarks import stamps, workers
from benchmarks.figures import Figure, Result, percentile
from benchmarks.plan import Plan

TITLE = "Pickup latency at steady paces"


def measure(plan: Plan) -> Result:
    """Register at each pace for some seconds, without the first fifth."""
    figures: list[Figure] = []
    for producers, rate in itertools.product(stamps.PRODUCERS, stamps.RATES):
        with workers.stamp_file() as path, workers.working(processes=1, stamps=path):
            waits = kept(_registered(stamps.shared(pace_of(plan, rate), producers)), path)
        label = stamps.name_of(rate, producers)
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            text = f"{label}: commit → first line, {name}"
            figures.append(Figure(f"{name}_{rate}_{producers}", text, percentile(waits, share), "ms"))
    return Result(figures, "direct connections, 1 process; the clock starts when register() has returned")


def pace_of(plan: Plan, rate: int) -> str:
    """Return the pace for ``stamps.paced``: ten seconds, but 20 jobs at least."""
    return f"{max(20, rate * plan.fixed(10, quick=2))}@{rate}"


def kept(returned: Mapping[int, float], path: str) -> list[float]:
    """Return the milliseconds between these instants and the starts that ``path`` has, without the first fifth."""
    for number in returned.keys() - stamps.read(path).keys():
        if stamps.wait_for(path, number, 10) is None:
            raise workers.BenchmarkError("a job did not start")
    started = stamps.read(path)
    later = sorted(returned, key=returned.__getitem__)[len(returned) // 5 :]
    return [(started[number] - returned[number]) * 1000 for number in later]


def _registered(paces: list[str]) -> dict[int, float]:
    """Let a process register at each of these paces; return when each call returned."""
    command = [sys.executable, "-m", "benchmarks.pacer"]
    producers = [
        subprocess.Popen([*command, pace], cwd=workers.ROOT, env=os.environ, stdout=subprocess.PIPE, text=True)
        for pace in paces
    ]
    answers = [json.loads(producer.communicate(timeout=120)[0]) for producer in producers]
    return {int(number): instant for answer in answers for number, instant in answer.items()}
