"""The end of a job inside the transaction of its body, and what became of one that is in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from django_pgjobs.states import is_counted
from django_pgjobs.store.database import Database, configure, set_lock_timeout
from django_pgjobs.store.finalising import (
    Author,
    End,
    SteppedJob,
    finalise_success,
    mark_ending,
    next_step,
    read_fences,
)

LOCK_TIMEOUT = "5s"
"""Time that an atomic end waits for its job's row. ``end_atomic`` has the same value."""

IDLE_TIMEOUT = "10s"
"""After how long the server ends a transaction whose client has written the end and sends no COMMIT."""


class AtomicEnd(NamedTuple):
    """The end of an atomic job, written; ``counted``: ``settle_ends`` has to follow in the same transaction."""

    counted: bool


def end_atomic(db: Database, end: End, *, outermost: bool = True) -> AtomicEnd | None:
    """End a job as succeeded in the open transaction; return None if the end is not ours to write.

    ``outermost``: the transaction is the job's own, not a savepoint in another one, such as a test's. Waits for a
    locked row, then raises ``OperationalError``.
    """
    params = {"id": end.id, "claim_id": end.claim_id, "result": end.result, "seconds": end.seconds}
    rows = db.fetch("end_atomic", {**params, "idle": IDLE_TIMEOUT if outermost else None})
    return AtomicEnd(is_counted(rows[0][0])) if rows else None


def end_atomic_keyed(db: Database, end: End, *, outermost: bool = True) -> AtomicEnd | None:
    """Do the same, and store the result under the job's idempotency key."""
    locked = lock_atomic(db, end, outermost=outermost)
    if locked is None or not finalise_success(db, [end], locked.author, remember=True, settled=True):
        return None
    return AtomicEnd(locked.counted)


def mark_atomic(db: Database, end: End, *, allowance_seconds: float, outermost: bool = True) -> bool:
    """Mark a job whose ``on_success`` alone is left, as ``mark_ending`` does; otherwise as ``end_atomic``."""
    locked = lock_atomic(db, end, outermost=outermost)
    return locked is not None and bool(mark_ending(db, [end], locked.author, allowance_seconds=allowance_seconds))


class NoStep(Enum):
    """The reason that a job does not continue with its next step: a cancel request forbids that, or the job is lost."""

    CANCELLED = 1
    LOST = 2


def next_step_atomic(db: Database, end: End, *, outermost: bool = True) -> SteppedJob | NoStep:
    """Turn the row into the job's next step, or return why not. Wakes no worker."""
    locked = lock_atomic(db, end, outermost=outermost)
    if locked is None:
        return NoStep.LOST
    rows = next_step(db, [end], locked.author)
    if rows:
        return rows[0]
    reading = read_fences(db, [(end.id, end.claim_id)]).get(end.id)
    return NoStep.CANCELLED if reading is not None and reading.ours and not reading.ended else NoStep.LOST


class Locked(NamedTuple):
    """The locked row of an atomic job: the worker that has claimed it, and whether its end counts in a gate."""

    author: Author
    counted: bool


def lock_atomic(db: Database, end: End, *, outermost: bool) -> Locked | None:
    """Lock the row of a job in the open transaction; return None if the row is gone."""
    before = set_lock_timeout(db, LOCK_TIMEOUT)
    rows = db.fetch("lock_atomic", {"id": end.id})
    if not rows:
        return None
    settings = {"lock_timeout": before}
    if outermost:
        settings["idle_in_transaction_session_timeout"] = IDLE_TIMEOUT
    configure(db, settings, local=True)
    return Locked(Author(rows[0][0]), is_counted(rows[0][1]))


class AtomicState(NamedTuple):
    """State that a job's own transaction left behind, once it is over.

    ``ours``: the row carries our claim; ``succeeded``: the job has ended so; ``marked``: its ``on_success`` is left;
    ``stepped``: it continued with its next step.
    """

    id: int
    ours: bool
    succeeded: bool
    marked: bool
    stepped: bool

    @property
    def committed(self) -> bool:
        """True if the transaction was committed."""
        return self.stepped or (self.ours and (self.succeeded or self.marked))


def settle_doubts(db: Database, fences: Sequence[tuple[int, str]]) -> dict[int, AtomicState]:
    """Read what became of jobs whose transactions may have committed; leave out rows that are locked or gone.

    The executor that reported the doubt sent its COMMIT while its transaction had the row locked. An unlocked row is
    therefore final.
    """
    params = {"ids": [job for job, _ in fences], "claim_ids": [claim for _, claim in fences]}
    return {row[0]: AtomicState._make(row) for row in db.fetch("settle_doubts", params)}
