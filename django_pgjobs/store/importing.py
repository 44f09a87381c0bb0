"""The statements of ``pgjobs import``: for each source those on its tables, and those on the notes and jobs here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from django_pgjobs.store import turns
from django_pgjobs.store.database import Database, Params, Rows
from django_pgjobs.store.gates import notices_of
from django_pgjobs.store.notifying import Notification

Ask = Callable[[Database, Params], Rows]


class SourceTables(NamedTuple):
    """The statements on the tables of one source.

    ``lock``: the next rows, by their ids; ``read``: those rows, or without ids the next; ``take``: mark or delete them,
    and note which jobs they are here; ``put_back``: let them wait there again.
    """

    lock: Ask
    read: Ask
    take: Ask
    put_back: Ask


def _tables_of(source: str) -> SourceTables:
    """Return the statements whose names end so."""

    def ask(verb: str) -> Ask:
        return lambda db, params: db.fetch(f"{verb}_{source}", params)

    return SourceTables(ask("lock"), ask("read"), ask("take"), ask("return"))


PROCRASTINATE = _tables_of("procrastinate")
TASKS_DB = _tables_of("tasks_db")
OX = _tables_of("ox")
Q2_JOBS = _tables_of("q2_jobs")
DJ_QUEUE = _tables_of("dj_queue")

# Schedulers, whose rows come all at once: ``take`` disables or deletes them, ``put_back`` lets them fire there again.

BEAT = _tables_of("beat")
Q2 = _tables_of("q2")
OX_SCHEDULES = _tables_of("ox_schedules")


class Imported(NamedTuple):
    """A job or schedule of a run: where it came from, its id there, and the id of the job or the name here."""

    source: str
    source_id: str
    job_id: int | None
    entry: str | None = None


def list_imported(db: Database, run: str, *, after: str, most: int) -> list[Imported]:
    """Return the next jobs of a run of an import, in the order of their ids there."""
    return [Imported(*row) for row in db.fetch("list_imported", {"run": run, "after": after, "most": most})]


def lock_imported(db: Database, ids: Sequence[int]) -> set[int]:
    """Lock those of these jobs that no worker has started; return them."""
    return {row[0] for row in db.fetch("lock_imported", {"ids": list(ids)})}


def withdraw_imported(db: Database, notes: Sequence[Imported], run: str) -> list[Notification]:
    """Delete locked jobs that wait at their source again, and all of these notes; return the notices for workers.

    If one of them had the turn in its sequence, the next one gets it.
    """
    ids = [note.job_id for note in notes if note.job_id is not None]
    source_ids = [note.source_id for note in notes]
    rows = db.fetch("withdraw_imported", {"ids": ids, "source_ids": source_ids, "run": run})
    sequences = {sequence for (sequence,) in rows if sequence is not None}
    if not sequences:
        return []
    turns.lock_sequences(db, sequences)
    return list(notices_of(turns.pass_turns(db, sequences)))
