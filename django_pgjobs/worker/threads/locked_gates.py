"""Finds the ends that must wait because another session has locked a gate in which they count. Waits for no lock
itself."""

from __future__ import annotations

from django_pgjobs.ends.kinds import COUNTED
from django_pgjobs.store import gates
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.busy_ends import BusyEnd, BusyEnds, RunEnd

Split = tuple[list[RunEnd], list[BusyEnd]]
"""The ends to write, and those of locked gates."""


def split(db: WorkerConnection, entries: list[RunEnd]) -> Split:
    """Ask for the gates of all these ends."""
    locked = _locked(db, [end.id for _, end in entries])
    free = [entry for entry in entries if entry[1].id not in locked]
    busy = [BusyEnd(COUNTED, entry, min(locked[entry[1].id])) for entry in entries if entry[1].id in locked]
    return free, busy


def split_by(known: BusyEnds, db: WorkerConnection, entries: list[RunEnd]) -> Split:
    """Take the gates that others wait for as locked; ask only for ends whose claim did not name their only gate."""
    awaited = known.gates()
    free = [entry for entry in entries if entry[0].gate and entry[0].gate not in awaited]
    busy = [BusyEnd(COUNTED, entry, entry[0].gate) for entry in entries if entry[0].gate in awaited]
    if unnamed := [entry for entry in entries if not entry[0].gate]:
        more_free, more_busy = split(db, unnamed)
        return free + more_free, busy + more_busy
    return free, busy


def still_locked(known: BusyEnds, db: WorkerConnection) -> set[int]:
    """Return those of the gates that ends wait for that are locked now."""
    awaited = known.gates()
    found = _locked(db, list(awaited.values())) if awaited else {}
    return {gate for gate, job_id in awaited.items() if gate in found.get(job_id, ())}


def _locked(db: WorkerConnection, ids: list[int]) -> dict[int, set[int]]:
    with db.transaction(undo=True):  # to commit the locks would be to wait for the disk
        return gates.list_locked_gates(db, ids)
