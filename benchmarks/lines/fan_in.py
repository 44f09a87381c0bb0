"""Members of a batch against ordinary jobs, beside a pinned snapshot, and beside a gate that somebody holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection, transaction

from benchmarks import jobs, tables, workers
from benchmarks.figures import Figure, Result, Series, at_least, middle, tenths
from benchmarks.lines.pinned import pin
from benchmarks.plan import Plan
from django_pgjobs import Batch

TITLE = "Members of a batch"
PROCESSES = 2
STUCK = 500
"""Members of the batch whose gate is held: as many ends as one statement writes."""


def measure(plan: Plan) -> Result:
    """Measure in turns: ordinary jobs, members, members while another batch's gate is held; then once pinned."""
    count = plan.count(100_000, least=3000)
    plain: list[float] = []
    members: list[float] = []
    free: list[float] = []
    held: list[float] = []
    for _ in range(plan.rounds(3)):
        plain.append(_plain(count))
        members.append(_members(count)[0])
        free.append(_beside(count, plan, held=False))
        held.append(_beside(count, plan, held=True))
    pinned_count = plan.count(240_000, least=5000)
    with pin(_url(plan)):
        pinned = _members(pinned_count)[1]
    curves: dict[str, Series] = {"snapshot pinned": [(float(n), rate) for n, rate in enumerate(pinned, 1)]}
    figures = [
        middle("members", "members of one batch", members, "jobs/s"),
        middle("of_plain", "members ÷ ordinary jobs", _ratios(members, plain), "×"),
        middle("gate_held", "while the gate of another batch is held ÷ free", _ratios(held, free), "×", at_least(0.9)),
        Figure("last_of_first", "last tenth ÷ first tenth, pinned", pinned[-1] / pinned[0], "×", at_least(0.9)),
        Figure("slowest", "slowest tenth ÷ fastest tenth, pinned", min(pinned) / max(pinned), "×"),
    ]
    note = f"{count:,} members a round, {PROCESSES} processes; {pinned_count:,} of them beside a pinned snapshot"
    return Result(figures, note, curves, {"plain": plain, "free": free, "held": held})


def _ratios(above: list[float], below: list[float]) -> list[float]:
    return [one / other for one, other in zip(above, below, strict=True)]


def _plain(count: int) -> float:
    with _working() as worker:
        tables.register(count)
        return count / workers.drained(worker, count)


def _members(count: int) -> tuple[float, list[float]]:
    """Return the rate of all members and that of each tenth. The batch's own end counts as one of the jobs."""
    with _working() as worker:
        batch = _batch("fan in", count)
        rate = count / workers.drained(worker, count + 1)
        if batch.figures.succeeded != count:
            raise workers.BenchmarkError(f"the gate counts {batch.figures} for {count} members")
        return rate, tenths(tables.span()[0], tables.ends_of_tenths(), count)


def _beside(count: int, plan: Plan, *, held: bool) -> float:
    """Return the rate of a batch behind another, whose gate somebody may hold until the first has ended."""
    with _working() as worker, psycopg.connect(_url(plan)) as other:
        stuck = Batch("stuck")
        with transaction.atomic():
            with stuck:
                stuck.add_many(jobs.noop.bind(number) for number in range(STUCK))
            batch = _batch("fan in", count)
            if held:
                transaction.on_commit(lambda: _hold(other, stuck))
        workers.wait_until(worker, lambda: batch.job.outcome is not None, pause=0.1)
        if held and stuck.figures.pending != STUCK:
            raise workers.BenchmarkError("members had ended before the gate was held")
        other.rollback()
        workers.until_idle(worker)
        seconds = tables.value(
            "SELECT extract(epoch FROM max(finished_at) - min(claimed_at))::float8"
            " FROM pgjobs_job WHERE parent_id = %s",
            batch.job.pk,
        )
        return count / float(seconds)


def _hold(other: psycopg.Connection[tuple[Any, ...]], batch: Batch) -> None:
    other.execute("SELECT FROM pgjobs_gate WHERE job_id = %s FOR UPDATE", [batch.job.pk])


def _batch(label: str, count: int) -> Batch:
    batch = Batch(label)
    with transaction.atomic(), batch:
        batch.add_many(jobs.noop.bind(number) for number in range(count))
    return batch


@contextmanager
def _working() -> Iterator[workers.Worker]:
    with workers.working(processes=PROCESSES) as worker:
        workers.warm_up(worker)
        yield worker


def _url(plan: Plan) -> str:
    return plan.server.url(connection.settings_dict["NAME"])
