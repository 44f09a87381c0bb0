"""VACUUM our tables, and read the statistics that say when it is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from django_pgjobs.store.database import Database


class Dead(NamedTuple):
    """The dead and live rows of a table, by the server's statistics, and whether this role may VACUUM it.

    ``vacuums``: how many were done, except by autovacuum; skipped ones do not count.
    """

    dead: int
    alive: float
    allowed: bool
    owner: str
    vacuums: int


def read_dead(db: Database, table: str) -> Dead | None:
    """Return a table's dead and live rows; None if there is no such table."""
    rows = db.fetch("read_dead", {"table": table})
    return Dead._make(rows[0]) if rows else None


def is_waited_for(db: Database, pid: int) -> bool:
    """Return whether another session waits for a table that the server process ``pid`` has locked."""
    return bool(db.fetch("is_waited_for", {"pid": pid})[0][0])


VACUUMS: Mapping[str, Callable[[Database], object]] = {
    "pgjobs_job": lambda db: db.fetch("vacuum_jobs", {}),
    "pgjobs_claim": lambda db: db.fetch("vacuum_claims", {}),
}
"""Table → its VACUUM; run it on a connection without a statement timeout or an open transaction."""
