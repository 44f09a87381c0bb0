"""Expiry: the leader deletes old windows of keys, starts of rates, stored results, events and actions.

It deletes the oldest first, in batches, each a short transaction that waits for no lock; a turn is bounded in time. A
walk remembers how far it has come, since deleted rows stay in the index until a VACUUM; now and then it restarts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.logs import safe_logger
from django_pgjobs.store import acting, admitting, keys, memos, pruning
from django_pgjobs.store.database import Database
from django_pgjobs.store.keys import Expired

log = safe_logger("django_pgjobs")

BATCH = 1000
TURN_SECONDS = 1.0
ANEW_SECONDS = 600.0
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

    def go(self, db: Database, until: float, may: Callable[[], bool]) -> int:
        """Take batches until nothing is left or time is up; return how many rows they took."""
        if clock.monotonic() >= self.anew_at:
            self.after, self.anew_at = pruning.OLDEST, clock.monotonic() + self.anew_seconds
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
        self.windows = ExpiryWalk(_delete_windows, BATCH)
        self.admissions = ExpiryWalk(_delete_admissions, BATCH)
        self.results = ExpiryWalk(_delete_results, BATCH)
        self.actions = ExpiryWalk(_delete_actions, BATCH)
        self.events = ExpiryWalk(_delete_events, BATCH)

    def __call__(self, db: Database) -> int:
        """Take a turn; return how many rows were deleted. Repeatable, also by several at once."""
        until = clock.monotonic() + TURN_SECONDS
        windows = self.windows.go(db, until, self.may)
        admissions = self.admissions.go(db, until, self.may)
        results = 0 if get_conf().retention.stored_results is None else self.results.go(db, until, self.may)
        actions = 0 if get_conf().retention.actions is None else self.actions.go(db, until, self.may)
        events = self.events.go(db, until, self.may)
        if not (windows or admissions or results or actions or events):
            self.rest_until = clock.monotonic() + IDLE_SECONDS
        if windows or results or actions:
            log.info("keys and results expired windows=%d results=%d actions=%d", windows, results, actions)
        return windows + admissions + results + actions


def _delete_windows(db: Database, after: str) -> Expired:
    return keys.delete_windows(db, after=after, limit=BATCH)


def _delete_admissions(db: Database, after: str) -> Expired:
    return admitting.delete_admissions(db, after=after, limit=BATCH)


def _delete_results(db: Database, after: str) -> Expired:
    seconds = get_conf().retention.stored_results or 0.0
    return keys.delete_results(db, older_than_seconds=seconds, after=after, limit=BATCH)


def _delete_events(db: Database, after: str) -> Expired:
    return memos.delete_events(db, older_than_seconds=get_conf().retention.events, after=after, limit=BATCH)


def _delete_actions(db: Database, after: str) -> Expired:
    seconds = get_conf().retention.actions or 0.0
    return acting.delete_actions(db, older_than_seconds=seconds, after=after, limit=BATCH)
