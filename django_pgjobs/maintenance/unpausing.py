"""Unpausing: resume jobs that a pause of their name held, once an operator or the clock has ended the pause.

Every worker performs this duty, since no job may depend on the leader. If a worker holds a job a moment after the pause
has ended, because it does not know that yet, this duty finds the job a second later.
"""

from __future__ import annotations

from django_pgjobs import clock
from django_pgjobs.logs import facts, safe_logger
from django_pgjobs.store import limiting, notifying, pausing
from django_pgjobs.store.database import Database

log = safe_logger("django_pgjobs")

BATCH = 1000
AGAIN_SECONDS = 0.5
"""Time in which batches follow each other without a pause; the rest waits for the next turn, so that no rescue
waits."""


def unpause(db: Database) -> int:
    """Resume held jobs whose name is no longer paused; return how many. Repeatable, by any number of workers.

    Each batch is a transaction of its own, however many were held.
    """
    total, began = 0, clock.monotonic()
    while clock.monotonic() <= began + AGAIN_SECONDS:
        resumed = pausing.unpause_jobs(db, limit=BATCH)
        total += len(resumed)
        if resumed:
            notifying.notify_queues(db, {(job.queue, job.priority) for job in resumed}, behind=True)
        if len(resumed) < BATCH:
            break
    if total:
        log.info("paused jobs resumed jobs=%d", total)
    return total


KEPT_SECONDS = 86_400.0
"""Retention of an ended pause: jobs that waited under it do not count as late."""


def expire_pauses(db: Database) -> int:
    """Delete pauses, and limits set by operators, that ended long ago; return how many. A duty of the leader."""
    expired = pausing.expire_pauses(db, kept_seconds=KEPT_SECONDS)
    for kind, name in expired:
        log.debug("old pause expired %s", facts("queue=%s", name) if kind == "queue" else facts("name=%s", name))
    limits = limiting.expire_limits(db, kept_seconds=KEPT_SECONDS)
    for kind, name in limits:
        log.debug("old limit expired %s", facts("queue=%s", name) if kind == "queue" else facts("name=%s", name))
    return len(expired) + len(limits)
