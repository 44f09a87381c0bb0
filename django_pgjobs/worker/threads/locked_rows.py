"""Due rows that no worker claims: another session has locked them. A worker that leaves when it is idle waits for
these."""

from __future__ import annotations

from collections.abc import Iterable

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.store import counting
from django_pgjobs.store.database import Database

LOCKED_SECONDS = 30.0
"""Time that one worker waits for the same row."""


class LockedRows:
    """Asked after each claim that found nothing."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.since = 0.0

    def wait(self, db: Database, pairs: Iterable[tuple[str, int]]) -> bool:
        """Return whether a job of these pairs is due and worth waiting for."""
        now, found = clock.monotonic(), counting.first_due(db, list(pairs), later=False, limit=1)
        if not found:
            self.first = None
            return False
        if found[0] != self.first:
            self.first, self.since = found[0], now
        if now < self.since + LOCKED_SECONDS:
            return True
        log.warning("worker leaves a job that is due, another session has locked its row job=%d", found[0])
        return False
