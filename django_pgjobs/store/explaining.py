"""What says why a job does not run, and what becomes of it: read in one statement, at one instant."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from django_pgjobs.store.database import Database


class Facts(NamedTuple):
    """One job and all that bears on it. ``now`` is the database's clock; what is not so is None, ``""`` or 0."""

    now: datetime
    id: int
    state: str
    name: str
    queue: str
    run_at: datetime
    attempt: int
    max_attempts: int
    error: str
    hold_reason: str
    ending: str | None
    ending_attempt: int
    claimed_at: datetime | None
    deadline_at: datetime | None
    finished_at: datetime | None
    duration_seconds: float | None
    cancel_requested_at: datetime | None
    cancel_mode: str
    cancel_by: str
    cancel_reason: str
    release_requested_at: datetime | None
    limit_key: str | None
    lease_expires_at: datetime | None
    worker_name: str | None
    worker_state: str | None
    worker_beat_at: datetime | None
    pause_kind: str | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    paused_until: datetime | None
    live: int
    """Workers that live; of those ``serving`` the job's queue and ``draining`` while they serve it."""
    serving: int
    draining: int
    places: int
    """How many threads the serving workers have, and how many jobs they have ``held`` by their last heartbeat."""
    held: int
    last_beat_at: datetime | None
    """When any worker was last heard of."""
    ahead: int
    """How many due jobs of its queue are claimed first, counted up to ``MOST_AHEAD``."""
    blockers: list[int] | None
    """Up to five jobs that its limit has let in."""
    key_holder: int | None
    result_of: int | None
    """The job that ran in its place, for the same idempotency key."""


MOST_AHEAD = 1000


def read_why(db: Database, job_id: int, *, stale_seconds: float) -> Facts | None:
    """Return what bears on a job; None when there is no such job."""
    rows = db.fetch("read_why", {"id": job_id, "stale": stale_seconds, "most": MOST_AHEAD + 1})
    return Facts._make(rows[0]) if rows else None
