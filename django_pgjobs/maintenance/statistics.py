"""Statistics: the leader counts the figures of the queues and stores them, for the admin, the shell and metrics.

It runs in the same thread as pruning, so that no rescue waits for a slow count. If the server cannot count so many jobs
in time, it counts fewer.

It adds up the workers' minutes, too, then minutes to hours, and prunes them. A worker may still write a minute for a
while after it is over, so its rows are taken some minutes later. What was taken is added in the same transaction: to
the fleet's minute, to the trend's, which tells no queue and no name apart so that charts read few rows, and to the
totals that only grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from django.db import DatabaseError

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.diagnosis import health
from django_pgjobs.diagnosis.problem import HealthProblem, Limits
from django_pgjobs.inspection import figures
from django_pgjobs.states import FLEET, TREND
from django_pgjobs.store import counting, numbers, vacuuming
from django_pgjobs.store.database import Database, Enclosing, on
from django_pgjobs.store.finalising import Author
from django_pgjobs.store.numbers import AttemptFigures, MinuteFigures
from django_pgjobs.values.histogram import added

IDLE_SECONDS = 30.0
"""The pause after figures that are the same as those before."""

BOUNDS = (figures.MOST, 1_000, 100)

MOST_PROBLEMS = 50

MOST_QUEUES = 100
"""Number of queues whose depth is kept: those where most is due."""


class Measurer:
    """Counts in the name of a worker; ``find`` returns the problems there are now. A duty of the leader."""

    def __init__(self, author: Author, find: Callable[[object], list[HealthProblem]] | None = None) -> None:
        self.author = author
        self.find = find
        self.rest_until = 0.0
        self.before: object = None

    def __call__(self, db: Enclosing) -> None:
        """Count and store the figures. Repeatable, also by several at once: the last write wins."""
        found, problems = _measured(db), self._problems(db)
        if (known := (found, problems)) == self.before:
            self.rest_until = clock.monotonic() + IDLE_SECONDS
        self.before = known
        with db.transaction():
            more = {"totals": _totals(db), "server": _server(db), "problems": problems}
            counting.write_statistic(db, {**found, **more}, worker_name=self.author.name)
            if depths := _depths(found):
                numbers.write_depths(db, depths)

    def _problems(self, db: Database) -> list[list[object]] | None:
        """Return the problems, so that pages show them without looking for them; None if that took too long."""
        if self.find is None:
            return None
        try:
            return [[*astuple(problem)] for problem in self.find(db)[:MOST_PROBLEMS]]
        except DatabaseError:
            return None


def problems_of(db: Any) -> list[HealthProblem]:
    """Return what keeps jobs from running now."""
    with db.orm() as using:
        return health.problems(on(using), using, Limits(most=figures.MOST))


def _measured(db: Enclosing) -> dict[str, object]:
    for most in BOUNDS[:-1]:
        try:
            return _measure(db, most)
        except psycopg.errors.QueryCanceled:
            continue
    return _measure(db, BOUNDS[-1])


def _measure(db: Enclosing, most: int) -> dict[str, object]:
    conf = get_conf()
    with db.transaction():
        return figures.measure(db, silent_seconds=conf.silent_seconds, stale_seconds=conf.stale_seconds, most=most)


def _totals(db: Database) -> list[Any]:
    """Return what the fleet has ended since the tables were made, for metrics that need no query of their own."""
    return sorted(totals(numbers.read_totals(db)))


def _server(db: Database) -> dict[str, object]:
    """Return what the server says of our tables and of its notifications."""
    rows = {table: dead for table in vacuuming.VACUUMS if (dead := vacuuming.read_dead(db, table)) is not None}
    return {
        "notification_queue": counting.read_notification_queue(db),
        "rows": {table: {"dead": found.dead, "alive": max(found.alive, 0.0)} for table, found in rows.items()},
    }


def _depths(found: dict[str, Any]) -> list[dict[str, object]]:
    queues = [
        {
            "queue": each["queue"],
            "ready": each["ready"],
            "scheduled": each["scheduled"],
            "running": each["running"],
            "held": sum(each["held"].values()),
            "oldest_seconds": each["oldest_ready_seconds"],
        }
        for each in found["queues"]
    ]
    return sorted(queues, key=itemgetter("ready"), reverse=True)[:MOST_QUEUES]


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
