"""A queue that is drained while somebody left a transaction open: no dead row can be removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import connection

from benchmarks import tables, workers
from benchmarks.figures import Figure, Result, Series, at_least, tenths
from benchmarks.plan import Plan

TITLE = "Oldest snapshot pinned"


def measure(plan: Plan) -> Result:
    """Drain once free and once pinned."""
    count = plan.count(240_000, least=5000)
    free = _rates(count)
    with pin(plan.server.url(connection.settings_dict["NAME"])):
        pinned = _rates(count)
    curves: dict[str, Series] = {
        name: [(float(n), rate) for n, rate in enumerate(rates, 1)]
        for name, rates in (("nobody in the way", free), ("snapshot pinned", pinned))
    }
    figures = [
        Figure("last_of_first", "last tenth ÷ first tenth, pinned", pinned[-1] / pinned[0], "×", at_least(0.9)),
        Figure("slowest", "slowest tenth ÷ fastest tenth, pinned", min(pinned) / max(pinned), "×"),
        Figure("last_of_first_free", "last tenth ÷ first tenth, nobody in the way", free[-1] / free[0], "×"),
        Figure("pinned_of_free", "all of it, pinned ÷ free", _time(free) / _time(pinned), "×"),
    ]
    return Result(figures, f"{count:,} jobs, REPEATABLE READ transaction open all the time", curves)


def _time(rates: list[float]) -> float:
    return sum(1 / rate for rate in rates)


def _rates(count: int) -> list[float]:
    with workers.working(processes=2) as worker:
        workers.warm_up(worker)
        tables.register(count)
        workers.drained(worker, count)
        return tenths(tables.span()[0], tables.ends_of_tenths(), count)


@contextmanager
def pin(url: str) -> Iterator[None]:
    """Hold a snapshot in the database of ``url``."""
    other = psycopg.connect(url)
    try:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT count(*) FROM django_migrations")
        yield
    finally:
        other.close()
