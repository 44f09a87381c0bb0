"""Unparking: resume jobs that older or other code could not run, once a worker has code that knows them.

Which names that are is decided at the worker's start: its process imports no code of the project afterwards.
"""

from __future__ import annotations

from django_pgjobs import clock
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import safe_logger
from django_pgjobs.store import admitting, keeping, notifying, scheduling
from django_pgjobs.store.database import Database

log = safe_logger("django_pgjobs")

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
    total = 0
    while fingerprints:
        released = keeping.unpark_jobs(db, fingerprints, limit=BATCH)
        total += len(released)
        if released:
            notifying.notify_queues(db, {(job.queue, job.priority) for job in released}, behind=True)
        if len(released) < BATCH:
            break
    if total:
        log.info("parked jobs resumed jobs=%d", total)
    return total
