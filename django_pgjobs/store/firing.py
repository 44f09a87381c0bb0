"""Cron entries: declared by code, fired by the leader, run by operators."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.store.database import Database, Params, Rows
from django_pgjobs.store.notifying import Notification, wake_up

MOST_LISTED = 1000
"""Number of entries of one kind that the leader reads at a time."""

LATE_SECONDS = 60.0
"""An entry due for longer than that is late."""


class DeclaredCron(NamedTuple):
    """A cron entry as code declares it. ``payload`` and ``options`` are JSON text."""

    name: str
    job_name: str
    expression: str
    zone: str
    payload: str
    options: str
    misfire: str
    overlap: str


def declare_cron(
    db: Database, declared: DeclaredCron, *, overwrite: bool, fresh_seconds: float, stale_seconds: float = 0.0
) -> bool:
    """Write a declared entry to its row; return whether the row was created or changed.

    A row that agrees is written only if its last declaration is more than ``fresh_seconds`` ago. Without ``overwrite``,
    one that other code has declared is written only if that was more than ``stale_seconds`` ago. May be repeated.
    """
    params = {"overwrite": overwrite, "fresh": fresh_seconds, "stale": stale_seconds}
    return bool(db.fetch("declare_cron", {**declared._asdict(), **params}))


def refresh_crons(db: Database, names: Sequence[str], *, fresh_seconds: float) -> dict[str, bool]:
    """Record that code still declares these entries, at most every ``fresh_seconds``.

    Return those with a row, each with whether it was made at run time: the name is taken then.
    """
    return {row[0]: row[1] for row in db.fetch("refresh_crons", {"names": list(names), "fresh": fresh_seconds})}


def mark_missing_crons(db: Database, names: Sequence[str]) -> list[tuple[str, str]]:
    """Mark entries, whose rows the caller has locked, as missing from code; return (entry name, job name) of each."""
    return [(row[0], row[1]) for row in db.fetch("mark_missing_crons", {"names": list(names)})]


class ListedCron(NamedTuple):
    """A cron entry that may fire, in its state at ``now`` by the database's clock.

    ``busy``: a job of it is unfinished, read only if its overlap policy needs it. ``last_end``: when its last job
    ended, None also if that job is not in the table.
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
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    in_slice: bool = False


def list_crons(
    db: Database,
    *,
    everything: bool,
    beyond: str = "",
    pending: Sequence[str] = (),
    excluded: Sequence[str] = (),
    most: int = MOST_LISTED,
) -> list[ListedCron]:
    """Return entries that may fire: those due, those not planned yet, and ``pending`` ones, without ``excluded`` ones.

    Those due since ``LATE_SECONDS`` are kinds of their own: with all their missed fires to make, or with one. With
    ``everything`` also a slice of all that may fire, by name, from ``beyond`` on. At most ``most`` of each kind.
    """
    params = {
        "everything": everything,
        "beyond": beyond,
        "pending": list(pending),
        "excluded": list(excluded),
        "most": most,
        "grace": LATE_SECONDS,
    }
    return [ListedCron._make(row) for row in db.fetch("list_crons", params)]


def shelve_crons(db: Database, *, seconds: float, most: int = MOST_LISTED) -> list[str]:
    """Put aside entries that are due or not planned but may not fire; return their names.

    They are left alone until their pause is over, something lets them fire, or ``seconds`` have passed.
    """
    return [row[0] for row in db.fetch("shelve_crons", {"seconds": seconds, "most": most})]


class Fired(NamedTuple):
    """A fire marked as made, and its job: None if an unfinished job has its key."""

    fire_at: datetime
    job_id: int | None


def fire_cron(
    db: Database, entry: ListedCron, fires: Sequence[datetime], upcoming: datetime | None, *, notify: bool
) -> list[Fired]:
    """Make fires of an entry, in order: mark them and insert their jobs, all or none. Empty if another leader was
    first.

    ``upcoming``: the fire after them. More than one only where fires may overlap.
    """
    params = {**_as_read(entry), "broken": entry.broken, "fires": list(fires), "upcoming": upcoming, "notify": notify}
    return [Fired(row[1], row[2]) for row in _fire(db, params)]


def _fire(db: Database, params: Params) -> Rows:
    """Insert the jobs of fires, or without fires the job of a run now."""
    unread = dict.fromkeys(("last_fire_at", "last_job_id", "expression", "zone", "broken", "fires", "upcoming"))
    return db.fetch("fire_cron", {**unread, **params, "run_now": "fires" not in params})


def plan_cron(
    db: Database,
    entry: ListedCron,
    upcoming: datetime | None,
    skipped: datetime | None = None,
    *,
    again_seconds: float = 0.0,
) -> bool:
    """Store the next fire, and the last skipped one; return False if the entry changed since it was read.

    Without a next fire, look at the entry again after ``again_seconds``.
    """
    bounds = {"starts_at": entry.starts_at, "ends_at": entry.ends_at}
    params = {**_as_read(entry), **bounds, "upcoming": upcoming, "skipped": skipped, "again": again_seconds}
    return bool(db.fetch("plan_cron", params))


def break_cron(db: Database, entry: ListedCron, reason: str) -> bool:
    """Store why an entry cannot fire, empty if it can; return False if the entry changed since it was read."""
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
    """The result of running an entry now: ``busy`` if its overlap policy forbids it, else the job unless its key is
    taken, and the workers to wake."""

    busy: bool
    job_id: int | None
    wakes: Notification | None


def run_cron(db: Database, name: str) -> RunNow | None:
    """Insert a job of the entry now; None if there is no such entry. Blocks while its row is locked.

    Call it in a transaction: a single statement would look for an unfinished job as of before it waited.
    """
    db.fetch("lock_cron", {"name": name})
    rows = _fire(db, {"name": name, "notify": False})
    if not rows:
        return None
    busy, _, job_id, queue, priority, _ = rows[0]
    return RunNow(busy, job_id, None if job_id is None else wake_up(queue, priority))
