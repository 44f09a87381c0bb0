"""In the executor: what to do when the supervisor is gone and no process can record the outcomes of running jobs.

The executor releases jobs that have not started, uncharged and fenced, on a new connection. Running jobs end with the
process, and are rescued when their leases run out. If only the channel broke, because a job closed it, the executor
releases nothing: the supervisor lives and decides about its jobs itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from uuid import UUID

from django_pgjobs.conf import get_conf
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import finalising, notifying, schemas
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.finalising import Author, End
from django_pgjobs.worker.shared.connection import TROUBLE, WorkerConnection

RELEASE_SECONDS = 2.0
PARENT_SECONDS = 0.5

_NOBODY = Author(UUID(int=0))
"""The author of nothing: no attempt is recorded for a job that never started."""


def supervisor_has_ended(parent: int) -> bool:
    """Return whether our parent is dead. Its descriptors close a moment before the system reports its death."""
    until = time.monotonic() + PARENT_SECONDS
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.005)
    return os.getppid() != parent


def release_unstarted(jobs: Sequence[ClaimedJob], aliases: Sequence[str], application_name: str) -> None:
    """Release jobs that have not started, within ``RELEASE_SECONDS`` or not at all. Raises nothing.

    ``aliases``: those of the worker. Jobs of the only one say nothing, or which schema of it they are of.
    """
    [first, *others] = aliases
    until, releasing = time.monotonic() + RELEASE_SECONDS, []
    for home in {job.database: None for job in jobs}:
        some = [job for job in jobs if job.database == home]
        tenancy = (home or first, "") if others else (first, home)
        # In a thread, since a server that does not answer must not keep this process alive, nor the jobs of another.
        thread = threading.Thread(target=_release, args=(some, *tenancy, application_name), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            _release(some, *tenancy, application_name)  # no thread can be started; the watchdog ends us
        else:
            releasing.append(thread)
    for thread in releasing:
        thread.join(max(0.0, until - time.monotonic()))


def _release(jobs: Sequence[ClaimedJob], using: str, schema: str, application_name: str) -> None:
    try:
        db = WorkerConnection(using, application_name, statement_seconds=RELEASE_SECONDS)
        if schema:
            schemas.enter(db, schema)
        released = finalising.release_jobs(db, [End(*job.fence) for job in jobs], _NOBODY)
        if released and get_conf().notify:
            notifying.notify_queues(db, {(job.queue, job.priority) for job in released}, behind=True)
    except TROUBLE as error:
        log.warning("jobs cannot be released jobs=%d: %s", len(jobs), one_line(error))
        return
    log.warning("jobs that had not started were released jobs=%d", len(released))
