"""Keeping what is claimed: leases, flags, heartbeats; and taking back what others have lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django_pgjobs.store.database import Database, Transacting
from django_pgjobs.store.ends import Released


def renew_claims(db: Database, check_ins: Mapping[str, float], *, lease_seconds: float) -> set[str]:
    """Extend the leases of these claims; ``check_ins`` says in how many seconds others check each.

    Returns the claims all of whose ledger rows were renewed; of one that is missing some were rescued, or are held by
    somebody for the moment.
    """
    params = {"claim_ids": list(check_ins), "check_ins": list(check_ins.values()), "lease": lease_seconds}
    return {str(row[0]) for row in db.fetch("renew_claims", params)}


class Flag(NamedTuple):
    """A claimed job that is no longer plainly ours, or that somebody wants something of."""

    id: int
    claim_id: str
    lost: bool
    cancelled: bool
    mode: str
    by: str
    reason: str
    released: bool


def read_flags(db: Database, fences: Sequence[tuple[int, str]]) -> list[Flag]:
    """Return those of the claimed (id, claim_id) that were lost, are to be cancelled or are to be released."""
    params = {"ids": [job for job, _ in fences], "claim_ids": [claim for _, claim in fences]}
    return [Flag(row[0], str(row[1]), *row[2:]) for row in db.fetch("read_flags", params)]


def beat(db: Database, facts: Mapping[str, object]) -> None:
    """Write this worker's heartbeat row; ``facts`` are its columns. One that says *stopped* is its last."""
    db.fetch("beat", facts)


def unpark_jobs(db: Database, fingerprints: Mapping[str, str], *, limit: int) -> list[Released]:
    """Resume parked jobs that other code parked than that of ``fingerprints`` (name → fingerprint)."""
    params = {"names": list(fingerprints), "fingerprints": list(fingerprints.values()), "limit": limit}
    return [Released(*row) for row in db.fetch("unpark_jobs", params)]


def terminate_backends(db: Transacting, application_name: str) -> int:
    """Have the server processes end that a killed executor left behind; return how many were still there.

    Its connections carry its name. A terminated process ends a moment later: 0 says that all have ended. The server
    knows them by the role that has logged in, and lets that one end them; not a role that it has taken on.
    """
    params = {"application_name": application_name}
    return len(db.fetch_together([("reset_role", {}), ("terminate_backends", params)])[1])


class Identity(NamedTuple):
    """Which database a connection sees."""

    system: str
    database: int
    table: int | None
    backend_pid: int
    max_connections: int


def read_identity(db: Database) -> Identity:
    """Return which database and which job table this connection sees; ``table`` is None before our migrations."""
    return Identity._make(db.fetch("read_identity", {})[0])


def mark_waited(db: Database, job_id: int) -> bool | None:
    """Ask for a notification at the job's end; return whether it has ended, None when it is not committed."""
    rows = db.fetch("mark_waited", {"id": job_id})
    return bool(rows[0][0]) if rows else None


class Rescued(NamedTuple):
    """A job that was rescued from a worker that had lost it.

    ``outcome`` is how it ended (empty: it is ready again), ``ending`` the end before which only its callback is left.
    """

    id: int
    name: str
    queue: str
    priority: int
    attempt: int
    claim_id: UUID
    message: str
    outcome: str
    ending: str
    cause: str


def check_claims(db: Database, *, soon_seconds: float) -> tuple[datetime, bool]:
    """Return the server's time, and whether a ledger row is due for a look by then or within ``soon_seconds``."""
    row = db.fetch("check_claims", {"soon": soon_seconds})[0]
    return row[0], bool(row[1])


def rescue_jobs(
    db: Database,
    *,
    limit: int,
    quiet_seconds: float,
    grace_seconds: float,
    stale_seconds: float,
    without_on_cancel: Sequence[str],
    without_on_abandon: Sequence[str],
    seen: datetime | None = None,
    held: Sequence[str] = (),
) -> list[Rescued]:
    """Take back the jobs of up to ``limit`` ledger rows that are due for a look.

    Only what had expired by ``seen`` is taken, a time of the server that whoever asks has read; None stands for the
    time at which the statement gets there, however late. The claims in ``held`` are the caller's own and left alone.
    Nothing is taken within ``quiet_seconds`` of the server's start, nor for a passed deadline before
    ``grace_seconds`` after it. A name in neither list has a callback, or is not known here.
    """
    params = {
        "limit": limit,
        "quiet": quiet_seconds,
        "grace": grace_seconds,
        "stale": stale_seconds,
        "without_on_cancel": list(without_on_cancel),
        "without_on_abandon": list(without_on_abandon),
        "seen": seen,
        "held": list(held),
    }
    return [Rescued._make(row[:10]) for row in db.fetch("rescue_jobs", params)]


def mark_lost(db: Database, taken: Sequence[Rescued], *, quiet_seconds: float) -> list[str]:
    """Mark the workers that lost these jobs as *lost*; return their names. A heartbeat of theirs clears it.

    A worker that still has a lease, or was heard from within ``quiet_seconds``, lives and is left alone.
    """
    params = {
        "ids": [job.id for job in taken],
        "claim_ids": [job.claim_id for job in taken],
        "quiet": quiet_seconds,
    }
    return [row[0] for row in db.fetch("mark_lost", params)]
