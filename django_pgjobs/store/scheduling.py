"""Schedules made at run time: their rows, and whether workers know their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.store.database import Database


class RowCron(NamedTuple):
    """A schedule that is made at run time. ``payload`` and ``options`` are JSON text.

    ``fingerprint``: that of the job definition which the arguments fit.
    """

    name: str
    job_name: str
    expression: str
    zone: str
    payload: str
    options: str
    misfire: str
    overlap: str
    enabled: bool
    starts_at: datetime | None
    ends_at: datetime | None
    max_fires: int | None
    fingerprint: str


class CronAsRead(NamedTuple):
    """The row of an entry; ``is_row``: it was made at run time."""

    is_row: bool
    job_name: str
    expression: str
    zone: str
    misfire: str
    overlap: str
    enabled: bool
    starts_at: datetime | None
    ends_at: datetime | None
    max_fires: int | None
    payload: str
    options: str
    broken: str


def read_cron(db: Database, name: str) -> CronAsRead | None:
    """Return an entry and hold its row until the transaction ends; None if there is none. Blocks while it is locked."""
    rows = db.fetch("read_cron", {"name": name})
    return CronAsRead._make(rows[0]) if rows else None


def put_cron(db: Database, row: RowCron) -> bool | None:
    """Write a schedule to its row; return whether it is new, None if nothing changed or code has the name."""
    rows = db.fetch("put_cron", row._asdict())
    return bool(rows[0][0]) if rows else None


def remove_crons(db: Database, names: Sequence[str]) -> dict[str, bool]:
    """Delete entries if all of them may be deleted; return name → may be deleted, which code's declaration forbids."""
    return {row[0]: row[1] for row in db.fetch("remove_crons", {"names": list(names)})}


class RowJob(NamedTuple):
    """A job that schedules made at run time name; the latter two are None if no worker's code has known it."""

    name: str
    fingerprint: str | None
    seconds: float | None


def list_row_jobs(db: Database) -> list[RowJob]:
    """Return the jobs that schedules made at run time name."""
    return [RowJob._make(row) for row in db.fetch("list_row_jobs", {})]


def confirm_jobs(
    db: Database, known: dict[str, str], *, overwrite: bool, fresh_seconds: float, stale_seconds: float
) -> None:
    """Note the jobs that this code knows (name → fingerprint), agreeing ones at most every ``fresh_seconds``.

    Its fingerprints replace others if no worker has confirmed those for ``stale_seconds``, or with ``overwrite``: this
    code is the newest.
    """
    params = {"names": list(known), "fingerprints": list(known.values()), "overwrite": overwrite}
    db.fetch("confirm_jobs", {**params, "fresh": fresh_seconds, "stale": stale_seconds})


class Unchecked(NamedTuple):
    """A schedule whose arguments are not checked against the present code; ``before``: what they fitted."""

    name: str
    payload: str
    before: str


def list_unchecked_crons(db: Database, job_name: str, fingerprint: str, *, most: int) -> list[Unchecked]:
    """Return schedules of a job whose arguments are not checked against the code of this fingerprint."""
    params = {"job_name": job_name, "fingerprint": fingerprint, "most": most}
    return [Unchecked._make(row) for row in db.fetch("list_unchecked_crons", params)]


def judge_crons(
    db: Database, job_name: str, fingerprint: str, judged: Sequence[tuple[Unchecked, str]]
) -> list[tuple[str, str]]:
    """Store why the arguments of schedules do not fit, empty if they do; return (name, reason) of those changed."""
    params = {
        "job_name": job_name,
        "fingerprint": fingerprint,
        "names": [entry.name for entry, _ in judged],
        "payloads": [entry.payload for entry, _ in judged],
        "before": [entry.before for entry, _ in judged],
        "reasons": [reason for _, reason in judged],
    }
    return [(row[0], row[1]) for row in db.fetch("judge_crons", params)]


def orphan_crons(db: Database, job_name: str, reason: str, *, older_seconds: float, most: int) -> list[str]:
    """Mark schedules of a job that no worker's code knows as broken; return the names of those marked.

    It leaves those that were registered less than ``older_seconds`` ago.
    """
    params = {"job_name": job_name, "reason": reason, "older": older_seconds, "most": most}
    return [row[0] for row in db.fetch("orphan_crons", params)]


class FiredJob(NamedTuple):
    """A job that a cron entry has registered."""

    cron_entry: str
    id: int
    state: str


def list_fired(db: Database, names: Sequence[str], *, most: int) -> list[FiredJob]:
    """Return the latest jobs of these cron entries, up to ``most`` of each, the latest of an entry first."""
    return [FiredJob._make(row) for row in db.fetch("list_fired", {"names": list(names), "most": most})]
