"""Taken keys: find the jobs that have them, and take them from jobs to replace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.states import has_begun
from django_pgjobs.store.database import Database, Params, Rows
from django_pgjobs.store.new_jobs import NewJob


class KeyHolder(NamedTuple):
    """The job that has a key, and whether it has started, ended or is gone; the job of a window's key may be.

    A job that has finished steps or remembers something has started, also while it sleeps. ``name``: of the job, or of
    its first step; None if it is gone.
    """

    id: int
    started: bool
    name: str | None


def are_keys_taken(db: Database, queue: str, keys: Sequence[str]) -> bool:
    """Return whether an unfinished job of the queue has one of these keys now. Locks nothing."""
    return bool(db.fetch("are_keys_taken", {"queue": queue, "keys": json.dumps(keys)}))


def find_keys(db: Database, wanted: Sequence[NewJob]) -> list[KeyHolder | None]:
    """Return the holder of each job's key, None if the key is free by now. Locks nothing."""
    found: list[KeyHolder | None] = [None] * len(wanted)
    for position, job_id, started, flow, name in db.fetch("find_keys", _keys_of(wanted)):
        found[position - 1] = KeyHolder(job_id, started or has_begun(flow or 0), name)
    return found


def free_keys(db: Database, wanted: Sequence[NewJob]) -> dict[int, bool]:
    """Take these keys from unclaimed jobs, which the caller cancels; return id → whether it is a member of a batch."""
    return dict(db.fetch("free_keys", _keys_of(wanted)))


class KnownMember(NamedTuple):
    """The members of a batch that have, or have had, a key, two at most. ``started``: the first has, or has moved."""

    ids: list[int]
    started: bool


def find_members(db: Database, batch_id: int, wanted: Sequence[NewJob]) -> dict[int, KnownMember]:
    """Return position → the member of a batch that has, or has had, the key of this job. Locks nothing."""
    params = {
        "id": batch_id,
        "queues": [new.queue for new in wanted],
        "names": [new.name for new in wanted],
        "keys": [new.key for new in wanted],
    }
    return {position - 1: KnownMember(*had) for position, *had in db.fetch("find_members", params)}


class Postponed(NamedTuple):
    """The jobs that were moved, by their keys' positions in the input, and whom to notify.

    ``wakes``: as of registered jobs. ``behind``: queues of jobs that may be older than those claimed now.
    """

    ids: dict[int, int]
    wakes: set[tuple[str, int | None]]
    behind: set[str]


def postpone_jobs(db: Database, wanted: Sequence[NewJob]) -> Postponed:
    """Move the unclaimed jobs that have these keys to the starts of ``wanted``; its keys differ from each other."""
    params = {
        "queues": [new.queue for new in wanted],
        "keys": [new.key for new in wanted],
        "run_ats": [new.run_at for new in wanted],
        "delays": [new.delay_seconds or 0.0 for new in wanted],
        "deadlines": [new.deadline for new in wanted],
        "expiries": [new.expires_at for new in wanted],
        "expire": [new.expires_seconds for new in wanted],
    }
    rows = db.fetch("postpone_jobs", params)
    return Postponed(
        {position - 1: job_id for position, job_id, _, _, _ in rows},
        {(queue, priority) for _, _, queue, priority, _ in rows},
        {queue for _, _, queue, _, old in rows if old},
    )


def _keys_of(wanted: Sequence[NewJob]) -> Params:
    return {
        "queues": [new.queue for new in wanted],
        "keys": [new.key for new in wanted],
        "windows": [new.window_seconds for new in wanted],
    }


class FoundResult(NamedTuple):
    """The result of an earlier job with an idempotency key, as JSON text or None, and when it was stored.

    ``same``: whether that job had the arguments of this one.
    """

    job_id: int
    result: str | None
    stored_at: datetime
    same: bool = True


def find_result(db: Database, job_id: int, names: Sequence[str], key: str) -> FoundResult | None:
    """Return the result stored under this job's idempotency key and one of its names, or None.

    A job that has steps goes by the name of its first.
    """
    rows = db.fetch("find_result", {"job_id": job_id, "names": list(names), "key": key})
    return FoundResult._make(rows[0]) if rows else None


class Expired(NamedTuple):
    """Number of deleted rows, and the instant that the walk has reached."""

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
