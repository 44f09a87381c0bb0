"""One ``register()`` a commit against a bare INSERT of the same row, in turns, by one producer and by four."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks import tables, workers
from benchmarks.figures import Result, at_least, middle
from benchmarks.plan import Plan

TITLE = "register(), one commit each"
PRODUCERS = (1, 4)

Producer = subprocess.Popen[str]


def measure(plan: Plan) -> Result:
    """Let so many processes insert by turns in both ways; a round's rate is that of all together."""
    figures = []
    singles = plan.fixed(400, quick=100)
    for number in PRODUCERS:
        tables.empty()
        producers = [start() for _ in range(number)]
        try:
            together(producers, "bare", 50)
            together(producers, "register", 50)
            ours: list[float] = []
            bare: list[float] = []
            for turn in range(plan.rounds(9)):
                for way in ("bare", "register") if turn % 2 else ("register", "bare"):
                    rate = number * singles / together(producers, way, singles)
                    (ours if way == "register" else bare).append(rate)
        finally:
            for producer in producers:
                producer.communicate("", timeout=30)
        ratios = [rate / plain for rate, plain in zip(ours, bare, strict=True)]
        who = "1 producer" if number == 1 else f"{number} producers"
        figures += [
            middle(f"register_{number}", f"register(), {who}", ours, "jobs/s"),
            middle(f"insert_{number}", f"bare INSERT, {who}", bare, "jobs/s"),
            middle(f"of_insert_{number}", f"register() ÷ bare INSERT, {who}", ratios, "×", at_least(0.85)),
        ]
    return Result(figures, "autocommit, NOTIFY included; interleaved rounds")


def start(**environment: str) -> Producer:
    """Start a process that registers on command; ``environment`` is added to its own, for ``benchmarks.settings``."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.producer"],
        cwd=workers.ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def together(producers: list[Producer], way: str, times: int) -> float:
    """Tell all to begin and return the seconds until the last was done."""
    for producer in producers:
        assert producer.stdin is not None
        producer.stdin.write(f"{way} {times}\n")
        producer.stdin.flush()
    seconds = []
    for producer in producers:
        assert producer.stdout is not None
        answer = producer.stdout.readline()
        if not answer:
            raise workers.BenchmarkError("a producer has ended")
        seconds.append(float(answer))
    return max(seconds)
