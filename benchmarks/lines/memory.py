"""Whether the supervisor holds more the more jobs it has seen."""

from __future__ import annotations

import time

from benchmarks import tables, workers
from benchmarks.figures import Figure, Result, at_most
from benchmarks.plan import Plan

TITLE = "Memory of the supervisor"


def measure(plan: Plan) -> Result:
    """Drain a million jobs and look at each tenth."""
    count = plan.count(1_000_000, least=5000)
    with workers.working(processes=2, weigh=0.02 if plan.scale < 0.1 else 0.1) as worker:
        ahead = float(tables.value("SELECT extract(epoch FROM clock_timestamp())")) - time.time()
        workers.warm_up(worker)
        tables.seed(count)
        workers.drained(worker, count)
        ends = tables.ends_of_tenths()
    held = [_at(worker.memory, end - ahead) for end in ends]
    tables.empty()
    return Result(
        [
            Figure("first", "at the first tenth", held[0], "MiB"),
            Figure("last", "at the last tenth", held[-1], "MiB"),
            Figure("last_of_first", "last tenth ÷ first tenth", held[-1] / held[0], "×", at_most(1.1)),
        ],
        f"{count:,} jobs",
        {"MiB held": [(float(n), held[n - 1]) for n in range(1, 11)]},
    )


def _at(memory: list[tuple[float, float]], instant: float) -> float:
    """Return what was held at an instant: the last that was noted before it, or the first of all."""
    return next((held for noted, held in reversed(memory) if noted <= instant), memory[0][1])
