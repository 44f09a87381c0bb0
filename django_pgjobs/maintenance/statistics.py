"""Statistics: the leader counts the figures of the queues and stores them, for the admin, the shell and metrics.

It runs in the same thread as pruning, so that no rescue waits for a slow count. If the server cannot count so many jobs
in time, it counts fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from operator import itemgetter
from typing import Any

import psycopg
from django.db import DatabaseError

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.diagnosis import health
from django_pgjobs.diagnosis.problem import HealthProblem, Limits
from django_pgjobs.inspection import figures
from django_pgjobs.maintenance.numbers import totals
from django_pgjobs.store import counting, numbers, vacuuming
from django_pgjobs.store.database import Database, Enclosing, on
from django_pgjobs.store.finalising import Author

IDLE_SECONDS = 30.0
"""The pause after figures that are the same as those before."""

BOUNDS = (figures.MOST, 1_000, 100)

MOST_PROBLEMS = 50

MOST_QUEUES = 100
"""Number of queues whose depth is kept: those where most is due."""


class Measurer:
    """Counts in the name of a worker; ``find`` returns the problems there are now. A duty of the leader."""

    def __init__(self, author: Author, find: Callable[[Any], list[HealthProblem]] | None = None) -> None:
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
