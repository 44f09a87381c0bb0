"""Statistics: the leader counts the figures of the queues and stores them, for the admin, the shell and metrics.

It runs in the same thread as pruning, so that no rescue waits for a slow count. If the server cannot count so many jobs
in time, it counts fewer.
"""

from __future__ import annotations

import psycopg

from django_pgjobs.conf import get_conf
from django_pgjobs.inspection import figures
from django_pgjobs.store import statements as store

BOUNDS = (figures.MOST, 1_000, 100)


class Measurer:
    """Counts in the name of a worker. A duty of the leader."""

    def __init__(self, author: store.Author) -> None:
        self.author = author

    def __call__(self, db: store.Database) -> None:
        """Count and store the figures. Repeatable, also by several at once: the last write wins."""
        store.write_statistic(db, _measured(db), worker_name=self.author.name)


def _measured(db: store.Database) -> object:
    conf = get_conf()
    ages = {"silent_seconds": conf.silent_seconds, "stale_seconds": conf.stale_seconds}
    for most in BOUNDS[:-1]:
        try:
            return figures.measure(db, **ages, most=most)
        except psycopg.errors.QueryCanceled:
            continue
    return figures.measure(db, **ages, most=BOUNDS[-1])
