"""Unparking: jobs that older or other code could not run go on when code comes that knows them."""

from __future__ import annotations

from django_pgjobs import store
from django_pgjobs.logs import safe_logger
from django_pgjobs.registry import registry

log = safe_logger("django_pgjobs")

BATCH = 1000


def unpark(db: store.Database) -> int:
    """Let parked jobs go on that this process knows by other code than that which parked them; return how many.

    May be repeated, and by any number of workers: a job parked again carries this code's fingerprint.
    """
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
        log.info("parked jobs go on jobs=%d", total)
    return total
