"""Unparking: jobs that older or other code could not run go on when code comes that knows them."""

from __future__ import annotations

from django_pgjobs import clock
from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import safe_logger
from django_pgjobs.store import statements as store

log = safe_logger("django_pgjobs")

BATCH = 1000


SHARE = 2000
"""Looking for parked jobs that may go on takes a worker one of so many seconds, and so the server."""

LONGEST_REST_SECONDS = 600.0
"""So long at most a job stays parked that other code parked when this worker had already looked."""


class Unparker:
    """Resumes parked jobs. After a scan that found none among many it rests."""

    def __init__(self) -> None:
        self.rest_until = 0.0

    def __call__(self, db: store.Database) -> int:
        """Resume parked jobs that this process knows by other code than that which parked them; return how many.

        May be repeated, and by any number of workers: a job parked again carries this code's fingerprint.
        """
        began = clock.monotonic()
        if began < self.rest_until:
            return 0
        total = unpark(db)
        if not total:
            ended = clock.monotonic()
            self.rest_until = ended + min((ended - began) * SHARE, LONGEST_REST_SECONDS)
        return total


def unpark(db: store.Database) -> int:
    """Look once, through all of them; see ``Unparker``."""
    fingerprints = registry.fingerprints()
    total = 0
    while fingerprints:
        released = store.unpark_jobs(db, fingerprints, limit=BATCH)
        total += len(released)
        if released:
            store.notify_queues(db, {(job.queue, job.priority) for job in released}, behind=True)
        if len(released) < BATCH:
            break
    if total:
        log.info("parked jobs resumed jobs=%d", total)
    return total
