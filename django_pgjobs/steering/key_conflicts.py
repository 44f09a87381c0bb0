"""Keys taken by other jobs, and gates that stay locked, when an operator steers jobs: skip and report those jobs.

The statements look for such a holder themselves. If one is registered while they run, the whole statement fails at the
unique index; so it does at a gate that stays locked. Then the batch is halved, each half in a savepoint, until the
conflicting job stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, transaction

from django_pgjobs.store import waking
from django_pgjobs.store.database import Database, set_lock_timeout
from django_pgjobs.store.sqlstates import DEADLOCK, LOCK_NOT_AVAILABLE, UNIQUE_VIOLATION, sqlstate_of
from django_pgjobs.store.steering import Moved

TAKEN = "key taken"
BUSY = "busy"

SHORT_LOCK_TIMEOUT = "100ms"
"""Time to wait for another uncommitted job with the same key, after the wait for the first one timed out."""

MOST_WAITS = 30
"""After so many waits in vain the rest of a batch counts as busy: one locked gate may concern all of its jobs."""


@dataclass(slots=True)
class KeyedWrite:
    """Writes a batch, and records in ``refused`` why it did not write some jobs: id → reason."""

    using: str
    write: Callable[[Database, Sequence[int]], Moved]
    refused: dict[int, str] = field(default_factory=dict)
    waits: int = 0

    def __call__(self, db: Database, ids: Sequence[int]) -> list[int]:
        """Write the jobs of a batch whose key is free, within the caller's transaction; return them."""
        try:
            with transaction.atomic(using=self.using):
                moved = self.write(db, ids)
                waking.notify(self.using, moved.notices)
        except DatabaseError as error:
            reason = self._reason(db, error)
            if reason is None:
                raise
            return self._halves(db, ids, reason)
        self.refused.update(dict.fromkeys(moved.taken, TAKEN))
        return moved.changed

    def _reason(self, db: Database, error: DatabaseError) -> str | None:
        """Return the reason if one job's key kept the batch from being written, else None."""
        state = sqlstate_of(error)
        if state in (LOCK_NOT_AVAILABLE, DEADLOCK):
            set_lock_timeout(db, SHORT_LOCK_TIMEOUT)
            self.waits += 1
            return BUSY
        return TAKEN if state == UNIQUE_VIOLATION else None

    def _halves(self, db: Database, ids: Sequence[int], reason: str) -> list[int]:
        if len(ids) == 1 or (reason == BUSY and self.waits >= MOST_WAITS):
            self.refused.update(dict.fromkeys(ids, reason))
            return []
        half = len(ids) // 2
        return self(db, ids[:half]) + self(db, ids[half:])
