"""Cron entries: declared by code, fired by the leader, run by operators."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.store.database import Database
from django_pgjobs.store.notifying import Notice, wake_up


class DeclaredCron(NamedTuple):
    """What code says of a cron entry. ``payload`` and ``options`` are JSON text."""

    name: str
    job_name: str
    expression: str
    zone: str
    payload: str
    options: str
    misfire: str
    overlap: str


def declare_cron(db: Database, declared: DeclaredCron, *, overwrite: bool, fresh_seconds: float) -> bool:
    """Bring an entry into its row; return whether that was created or written.

    Without ``overwrite`` only a missing row is created. One that says the same is written only when it was declared
    more than ``fresh_seconds`` ago. May be repeated.
    """
    return bool(db.fetch("declare_cron", {**declared._asdict(), "overwrite": overwrite, "fresh": fresh_seconds}))


def refresh_crons(db: Database, names: Sequence[str], *, fresh_seconds: float) -> set[str]:
    """Say that code still has these entries, if nobody has said so for ``fresh_seconds``; return those with a row."""
    return {row[0] for row in db.fetch("refresh_crons", {"names": list(names), "fresh": fresh_seconds})}


def mark_missing_crons(db: Database, names: Sequence[str]) -> list[tuple[str, str]]:
    """Mark entries whose rows the caller has locked as declared by no code; return their names and their jobs'."""
    return [(row[0], row[1]) for row in db.fetch("mark_missing_crons", {"names": list(names)})]


class ListedCron(NamedTuple):
    """A cron entry that may fire, as it stands ``now`` by the database's clock.

    ``busy``: a job of it is not finished, as far as its overlap policy asks. ``last_end``: when its last job ended,
    None also when that is not in the table.
    """

    name: str
    job_name: str
    expression: str
    zone: str
    misfire: str
    overlap: str
    broken: str
    created_at: datetime
    in_force_since: datetime | None
    last_fire_at: datetime | None
    last_job_id: int | None
    next_fire_at: datetime | None
    paused_until: datetime | None
    now: datetime
    busy: bool
    last_end: datetime | None


def list_crons(db: Database, *, everything: bool) -> list[ListedCron]:
    """Return the entries that may fire and are due, or of which that is not known; with ``everything`` all of them."""
    return [ListedCron._make(row) for row in db.fetch("list_crons", {"everything": everything})]


class Fired(NamedTuple):
    """A fire that was marked as made, and its job: None when an unfinished job has its key."""

    job_id: int | None


def fire_cron(
    db: Database, entry: ListedCron, fire_at: datetime, upcoming: datetime | None, *, notify: bool
) -> Fired | None:
    """Make a fire: mark it and insert its job, both or neither. None when somebody else was first."""
    params = {**_as_read(entry), "broken": entry.broken, "fire_at": fire_at, "upcoming": upcoming, "notify": notify}
    rows = db.fetch("fire_cron", params)
    return Fired(rows[0][0]) if rows else None


def plan_cron(db: Database, entry: ListedCron, upcoming: datetime | None, skipped: datetime | None = None) -> bool:
    """Store the next fire, and the last one that was skipped; return whether the entry was still as it was read."""
    params = {**_as_read(entry), "upcoming": upcoming, "skipped": skipped}
    return bool(db.fetch("plan_cron", params))


def break_cron(db: Database, entry: ListedCron, reason: str) -> bool:
    """Write why an entry cannot fire, empty when it can; return whether it was still as it was read."""
    params = {"name": entry.name, "expression": entry.expression, "zone": entry.zone, "reason": reason}
    return bool(db.fetch("break_cron", params))


def _as_read(entry: ListedCron) -> dict[str, object]:
    return {
        "name": entry.name,
        "expression": entry.expression,
        "zone": entry.zone,
        "last_fire_at": entry.last_fire_at,
        "last_job_id": entry.last_job_id,
    }


class RunNow(NamedTuple):
    """What came of running an entry now: ``busy`` when its overlap policy forbids it, else the job unless its key is
    taken, and whom to wake."""

    busy: bool
    job_id: int | None
    wakes: Notice | None


def run_cron(db: Database, name: str) -> RunNow | None:
    """Insert a job of the entry now; None when there is no such entry. Blocks while somebody holds its row.

    In a transaction. A single statement would look for an unfinished job as of before it waited.
    """
    db.fetch("lock_cron", {"name": name})
    rows = db.fetch("run_cron", {"name": name})
    if not rows:
        return None
    busy, job_id, queue, priority = rows[0]
    return RunNow(busy, job_id, None if job_id is None else wake_up(queue, priority))
