"""The leader's part in the numbers over time: it adds up the workers' minutes, then minutes to hours, and prunes them.

A worker may still write a minute for a while after it is over, so its rows are taken some minutes later. What was
taken is added in the same transaction: to the fleet's minute, to the trend's, which tells no queue and no name apart so
that charts read few rows, and to the totals that only grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar
from uuid import UUID

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.states import FLEET, TREND
from django_pgjobs.store import numbers
from django_pgjobs.store.database import Enclosing
from django_pgjobs.store.numbers import AttemptFigures, MinuteFigures
from django_pgjobs.values.histogram import added

MERGE_SECONDS = 600.0
"""Time after its beginning at which the minute of a worker is added to the fleet's."""

BATCH = 2000
TURN_SECONDS = 1.0
FOLD_SECONDS = 600.0
"""Interval at which minutes are folded to hours, and old hours deleted."""


class NumbersKeeper:
    """Adds up and prunes; calls ``may`` before every batch to ask whether to continue. A duty of the leader."""

    def __init__(self, may: Callable[[], bool] = lambda: True) -> None:
        self.may = may
        self.fold_at = 0.0

    def __call__(self, db: Enclosing) -> int:
        """Take a turn, and return how many rows it took. Repeatable, also by several at once."""
        until = clock.monotonic() + TURN_SECONDS
        taken = self._take(db, until, hourly=None, seconds=MERGE_SECONDS)
        if clock.monotonic() >= self.fold_at:
            retention = get_conf().retention
            by_minute = max(retention.numbers_by_minute, 2 * MERGE_SECONDS)
            for whose in (FLEET, TREND):
                taken += self._take(db, until, hourly=whose, seconds=by_minute)
            taken += numbers.fold_depths(db, seconds=by_minute)
            taken += numbers.delete_minutes(db, seconds=max(retention.numbers, by_minute))
            self.fold_at = clock.monotonic() + FOLD_SECONDS
        return taken

    def _take(self, db: Enclosing, until: float, *, hourly: UUID | None, seconds: float) -> int:
        total = 0
        while self.may():
            taken = _move(db, hourly=hourly, seconds=seconds)
            total += taken
            if taken < BATCH or clock.monotonic() >= until:
                break
        return total


def _move(db: Enclosing, *, hourly: UUID | None, seconds: float) -> int:
    with db.transaction():
        rows = numbers.take_minutes(db, hourly=hourly, seconds=seconds, limit=BATCH)
        if not rows:
            return 0
        sums: dict[tuple[str, ...], MinuteFigures] = {}
        for row in rows:
            _add(sums, row[:5], row)
        numbers.add_minutes(db, list(sums.values()), whose=FLEET if hourly is None else hourly)
        if hourly is None:
            numbers.add_minutes(db, _trend(rows), whose=TREND)
            numbers.add_totals(db, totals(_timeless(row) for row in rows))
    return len(rows)


def totals(rows: Iterable[AttemptFigures]) -> list[AttemptFigures]:
    """Return the sums of rows of one queue, name and outcome."""
    sums: dict[tuple[str, ...], AttemptFigures] = {}
    for row in rows:
        _add(sums, row[:3], row)
    return list(sums.values())


def _trend(rows: Iterable[MinuteFigures]) -> list[MinuteFigures]:
    sums: dict[tuple[str, ...], MinuteFigures] = {}
    for row in rows:
        anonymous = row._replace(queue="", name="")
        _add(sums, anonymous[:5], anonymous)
    return list(sums.values())


def _timeless(row: MinuteFigures) -> AttemptFigures:
    return AttemptFigures(row.queue, row.name, row.outcome, *row[5:])


Row = TypeVar("Row", AttemptFigures, MinuteFigures)


def _add(sums: dict[tuple[str, ...], Row], key: tuple[str, ...], row: Row) -> None:
    known = sums.get(key)
    if known is None:
        sums[key] = row
        return
    sums[key] = row._replace(
        jobs=known.jobs + row.jobs,
        run_seconds=known.run_seconds + row.run_seconds,
        wait_seconds=known.wait_seconds + row.wait_seconds,
        run_histogram=added(known.run_histogram, row.run_histogram),
        wait_histogram=added(known.wait_histogram, row.wait_histogram),
    )
