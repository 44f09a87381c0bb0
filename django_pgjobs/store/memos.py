"""Memos of durable functions, and their suspensions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.states import CANCEL_MEMBERS, GATHER
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import Author, End, as_array
from django_pgjobs.store.keys import Expired
from django_pgjobs.store.servants import Serving, cancel_of, register_servants

EVENT_SECONDS = 0.05
"""Time that a worker waits for an event that another session has locked before it continues without those who wait."""

NO_SECONDS = 0.001
"""Time that it waits for one while it knows of a lock: 0 would be forever."""

WAITERS_AT_ONCE = 1000
"""Number of jobs that one statement makes ready when an event is sent."""


class StoredMemo(NamedTuple):
    """A memo of a job under a name; ``result`` as JSON text.

    ``left_seconds``: until it wakes, negative afterwards, None if it does not sleep or wait.
    """

    name: str
    kind: str
    result: str | None
    finished: bool
    error: str
    failures: int
    event: str | None
    left_seconds: float | None


def read_memos(db: Database, job_id: int) -> list[StoredMemo]:
    """Return what a job remembers, in no order."""
    return [StoredMemo._make(row) for row in db.fetch("read_memos", {"id": job_id})]


class NewMemo(NamedTuple):
    """A memo to write for a step; ``result`` and ``undo`` as JSON text, ``flow``: bits to set on the job."""

    name: str
    kind: str
    result: str | None
    seconds: float
    flow: int
    undo: str | None = None
    failures: int = 0
    error: str = ""


def write_memo(db: Database, job_id: int, claim_id: str, memo: NewMemo) -> bool:
    """Remember ``memo``; return False if the claim is lost or the name has a finished memo."""
    return bool(db.fetch("write_memo", {"id": job_id, "claim_id": claim_id, **memo._asdict()}))


class Cursors(NamedTuple):
    """The cursors of a job as JSON text, None if it has none, and how many bytes its other options take."""

    text: str | None
    others: int


def read_cursors(db: Database, job_id: int, claim_id: str) -> Cursors | None:
    """Return how far a job has come; None if the claim is lost."""
    rows = db.fetch("read_cursors", {"id": job_id, "claim_id": claim_id})
    return Cursors(rows[0][0], rows[0][1] or 0) if rows else None


def write_cursor(
    db: Database, job_id: int, claim_id: str, *, name: str, cursor: str, progress: str, idle: str | None = None
) -> bool:
    """Keep a cursor under ``name``, with the job's progress, both as JSON text; return False if the claim is lost.

    ``idle``: after how long the server ends the open transaction if no COMMIT comes. Waits for a locked row, then
    raises ``OperationalError``.
    """
    given = {"name": name, "cursor": cursor, "progress": progress, "idle": idle}
    return bool(db.fetch("write_cursor", {"id": job_id, "claim_id": claim_id, **given}))


class Waited(NamedTuple):
    """Result of a wait: ``sent``, ``timed_out``, ``slept``, or ``waiting`` if it continues.

    ``left_seconds``: how long it lasts at most, None if it has not begun.
    """

    status: str
    payload: str | None
    left_seconds: float | None


def finish_wait(
    db: Database, job_id: int, claim_id: str, *, name: str, kind: str, event: str | None, error: str = ""
) -> Waited | None:
    """Remember the end of a sleep or a wait if it is over; return None if the claim is lost.

    ``error``: what to remember if it has timed out.
    """
    rows = db.fetch(
        "finish_wait",
        {"id": job_id, "claim_id": claim_id, "name": name, "kind": kind, "event": event, "error": error},
    )
    return Waited._make(rows[0]) if rows else None


class SuspendedJob(NamedTuple):
    """A job that continues at ``run_at``; ``priority`` is None if a limit holds it. ``due``: at once."""

    id: int
    run_at: datetime
    queue: str
    priority: int | None
    due: bool


def suspend_jobs(db: Database, ends: Sequence[End], author: Author) -> list[SuspendedJob]:
    """Suspend jobs; their ``columns`` say until when. Skips locked rows.

    Lock the events that they wait for before, by ``await_events`` in the same transaction.
    """
    items = as_array(_suspended(end) for end in ends)
    params = {"items": items, "worker": author.worker, "worker_name": author.name, "release": author.release}
    return [SuspendedJob._make(row) for row in db.fetch("suspend_jobs", params)]


def _suspended(end: End) -> str:
    fields = end.with_failure("seconds", "cause") if end.failure is not None else end.as_json("seconds")
    return f"{fields[:-1]}, {end.columns[1:]}"


def await_events(db: Database, names: Collection[str], *, lock_seconds: float | None = None) -> None:
    """Lock events for the rest of the transaction, unsent ones too, in the order of their names.

    ``lock_seconds``: after how long to raise ``LockNotAvailable``; by default as long as the transaction waits.
    """
    timeout = None if lock_seconds is None else f"{round(lock_seconds * 1000)}ms"
    db.fetch("await_events", {"names": sorted(set(names)), "lock_timeout": timeout})


def list_locked_events(db: Database, names: Collection[str]) -> set[str]:
    """Return those of the events that another transaction has locked. Roll back afterwards."""
    return {row[0] for row in db.fetch("list_locked_events", {"names": sorted(set(names))})}


def send_event(db: Database, name: str, payload: str | None, by: str) -> bool:
    """Send an event in the open transaction; return False if it had been sent."""
    return bool(db.fetch("send_event", {"name": name, "payload": payload, "by": by}))


def withdraw_event(db: Database, name: str) -> bool:
    """Take an event back; return False if it was not sent, or if a job has read it."""
    return bool(db.fetch("withdraw_event", {"name": name}))


def delete_events(db: Database, *, older_than_seconds: float, after: str, limit: int) -> Expired:
    """Delete old events that no job waits for, of the next ``limit`` from ``after`` on."""
    params = {"seconds": older_than_seconds, "after": after, "limit": limit}
    count, until = db.fetch("delete_events", params)[0]
    return Expired(count, until or after)


class Waiter(NamedTuple):
    """A job that waits for an event, and the workers to wake; ``queue`` is None if it was not made ready."""

    id: int
    queue: str | None
    priority: int | None


def wake_waiters(db: Database, event: str, *, after: int = 0, most: int = WAITERS_AT_ONCE) -> list[Waiter]:
    """Make jobs ready that wait for a sent event, from the id ``after`` on; return them in the order of their ids."""
    rows = db.fetch("wake_waiters", {"event": event, "after": after, "most": most})
    return sorted(Waiter._make(row) for row in rows)


def begin_gather(
    db: Database,
    job_id: int,
    claim_id: str,
    *,
    name: str,
    event: str,
    before: str | None,
    result: str,
    seconds: float,
) -> bool:
    """Remember that a job waits for a batch; return False if the claim is lost or another run has begun it.

    ``before``: the event of the batch that ran these jobs before, None if none did.
    """
    given = {"name": name, "event": event, "before": before, "result": result, "seconds": seconds}
    return bool(db.fetch("begin_gather", {"id": job_id, "claim_id": claim_id, **given}))


def wake_suspended(db: Database, ids: Collection[int]) -> list[Waiter]:
    """Let suspended jobs continue now, regardless of what they wait for, except jobs that they gather."""
    rows = db.fetch("wake_suspended", {"ids": list(ids)})
    return [Waiter._make(row) for row in rows]


class Sleeper(NamedTuple):
    """A gather by its event; with an ``id``: the job that waits was made ready, and the workers to wake.

    ``batch_id``: the batch to cancel, as the job has ended without a success.
    """

    event: str
    id: int | None
    queue: str
    priority: int | None
    batch_id: int | None


def wake_sleepers(db: Database, *, after: str, limit: int) -> list[Sleeper]:
    """Make jobs ready that wait for jobs which have all ended; return the next gathers behind the event ``after``."""
    rows = db.fetch("wake_sleepers", {"after": after, "limit": limit})
    return sorted((Sleeper._make(row) for row in rows), key=lambda one: one.event)


def list_gathered(db: Database, ids: Collection[int], *, unasked: bool = False) -> list[int]:
    """Return the batches whose jobs these jobs wait for, by ``gather``; ``unasked``: that were not asked to end."""
    return [row[0] for row in db.fetch("list_gathered", {"ids": list(ids), "unasked": unasked})] if ids else []


def cancel_gathered(db: Database, ids: Collection[int]) -> list[Serving]:
    """Register what cancels the jobs that these jobs still gather, which have ended without a success. Wakes no worker.

    Repeatable; if it is not called, as a process has died, the leader finds these gathers.
    """
    return cancel_unawaited(db, list_gathered(db, ids, unasked=True))


def cancel_unawaited(db: Database, batches: Collection[int]) -> list[Serving]:
    """Register what cancels these batches, which no job waits for any more. Wakes no worker."""
    reason = "The job that gathered it has ended."
    cancels = [cancel_of(one, by=GATHER, reason=reason, key=f"{CANCEL_MEMBERS}:{one}") for one in batches]
    return register_servants(db, cancels)


def list_undone(db: Database, ids: Collection[int]) -> set[int]:
    """Return those of the jobs whose undo has begun, or is about to."""
    return {row[0] for row in db.fetch("list_undone", {"ids": list(ids)})}


class Suspension(NamedTuple):
    """The wait of a durable function; ``pending`` of ``total`` jobs of its batch have not ended."""

    kind: str
    name: str
    event: str | None
    wake_at: datetime
    failures: int
    error: str
    batch_id: int | None
    pending: int | None
    total: int | None


def read_suspension(db: Database, job_id: int) -> Suspension | None:
    """Return what a durable function waits for; None if it waits for nothing."""
    rows = db.fetch("read_suspension", {"id": job_id})
    return Suspension._make(rows[0]) if rows else None
