"""Expired jobs: end those that were to start before an instant and never started.

A worker that claims such a job ends it, too. This duty of the leader finds those that no worker claims: their queue is
paused or has no workers, or a limit holds them. Each batch is a short transaction that waits for no lock.
"""

from __future__ import annotations

from collections.abc import Callable

from django_pgjobs import clock
from django_pgjobs.definition.registry import registry
from django_pgjobs.ends import lines
from django_pgjobs.logs import safe_logger
from django_pgjobs.maintenance.expiry import BATCH, ExpiryWalk
from django_pgjobs.states import EXPIRED
from django_pgjobs.store import keeping, notifying
from django_pgjobs.store.database import Database
from django_pgjobs.store.keeping import ExpiredJob
from django_pgjobs.store.keys import Expired

log = safe_logger("django_pgjobs")

TURN_SECONDS = 0.5
"""Time in which batches follow each other; the rest waits for the next turn, so that no rescue waits."""

ANEW_SECONDS = 60.0
"""Interval at which the walk restarts, for jobs that were committed late or released behind it."""


class JobExpirer:
    """Ends expired jobs in turns and passes those that have ended to ``notify``; asks ``may`` before every batch."""

    def __init__(self, notify: Callable[[list[ExpiredJob]], object], may: Callable[[], bool] = lambda: True) -> None:
        self.notify = notify
        self.may = may
        self.walk = ExpiryWalk(self._expire, BATCH, anew_seconds=ANEW_SECONDS)

    def __call__(self, db: Database) -> int:
        """Take a turn; return how many jobs were expired. Repeatable, also by several at once."""
        total = self.walk.go(db, clock.monotonic() + TURN_SECONDS, self.may)
        if total:
            log.info("jobs expired before they started jobs=%d", total)
        return total

    def _expire(self, db: Database, after: str) -> Expired:
        names = [name for name in registry.names() if registry.get(name)._on_cancel_func is None]
        found = keeping.expire_jobs(db, after=after, limit=BATCH, reason=EXPIRED, without_on_cancel=names)
        notifying.notify_queues(db, found.wakes, behind=True)
        if ended := [job for job in found.jobs if job.ended]:
            if lines.are_wanted():
                for job in ended:
                    lines.expired(job)
            self.notify(ended)
        return Expired(len(found.jobs), found.until)
