"""Ways round locks, for kinds of ends that others can keep from being written by more than a lock on the job's row.

Each takes a batch and the error of its statement, writes the ends that can be written, and returns the busy ones; or
None if the error is none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import psycopg

from django_pgjobs.ends.kinds import AWAIT, COUNTED, DELETE, END, NEXT, SUCCESS, EndKind, kept_as
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import gates, memos
from django_pgjobs.store.database import LOCKED, is_objection
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.busy_ends import BusyEnd, BusyEnds, RunEnd
from django_pgjobs.worker.threads.inbox_messages import StoredEnd

E = TypeVar("E", RunEnd, StoredEnd)

Split = tuple[list[RunEnd], list[BusyEnd]]
"""The ends to write, and those that have to wait."""


class _Writer(Protocol):
    skips_locked: bool

    def write(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd]) -> list[BusyEnd]: ...

    def write_free(self, db: WorkerConnection, kind: EndKind, entries: list[RunEnd]) -> list[BusyEnd]: ...


def _delete(writer: _Writer, db: WorkerConnection, entries: list[RunEnd], error: Exception) -> list[BusyEnd] | None:
    """Keep rows to which another table points, or which a trigger does not let go."""
    if not is_objection(error):
        return None
    log.debug("ended jobs cannot be deleted and are kept: %s", one_line(error))
    return keep(writer, db, entries)


def _next(writer: _Writer, db: WorkerConnection, entries: list[RunEnd], error: Exception) -> list[BusyEnd] | None:
    """Find the job whose key another session is about to commit in the queue of its next step."""
    is_ours = isinstance(error, LOCKED) or _key_is_taken(error)
    return halve(writer, db, NEXT, entries) if is_ours else None


def _counted(writer: _Writer, db: WorkerConnection, entries: list[RunEnd], error: Exception) -> list[BusyEnd] | None:
    """Write the ends whose gates no other session has locked."""
    if not isinstance(error, LOCKED):
        return None
    free, busy = _split(db, entries)
    if len(free) == len(entries):  # the gate was released just now
        return halve(writer, db, COUNTED, entries)
    return busy + (writer.write_free(db, COUNTED, free) if free else [])


def _await(writer: _Writer, db: WorkerConnection, entries: list[RunEnd], error: Exception) -> list[BusyEnd] | None:
    """Suspend the jobs whose events no other session has locked: a sender may take long to commit."""
    if not isinstance(error, LOCKED):
        return None
    writer.skips_locked = True
    with db.transaction(undo=True):  # to commit the locks would be to wait for the disk
        locked = memos.list_locked_events(db, [event for _, end in entries for event in end.events])
    if not locked:  # some unknown event is about to be sent, or its lock was released just now
        return halve(writer, db, AWAIT, entries)
    free = [entry for entry in entries if locked.isdisjoint(entry[1].events)]
    busy = [BusyEnd(AWAIT, entry) for entry in entries if not locked.isdisjoint(entry[1].events)]
    return busy + (writer.write_free(db, AWAIT, free) if free else [])


WAYS_ROUND: dict[EndKind, Callable[[_Writer, WorkerConnection, list[RunEnd], Exception], list[BusyEnd] | None]] = {
    DELETE: _delete, NEXT: _next, COUNTED: _counted, AWAIT: _await,
}  # fmt: skip


def halve(writer: _Writer, db: WorkerConnection, kind: EndKind, entries: list[RunEnd]) -> list[BusyEnd]:
    """Write each half by itself; one alone is busy."""
    if len(entries) == 1:
        return [BusyEnd(kind, entries[0])]
    half = len(entries) // 2
    return writer.write(db, kind, entries[:half]) + writer.write(db, kind, entries[half:])


def keep(writer: _Writer, db: WorkerConnection, entries: list[RunEnd]) -> list[BusyEnd]:
    """End jobs that were not deleted, and keep their rows."""
    return [busy for kind, some in by_kept(entries) for busy in writer.write(db, kind, some)]


def by_kept(entries: Sequence[E]) -> Iterator[tuple[EndKind, list[E]]]:
    """Split entries of a mixed kind: into successes and other ends."""
    for kind in (SUCCESS, END):
        if some := [entry for entry in entries if kept_as(entry[1]) is kind]:
            yield kind, some


def split_known(known: BusyEnds, db: WorkerConnection, entries: list[RunEnd]) -> Split:
    """Take the gates that others wait for as locked; ask only for ends whose claim did not name their only gate."""
    awaited = known.gates()
    free = [entry for entry in entries if entry[0].gate and entry[0].gate not in awaited]
    busy = [BusyEnd(COUNTED, entry, entry[0].gate) for entry in entries if entry[0].gate in awaited]
    if unnamed := [entry for entry in entries if not entry[0].gate]:
        more_free, more_busy = _split(db, unnamed)
        return free + more_free, busy + more_busy
    return free, busy


def still_locked(known: BusyEnds, db: WorkerConnection) -> set[int]:
    """Return those of the gates that ends wait for that are locked now."""
    awaited = known.gates()
    found = _locked(db, list(awaited.values())) if awaited else {}
    return {gate for gate, job_id in awaited.items() if gate in found.get(job_id, ())}


def _split(db: WorkerConnection, entries: list[RunEnd]) -> Split:
    """Ask for the gates of all these ends."""
    locked = _locked(db, [end.id for _, end in entries])
    free = [entry for entry in entries if entry[1].id not in locked]
    busy = [BusyEnd(COUNTED, entry, min(locked[entry[1].id])) for entry in entries if entry[1].id in locked]
    return free, busy


def _locked(db: WorkerConnection, ids: list[int]) -> dict[int, set[int]]:
    with db.transaction(undo=True):  # to commit the locks would be to wait for the disk
        return gates.list_locked_gates(db, ids)


def _key_is_taken(error: Exception) -> bool:
    return isinstance(error, psycopg.errors.UniqueViolation) and error.diag.constraint_name == "pgjobs_job_unique_key"
