"""Expiry: the leader deletes old windows of keys, starts of rates, stored results, events, actions, stacks and lines.

It deletes the oldest first, in batches, each a short transaction that waits for no lock; a turn is bounded in time. A
walk remembers how far it has come, since deleted rows stay in the index until a VACUUM; now and then it restarts.

It also ends expired jobs, those that were to start before an instant and never started. A worker that claims such a job
ends it, too. This duty finds those that no worker claims: their queue is paused or has no workers, or a limit holds
them. Each batch is a short transaction that waits for no lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.ends import kinds
from django_pgjobs.logs import log
from django_pgjobs.states import EXPIRED
from django_pgjobs.store import acting, admitting, keeping, keys, memos, notifying, pruning, stacks
from django_pgjobs.store.database import Database
from django_pgjobs.store.keeping import ExpiredJob
from django_pgjobs.store.keys import Expired

BATCH = 1000
TURN_SECONDS = 1.0
ANEW_SECONDS = 600.0

LINES_BATCH = 100
"""Jobs whose lines are looked at in one statement; each may have thousands."""

LINES_SECONDS = 6 * 3600.0
"""Between two walks through the lines of all jobs: those of a pruned job have gone with it."""

IDLE_SECONDS = 30.0
"""The pause after a turn that found nothing."""

TakeNext = Callable[[Database, str], Expired]
"""Takes the next rows from an instant on, ``limit`` of them at most."""


@dataclass(slots=True)
class ExpiryWalk:
    """The progress through one kind of rows whose time is over."""

    batch: TakeNext
    limit: int
    after: str = pruning.OLDEST
    anew_at: float = 0.0
    anew_seconds: float = ANEW_SECONDS
    start: str = pruning.OLDEST

    def go(self, db: Database, until: float, may: Callable[[], bool]) -> int:
        """Take batches until nothing is left or time is up; return how many rows they took."""
        if clock.monotonic() >= self.anew_at:
            self.after, self.anew_at = self.start, clock.monotonic() + self.anew_seconds
        total = 0
        while may():
            gone = self.batch(db, self.after)
            self.after, total = gone.until, total + gone.rows
            if gone.rows < self.limit or clock.monotonic() >= until:
                break
        return total


class Expirer:
    """Deletes expired rows in turns; calls ``may`` before every statement to ask whether to continue."""

    def __init__(self, may: Callable[[], bool] = lambda: True) -> None:
        self.may = may
        self.rest_until = 0.0
        self.windows = ExpiryWalk(lambda db, after: keys.delete_windows(db, after=after, limit=BATCH), BATCH)
        self.admissions = ExpiryWalk(lambda db, after: admitting.delete_admissions(db, after=after, limit=BATCH), BATCH)
        self.results = ExpiryWalk(_older(keys.delete_results, lambda: get_conf().retention.stored_results), BATCH)
        self.actions = ExpiryWalk(_older(acting.delete_actions, lambda: get_conf().retention.actions), BATCH)
        self.events = ExpiryWalk(_older(memos.delete_events, lambda: get_conf().retention.events), BATCH)
        self.lines = ExpiryWalk(
            lambda db, after: pruning.delete_lines(db, after=after, limit=LINES_BATCH),
            LINES_BATCH, "0", anew_seconds=LINES_SECONDS, start="0",
        )  # fmt: skip
        self.stacks_at = 0.0

    def __call__(self, db: Database) -> int:
        """Take a turn; return how many rows were deleted. Repeatable, also by several at once."""
        until = clock.monotonic() + TURN_SECONDS
        windows = self.windows.go(db, until, self.may)
        admissions = self.admissions.go(db, until, self.may)
        results = 0 if get_conf().retention.stored_results is None else self.results.go(db, until, self.may)
        actions = 0 if get_conf().retention.actions is None else self.actions.go(db, until, self.may)
        events = self.events.go(db, until, self.may)
        self.lines.go(db, until, self.may)
        if clock.monotonic() >= self.stacks_at and self.may():
            stacks.delete_stacks(db, limit=BATCH)
            self.stacks_at = clock.monotonic() + ANEW_SECONDS
        if not (windows or admissions or results or actions or events):
            self.rest_until = clock.monotonic() + IDLE_SECONDS
        if windows or results or actions:
            log.info("keys and results expired windows=%d results=%d actions=%d", windows, results, actions)
        return windows + admissions + results + actions


def _older(delete: Callable[..., Expired], kept_seconds: Callable[[], float | None]) -> TakeNext:
    return lambda db, after: delete(db, older_than_seconds=kept_seconds() or 0.0, after=after, limit=BATCH)


ENDING_SECONDS = 0.5
"""Time in which batches follow each other; the rest waits for the next turn, so that no rescue waits."""

AGAIN_SECONDS = 60.0
"""Interval at which the walk restarts, for jobs that were committed late or released behind it."""


class JobExpirer:
    """Ends expired jobs in turns and passes those that have ended to ``notify``; asks ``may`` before every batch."""

    def __init__(self, notify: Callable[[list[ExpiredJob]], object], may: Callable[[], bool] = lambda: True) -> None:
        self.notify = notify
        self.may = may
        self.walk = ExpiryWalk(self._expire, BATCH, anew_seconds=AGAIN_SECONDS)

    def __call__(self, db: Database) -> int:
        """Take a turn; return how many jobs were expired. Repeatable, also by several at once."""
        total = self.walk.go(db, clock.monotonic() + ENDING_SECONDS, self.may)
        if total:
            log.info("jobs expired before they started jobs=%d", total)
        return total

    def _expire(self, db: Database, after: str) -> Expired:
        names = [name for name in registry.names() if registry.get(name)._on_cancel_func is None]
        found = keeping.expire_jobs(db, after=after, limit=BATCH, reason=EXPIRED, without_on_cancel=names)
        notifying.notify_queues(db, found.wakes, behind=True)
        if ended := [job for job in found.jobs if job.ended]:
            if kinds.lines_are_wanted():
                for job in ended:
                    kinds.log_expired(job)
            self.notify(ended)
        return Expired(len(found.jobs), found.until)
