"""Taken keys: find the jobs that have them, and take them from jobs to replace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.store.database import Database, Params, Rows
from django_pgjobs.store.registering import NewJob


class KeyHolder(NamedTuple):
    """The job that has a key, and whether it has started, ended or is gone; the job of a window's key may be."""

    id: int
    started: bool


def find_keys(db: Database, wanted: Sequence[NewJob]) -> list[KeyHolder | None]:
    """Return the holder of each job's key, None if the key is free by now. Locks nothing."""
    found: list[KeyHolder | None] = [None] * len(wanted)
    for position, *holder in db.fetch("find_keys", _keys_of(wanted)):
        found[position - 1] = KeyHolder(*holder)
    return found


def free_keys(db: Database, wanted: Sequence[NewJob]) -> list[int]:
    """Take these keys from unclaimed jobs; return the ids of those jobs, which the caller cancels."""
    return [row[0] for row in db.fetch("free_keys", _keys_of(wanted))]


def _keys_of(wanted: Sequence[NewJob]) -> Params:
    return {
        "queues": [new.queue for new in wanted],
        "keys": [new.key for new in wanted],
        "windows": [new.window_seconds for new in wanted],
    }


class FoundResult(NamedTuple):
    """The result of an earlier job with an idempotency key, as JSON text or None, and when it was stored."""

    job_id: int
    result: str | None
    stored_at: datetime


def find_result(db: Database, names: Sequence[str], key: str) -> FoundResult | None:
    """Return the result stored under an idempotency key of a job with one of these names, or None."""
    rows = db.fetch("find_result", {"names": list(names), "key": key})
    return FoundResult._make(rows[0]) if rows else None


class Expired(NamedTuple):
    """How many rows were deleted, and the instant that the walk has reached."""

    rows: int
    until: str


def delete_windows(db: Database, *, after: str, limit: int) -> Expired:
    """Delete up to ``limit`` key windows that are over, oldest first, from ``after`` on."""
    return _expired(db.fetch("delete_windows", {"after": after, "limit": limit}), after)


def delete_results(db: Database, *, older_than_seconds: float, after: str, limit: int) -> Expired:
    """Delete up to ``limit`` results older than ``older_than_seconds``, oldest first, from ``after`` on."""
    params = {"seconds": older_than_seconds, "after": after, "limit": limit}
    return _expired(db.fetch("delete_results", params), after)


def _expired(rows: Rows, after: str) -> Expired:
    count, until = rows[0]
    return Expired(count, until or after)
