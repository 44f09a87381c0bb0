"""Requests of operators to workers: be quiet, resume, drain, recycle executors. Shared by the admin and the shell.

A request is data in the worker's own row, and a worker reads its row as it beats. It grants no right to a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django_pgjobs.conf import get_conf
from django_pgjobs.logs import listed, log
from django_pgjobs.steering.batching import who
from django_pgjobs.steering.trail import MOST_CHARS, Trail, signed, storable
from django_pgjobs.store import keeping
from django_pgjobs.store.database import at_read_committed, on
from django_pgjobs.store.keeping import Controlled


def ask(using: str, ids: Sequence[UUID], verb: str, *, by: object = None, reason: str = "") -> list[Controlled]:
    """Ask these workers to *quiet*, *resume*, *drain* or *recycle*; return which were asked, and how the others are.

    A worker takes it up at its next heartbeat. Of two requests the last one wins. A worker that has left, lost its jobs
    or not been heard from lately is not asked, nor is one that drains, for a drain is final.
    """
    conf, author, reason = get_conf(), storable(who(by))[:MOST_CHARS], storable(reason)[:MOST_CHARS]
    bounds = {"silent_seconds": conf.silent_seconds, "stale_seconds": conf.stale_seconds}
    with at_read_committed(using):
        found = keeping.control_workers(on(using), ids, verb, by=author, reason=reason, **bounds)
        asked = [worker.name for worker in found if worker.was]
        for name in asked:
            Trail(verb, author, reason, kind="worker", subject=name).add(on(using), 1)
    if asked:
        log.info("operator's %s worker=%s %s", verb, listed(asked), signed(author, reason))
    return found
