"""VACUUM of our tables, and what tells when it is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from django_pgjobs.store.database import Database


class Dead(NamedTuple):
    """What has died in a table and what lives, by the server's statistics; and whether this role may VACUUM it.

    ``vacuums`` counts those that were done, by anybody but autovacuum; one that was skipped is none.
    """

    dead: int
    alive: float
    allowed: bool
    owner: str
    vacuums: int


def read_dead(db: Database, table: str) -> Dead | None:
    """Read how much of a table has died; None when there is no such table."""
    rows = db.fetch("read_dead", {"table": table})
    return Dead._make(rows[0]) if rows else None


def is_waited_for(db: Database, pid: int) -> bool:
    """Whether anybody waits for a table that the server process ``pid`` has locked."""
    return bool(db.fetch("is_waited_for", {"pid": pid})[0][0])


VACUUMS: Mapping[str, Callable[[Database], object]] = {
    "pgjobs_job": lambda db: db.fetch("vacuum_jobs", {}),
    "pgjobs_claim": lambda db: db.fetch("vacuum_claims", {}),
}
"""Table → its VACUUM; to be run on a connection that bounds no statement and opens no transaction."""
