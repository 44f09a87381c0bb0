"""What an operator's retry or move does with jobs whose key another job has: they are left as they are, and reported.

The statements look for such a job themselves. One that is registered while they run makes the whole statement fail at
the unique index; then the batch is halved, each half in a savepoint, until that job stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, transaction

from django_pgjobs import waking
from django_pgjobs.store import statements as store
from django_pgjobs.store.sqlstates import DEADLOCK, LOCK_NOT_AVAILABLE, UNIQUE_VIOLATION, sqlstate_of

TAKEN = "key taken"
BUSY = "busy"

SHORT_LOCK_TIMEOUT = "100ms"
"""How long a job of the same key that is not committed yet is waited for once one has been waited for in vain."""


@dataclass(slots=True)
class KeyedWrite:
    """Writes a batch, and notes in ``refused`` why it did not write some: id → reason."""

    using: str
    write: Callable[[store.Database, Sequence[int]], store.Moved]
    refused: dict[int, str] = field(default_factory=dict)

    def __call__(self, db: store.Database, ids: Sequence[int]) -> list[int]:
        """Write the jobs of a batch whose key is free; return them. Within the caller's transaction."""
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

    def _reason(self, db: store.Database, error: DatabaseError) -> str | None:
        """Say what kept the batch from being written, if it is the key of a single job."""
        state = sqlstate_of(error)
        if state in (LOCK_NOT_AVAILABLE, DEADLOCK):
            store.set_lock_timeout(db, SHORT_LOCK_TIMEOUT)
            return BUSY
        return TAKEN if state == UNIQUE_VIOLATION else None

    def _halves(self, db: store.Database, ids: Sequence[int], reason: str) -> list[int]:
        if len(ids) == 1:
            self.refused[ids[0]] = reason
            return []
        half = len(ids) // 2
        return self(db, ids[:half]) + self(db, ids[half:])
