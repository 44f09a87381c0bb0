"""Payloads as big as they may be."""

from __future__ import annotations

import secrets

from benchmarks import jobs, tables, workers
from benchmarks.figures import Figure, Result
from benchmarks.plan import Plan

TITLE = "Payloads near the limit"
SIZES = {"60 KiB": 60 * 1024, "1 MiB": 1024 * 1024 - 100}
CHUNK = 50


def measure(plan: Plan) -> Result:
    """Drain as many megabytes of each size; texts that do not compress."""
    figures = []
    for label, size in SIZES.items():
        count = max(20, round(plan.scale * 200 * 2**20 / size))
        with workers.working(processes=2, weigh=0.02) as worker:
            for start in range(0, count, CHUNK):
                text = secrets.token_hex(size // 2)[: size - 30]
                jobs.carry.register_many([(text,)] * min(CHUNK, count - start))
            seconds = workers.drained(worker, count)
        peak = max(held for _, held in worker.memory)
        name = label.replace(" ", "").lower()
        figures += [
            Figure(f"jobs_{name}", f"payloads of {label}", count / seconds, "jobs/s"),
            Figure(f"peak_{name}", f"most that the supervisor held, {label}", peak, "MiB"),
        ]
    tables.empty()
    return Result(figures, "texts that do not compress; jobs start while others are registered")
