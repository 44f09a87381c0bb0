"""Read the facts that explain why a job does not run, or what happens to it: one statement, one instant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django_pgjobs.store.database import Database


class Paused(NamedTuple):
    """A pause that applies to the job. ``kind``: *queue* or *job*. ``until``: None if it ends only when resumed."""

    kind: str
    paused_at: datetime
    by: str
    reason: str
    until: datetime | None


class WhyFacts(NamedTuple):
    """A job and all that affects it. ``now``: the database's clock. Facts that do not apply: None, ``""`` or 0."""

    now: datetime
    id: int
    state: str
    name: str
    queue: str
    run_at: datetime
    ready_since: datetime
    """Instant at which it last became ready and due: by its time, a rescue, a release, a limit or the end of a
    pause."""
    attempt: int
    max_attempts: int
    error: str
    hold_reason: str
    ending: str | None
    ending_attempt: int
    claimed_at: datetime | None
    overdue_at: datetime | None
    finished_at: datetime | None
    duration_seconds: float | None
    cancel_requested_at: datetime | None
    cancel_mode: str
    cancel_by: str
    cancel_reason: str
    release_requested_at: datetime | None
    limit_key: str | None
    expires_at: datetime | None
    """After when it is not started; null once an attempt has ended."""
    lease_expires_at: datetime | None
    worker_name: str | None
    worker_status: str | None
    """*running*, *draining*, *stopped*; *silent* or *lost* if its heartbeats are missing."""
    worker_beat_at: datetime | None
    suspects_since: datetime | None
    """Since when its worker runs suspects apart; None if it runs none."""
    suspect: str | None
    """*running* or *waiting* if it is one of these; else None."""
    benched: int
    """Number of the ``serving`` workers that have only one executor, in which suspects run apart, and since when."""
    benched_since: datetime | None
    crowded: int
    """Number of the ``serving`` workers that run as many jobs of its queue as it has ``places`` there, and all places.
    """
    places: int
    live: int
    """Workers with a recent heartbeat; of these, ``serving`` the job's queue, and ``quiet`` or ``draining`` while they
    serve it."""
    serving: int
    quiet: int
    draining: int
    slots: int
    """Number of threads of the serving workers, and of jobs that were ``running`` there at their last heartbeats."""
    running: int
    served_beat_at: datetime | None
    """Last heartbeat of a live worker of its queue."""
    last_beat_at: datetime | None
    """Last heartbeat of any worker."""
    ahead: int
    """Number of due jobs of its queue that come first, counted up to ``MOST_COUNTED``."""
    key_holder: int | None
    result_of: int | None
    """The job that ran instead of it, for the same idempotency key."""
    undone_by: int | None
    """The job that undoes it, or the batch of which it is a member; None if it may be retried."""
    pauses: tuple[Paused, ...]
    """The pause of its queue, of its name, or both."""


class Needs(NamedTuple):
    """The jobs that a job waits for. ``pending`` of ``total`` jobs have not ended; ``is_open``: a batch takes more
    members.

    ``eager``: it needs other jobs, ``first`` of all these; else it is a batch.
    """

    total: int
    pending: int
    is_open: bool
    eager: bool
    first: list[int]


MOST_NAMED = 5


def read_needs(db: Database, job_id: int) -> Needs | None:
    """Return what a job waits for, None if it has no gate."""
    rows = db.fetch("read_needs", {"id": job_id, "most": MOST_NAMED})
    return Needs._make(rows[0]) if rows else None


MOST_COUNTED = 1000


def read_why(db: Database, job_id: int, *, silent_seconds: float, stale_seconds: float) -> WhyFacts | None:
    """Return the facts about a job; None if there is no such job.

    A worker is *silent* after ``silent_seconds`` without a heartbeat, and *lost* after ``stale_seconds``.
    """
    params = {"id": job_id, "silent": silent_seconds, "stale": stale_seconds, "most": MOST_COUNTED + 1}
    rows = db.fetch("read_why", params)
    if not rows:
        return None
    row = rows[0]
    pauses = tuple(Paused(*pause) for pause in (row[-10:-5], row[-5:]) if pause[0] is not None)
    return WhyFacts._make([*row[:-10], pauses])


class RunningJob(NamedTuple):
    """A job that a worker runs now, or has claimed and will run at once."""

    worker: UUID
    id: int
    name: str
    queue: str
    running_seconds: float
    progress: str | None


def list_running(db: Database, workers: Sequence[UUID], *, most: int) -> list[RunningJob]:
    """Return what these workers run now, up to ``most`` jobs of each, the longest first."""
    return [RunningJob._make(row) for row in db.fetch("list_running", {"workers": list(workers), "most": most})]
