"""Work that the package's own jobs have left undone, as their rows are gone, were ended, or never did it.

Each of them serves another job: it wakes one whose gathered jobs have ended, undoes one that has failed, or cancels the
members of a batch. The rows that these jobs serve show what is left to do, so the leader looks there, some at a time,
and does it, or registers the job again. All are repeatable.
"""

from __future__ import annotations

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.states import CANCEL_MEMBERS
from django_pgjobs.store import memos, notifying, servants
from django_pgjobs.store.database import Enclosing
from django_pgjobs.store.servants import Serving

AT_ONCE = 1000
"""Rows of each kind that one turn looks at."""

MEMBERS = 10_000
"""Members of each batch that one turn looks at."""

REST_SECONDS = 30.0
"""The pause between two rounds."""

CANCEL_SECONDS = 30.0
"""Time for which the members of a cancelled batch may run unasked before the leader looks after them."""


class Mender:
    """Looks after what the package's own jobs serve, and remembers where it is. A duty of the leader."""

    def __init__(self) -> None:
        self.event = ""
        self.undone = self.gate = self.member = 0
        self.rest_until = 0.0

    def __call__(self, db: Enclosing) -> int:
        """Look at the next rows; return how many jobs it helped. Repeatable, also by several at once."""
        now = clock.monotonic()
        if now < self.rest_until:
            return 0
        helped = self._wake(db) + self._undo(db) + self._cancel(db)
        if not (self.event or self.undone or self.gate):
            self.rest_until = now + REST_SECONDS
        return helped

    def _wake(self, db: Enclosing) -> int:
        found = memos.wake_sleepers(db, after=self.event, limit=AT_ONCE)
        self.event = found[-1].event if len(found) >= AT_ONCE else ""
        left = [one.batch_id for one in found if one.batch_id is not None]
        served = memos.cancel_unawaited(db, left)
        for batch_id in left:
            log.error("the jobs of a gather continued though the job that waited for them has ended job=%d", batch_id)
        self._report(db, served)
        woken = [one for one in found if one.id is not None]
        for one in woken:
            log.warning("nothing had woken a job whose gathered jobs have ended job=%d", one.id)
        if woken:
            notifying.notify(db, {notifying.wake_up(one.queue, one.priority) for one in woken})
        return len(woken) + len(served)

    def _undo(self, db: Enclosing) -> int:
        with db.transaction():
            found = servants.mend_undoing(db, after=self.undone, limit=AT_ONCE)
            gone = [job_id for job_id, is_gone in found if is_gone]
            served = servants.register_servants(db, [servants.undo_of(job_id) for job_id in gone])
        self.undone = max(job_id for job_id, _ in found) if len(found) >= AT_ONCE else 0
        for job_id in gone:
            log.error("the job that undoes another was gone and is registered again job=%d", job_id)
        self._report(db, served)
        return len(served)

    def _cancel(self, db: Enclosing) -> int:
        found = servants.list_uncancelled(
            db, first=self.gate, member=self.member, limit=AT_ONCE, members=MEMBERS, seconds=CANCEL_SECONDS
        )
        self.gate, self.member = found[-1].id + 1 if len(found) >= AT_ONCE else 0, 0
        for one in found:
            if one.last is not None:
                self.gate, self.member = one.id, one.last
                break
        left = [one for one in found if one.mode is not None]
        cancels = [
            servants.cancel_of(
                one.id, mode=one.mode or "", by=one.by or "", reason=one.reason or "", key=f"{CANCEL_MEMBERS}:{one.id}"
            )
            for one in left
        ]
        with db.transaction():
            served = servants.register_servants(db, cancels)
        for one in left:
            log.error("the members of a batch were not cancelled and are to be job=%d", one.id)
        self._report(db, served)
        return len(served)

    def _report(self, db: Enclosing, served: list[Serving]) -> None:
        if served:
            notifying.notify(db, {notifying.wake_up(one.queue, one.priority) for one in served})
