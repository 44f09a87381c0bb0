"""No-op jobs end to end with real processes, against the SQL that they cannot do without."""

from __future__ import annotations

from benchmarks import ceiling, tables, workers
from benchmarks.figures import Result, at_least, middle
from benchmarks.plan import Plan

TITLE = "Drain of no-op jobs"
PROCESSES = (1, 2)
JOBS = 200_000


def drain(processes: int, count: int) -> tuple[float, dict[str, float]]:
    """Return jobs a second of one drain with a worker of so many processes, and what it cost."""
    with workers.working(processes=processes) as worker:
        workers.warm_up(worker)
        tables.register(count)
        rate = count / workers.drained(worker, count)
    return rate, worker.costs


def measure(plan: Plan) -> Result:
    """Measure in turns: the worker with one and two processes, then the ceiling."""
    count = plan.count(JOBS, least=2000)
    rates: dict[int, list[float]] = {number: [] for number in PROCESSES}
    ceilings: list[float] = []
    costs: list[dict[str, float]] = []
    for _ in range(plan.rounds(3)):
        for number in PROCESSES:
            rate, cost = drain(number, count)
            rates[number].append(rate)
            costs.append({"processes": number, **cost})
        tables.empty()
        tables.register(count)
        ceilings.append(count / ceiling.drain([("default", 0)]))
    best = max(PROCESSES, key=lambda number: sorted(rates[number])[len(rates[number]) // 2])
    shares = [rate / top for rate, top in zip(rates[best], ceilings, strict=True)]
    figures = [
        middle(f"jobs_{number}", f"runjobs --processes {number}", rates[number], "jobs/s") for number in PROCESSES
    ]
    figures += [
        middle("ceiling", "claim + finalise alone: 2 connections, batch 500, no Python work", ceilings, "jobs/s"),
        middle("of_ceiling", f"our drain ({best} processes) ÷ ceiling", shares, "×", at_least(0.4)),
    ]
    return Result(figures, f"{count:,} jobs a round; default durability, history kept", raw={"costs": costs})
