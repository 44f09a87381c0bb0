"""Keys that are taken: who has them, and taking them from jobs that are to be replaced."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.store.database import Database, Params, Rows
from django_pgjobs.store.registering import NewJob


class KeyHolder(NamedTuple):
    """The job that has a key, and whether it has started, has ended, or is gone: those of windows may be."""

    id: int
    started: bool


def find_keys(db: Database, wanted: Sequence[NewJob]) -> list[KeyHolder | None]:
    """Return who has the key of each, None where it is free by now. Locks nothing."""
    found: list[KeyHolder | None] = [None] * len(wanted)
    for position, *holder in db.fetch("find_keys", _keys_of(wanted)):
        found[position - 1] = KeyHolder(*holder)
    return found


def free_keys(db: Database, wanted: Sequence[NewJob]) -> list[int]:
    """Take these keys from jobs that nobody has claimed; return the jobs, which the caller cancels."""
    return [row[0] for row in db.fetch("free_keys", _keys_of(wanted))]


def _keys_of(wanted: Sequence[NewJob]) -> Params:
    return {
        "queues": [new.queue for new in wanted],
        "keys": [new.key for new in wanted],
        "windows": [new.window_seconds for new in wanted],
    }


class FoundResult(NamedTuple):
    """What an earlier job of an idempotency key returned, as JSON text, or None; and when that was stored."""

    job_id: int
    result: str | None
    stored_at: datetime


def find_result(db: Database, names: Sequence[str], key: str) -> FoundResult | None:
    """Return what is stored under an idempotency key of a job with one of these names."""
    rows = db.fetch("find_result", {"names": list(names), "key": key})
    return FoundResult._make(rows[0]) if rows else None


class Expired(NamedTuple):
    """How many rows went, and the instant up to which the walk has come."""

    rows: int
    until: str


def delete_windows(db: Database, *, after: str, limit: int) -> Expired:
    """Delete windows of keys that are over, at most so many, oldest first from ``after`` on."""
    return _expired(db.fetch("delete_windows", {"after": after, "limit": limit}), after)


def delete_results(db: Database, *, older_than_seconds: float, after: str, limit: int) -> Expired:
    """Delete results stored longer ago, at most so many, oldest first from ``after`` on."""
    params = {"seconds": older_than_seconds, "after": after, "limit": limit}
    return _expired(db.fetch("delete_results", params), after)


def _expired(rows: Rows, after: str) -> Expired:
    count, until = rows[0]
    return Expired(count, until or after)
