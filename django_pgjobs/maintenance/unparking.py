"""Unparking: resume jobs that older or other code could not run, once a worker has code that knows them.

Which names that are is decided at the worker's start: its process imports no code of the project afterwards.

Unpausing: resume jobs that a pause of their name held, once an operator or the clock has ended it. Every worker does
it, since no job may depend on the leader. If a worker holds a job a moment after the pause has ended, because it does
not know that yet, this duty finds the job a second later.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from django_pgjobs import clock
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import facts, log
from django_pgjobs.store import admitting, keeping, limiting, notifying, pausing, scheduling
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import ReleasedJob

BATCH = 1000

SHARE = 2000
"""The scan for parked jobs to resume takes at most one of so many seconds, of a worker and of the server."""

LONGEST_REST_SECONDS = 600.0
"""Maximum time that a job stays parked if other code parks it right after this worker's scan."""


MOST_NAMES = 1000
"""Number of unknown names of parked jobs, and of limited ones, that a worker tries to resolve at its start."""


def missing_names(db: Database) -> list[str]:
    """Return names that rows wait with and that this process does not know: parked and limited jobs', schedules'."""
    parked = keeping.list_parked_names(db, registry.fingerprints(), limit=MOST_NAMES)
    scheduled = [job.name for job in scheduling.list_row_jobs(db) if registry.find(job.name) is None]
    limited = [name for _, name in admitting.list_limited(db, after=("", ""), limit=MOST_NAMES)]
    return sorted({*parked, *scheduled, *(name for name in limited if registry.find(name) is None)})


class Unparker:
    """Resumes parked jobs. It rests after a scan that found none to resume among many."""

    def __init__(self) -> None:
        self.rest_until = 0.0

    def __call__(self, db: Database) -> int:
        """Resume parked jobs that this process has newer or other code for; return how many.

        Repeatable, by any number of workers: a job parked again carries this code's fingerprint.
        """
        began = clock.monotonic()
        if began < self.rest_until:
            return 0
        total = unpark(db)
        if not total:
            ended = clock.monotonic()
            self.rest_until = ended + min((ended - began) * SHARE, LONGEST_REST_SECONDS)
        return total


def unpark(db: Database) -> int:
    """Scan all parked jobs once; see ``Unparker``."""
    fingerprints = registry.fingerprints()
    total = _released(db, lambda: keeping.unpark_jobs(db, fingerprints, limit=BATCH)) if fingerprints else 0
    if total:
        log.info("parked jobs resumed jobs=%d", total)
    return total


def _released(db: Database, release: Callable[[], list[ReleasedJob]], until: float = math.inf) -> int:
    """Release batches, each a transaction of its own, until none is full or time is up; return how many jobs."""
    total = 0
    while clock.monotonic() <= until:
        jobs = release()
        total += len(jobs)
        if jobs:
            notifying.notify_queues(db, {(job.queue, job.priority) for job in jobs}, behind=True)
        if len(jobs) < BATCH:
            break
    return total


AGAIN_SECONDS = 0.5
"""Time in which batches follow each other without a pause; the rest waits for the next turn, so that no rescue
waits."""


def unpause(db: Database) -> int:
    """Resume held jobs whose name is no longer paused; return how many. Repeatable, by any number of workers."""
    total = _released(db, lambda: pausing.unpause_jobs(db, limit=BATCH), clock.monotonic() + AGAIN_SECONDS)
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
