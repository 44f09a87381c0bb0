"""Keep claims (leases, flags, heartbeats), and rescue jobs that other workers have lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django_pgjobs.store.database import Database, Transacting
from django_pgjobs.store.finalising import Author, ReleasedJob


def renew_claims(db: Database, check_ins: Mapping[str, float], *, lease_seconds: float) -> set[str]:
    """Extend the leases of these claims; ``check_ins``: claim → seconds until others check it.

    Return the claims whose ledger rows were all renewed. If one is missing, some of its jobs were rescued, or one of
    its rows is locked at the moment.
    """
    params = {"claim_ids": list(check_ins), "check_ins": list(check_ins.values()), "lease": lease_seconds}
    return {str(row[0]) for row in db.fetch("renew_claims", params)}


class Flag(NamedTuple):
    """A claimed job that may be lost, or that carries a request to cancel or release it."""

    id: int
    claim_id: str
    lost: bool
    cancelled: bool
    mode: str
    by: str
    reason: str
    released: bool


def read_flags(db: Database, fences: Sequence[tuple[int, str]]) -> list[Flag]:
    """Return the claimed (id, claim_id) that are lost, or that were asked to cancel or release."""
    params = {"ids": [job for job, _ in fences], "claim_ids": [claim for _, claim in fences]}
    return [Flag(row[0], str(row[1]), *row[2:]) for row in db.fetch("read_flags", params)]


class Control(NamedTuple):
    """A request to this worker: its number, 0 if there was none, what it asks for, by whom and why.

    ``stacks``: whether there are open requests for stacks of its jobs.
    """

    number: int
    verb: str
    by: str
    reason: str
    stacks: bool = False


_BEATS_WITHOUT = {
    "places": None, "deaths": 0, "death": "", "died_seconds": None, "suspects": None, "control_taken": 0,
}  # fmt: skip


def beat(db: Database, facts: Mapping[str, object]) -> Control | None:
    """Write this worker's heartbeat row, and return the last request to it; ``facts``: its columns.

    A row with status *stopped* is the last: None if there is one already.
    """
    rows = db.fetch("beat", {**_BEATS_WITHOUT, **facts})
    return Control._make(rows[0]) if rows else None


class Controlled(NamedTuple):
    """A worker that was to be asked for something: its status, whether it ``was`` asked, and its last heartbeat."""

    id: UUID
    name: str
    status: str
    was: bool
    beat_age_seconds: float


def control_workers(
    db: Database,
    ids: Sequence[UUID],
    control: str,
    *,
    by: str,
    reason: str,
    silent_seconds: float,
    stale_seconds: float,
) -> list[Controlled]:
    """Ask these workers for something; those that are gone or drain are not asked. Unknown ones are left out."""
    words = {"control": control, "by": by, "reason": reason}
    params = {"ids": list(ids), **words, "silent": silent_seconds, "stale": stale_seconds}
    return [Controlled._make(row) for row in db.fetch("control_workers", params)]


class Crash(NamedTuple):
    """A job that was in an executor when it died, and runs again, uncharged. ``note``: the id of what is told of it."""

    id: int
    note: str
    number: int
    seconds: float | None
    exception: str
    message: str


def record_crashes(db: Database, crashes: Sequence[tuple[Crash, float]], author: Author) -> None:
    """Add crashes, each so many seconds ago, to the retry histories of their jobs. Repeatable."""
    items = json.dumps([{**crash._asdict(), "ago": ago} for crash, ago in crashes])
    about = {"worker": author.worker, "worker_name": author.name, "release": author.release}
    db.fetch("record_crashes", {"items": items, **about})


def unpark_jobs(db: Database, fingerprints: Mapping[str, str], *, limit: int) -> list[ReleasedJob]:
    """Resume up to ``limit`` jobs that code other than that of ``fingerprints`` (name → fingerprint) has parked."""
    params = {"names": list(fingerprints), "fingerprints": list(fingerprints.values()), "limit": limit}
    return [ReleasedJob(*row) for row in db.fetch("unpark_jobs", params)]


def list_parked_names(db: Database, known: Iterable[str], *, limit: int) -> list[str]:
    """Return the names of parked jobs that are not among ``known``, at most ``limit``."""
    return [name for (name,) in db.fetch("list_parked_names", {"known": list(known), "limit": limit})]


def terminate_backends(db: Transacting, application_name: str) -> int:
    """Terminate the server processes that a killed executor left behind; return how many still existed.

    They carry the executor's name. A terminated process ends a moment later: 0 means that all have ended. They belong
    to the role that logged in, and the server lets only that role end them, not a role that it has taken on.
    """
    params = {"application_name": application_name}
    return len(db.fetch_together([("reset_role", {}), ("terminate_backends", params)])[1])


class Identity(NamedTuple):
    """The database that a connection sees; ``deadlock_seconds``: its ``deadlock_timeout``."""

    system: str
    database: int
    table: int | None
    backend_pid: int
    max_connections: int
    deadlock_seconds: float
    citus: bool

    @property
    def table_identity(self) -> tuple[str, int, int | None]:
        """The database and the table: the same on every connection to them, and on none to others."""
        return (self.system, self.database, self.table)


def read_identity(db: Database) -> Identity:
    """Return the database and the job table that this connection sees; ``table`` is None before our migrations."""
    return Identity._make(db.fetch("read_identity", {})[0])


def list_columns(db: Database, tables: Iterable[str]) -> set[tuple[str, str]]:
    """Return the columns that these tables have here, as pairs of a table and a name."""
    return {(table, column) for table, column in db.fetch("list_columns", {"tables": list(tables)})}


def read_distributed(db: Database, seen: Identity) -> bool:
    """Return whether Citus has distributed tables of ours, which costs most of a queue's speed."""
    return seen.citus and bool(db.fetch("read_distributed", {})[0][0])


class Marked(NamedTuple):
    """State of a job: whether it has ended; and whether its end will notify, which it will not if its row was locked
    just now."""

    ended: bool
    marked: bool


def mark_waited(db: Database, job_id: int) -> Marked | None:
    """Ask for a notification at the job's end; return None if it is not committed."""
    rows = db.fetch("mark_waited", {"id": job_id})
    return Marked._make(rows[0]) if rows else None


class ExpiredJob(NamedTuple):
    """A job that expired before it started; ``ended`` is false if its callback is left."""

    id: int
    name: str
    queue: str
    attempt: int
    ended: bool


class ExpiredJobs(NamedTuple):
    """Jobs that expired, whom to wake (a priority of None: admitters), and the expiry that the walk has reached."""

    jobs: list[ExpiredJob]
    wakes: set[tuple[str, int | None]]
    until: str


def expire_jobs(db: Database, *, after: str, limit: int, reason: str, without_on_cancel: Sequence[str]) -> ExpiredJobs:
    """Cancel up to ``limit`` unclaimed jobs that expired at ``after`` or later; skips locked rows.

    Jobs whose name is in ``without_on_cancel`` end at once; of others the callback is left.
    """
    params = {"after": after, "limit": limit, "reason": reason, "without_on_cancel": list(without_on_cancel)}
    rows = db.fetch("expire_jobs", params)
    return ExpiredJobs(
        [ExpiredJob(job_id, name, queue, attempt, ended) for job_id, name, queue, _, _, attempt, ended, *_ in rows],
        {(queue, priority) for _, _, queue, priority, silent, *_ in rows if not silent},
        rows[0][7] if rows else after,
    )


class Rescued(NamedTuple):
    """A job that was rescued from a worker that had lost it.

    ``outcome``: how it ended, empty if it is ready again. ``ending``: the outcome to come if only its callback is left.
    ``given_up``: this rescue abandons it, with or without a callback to come.
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
    given_up: bool = False


def check_claims(db: Database, *, soon_seconds: float) -> tuple[datetime, bool]:
    """Return the server's time, and whether a lease has run out or will within ``soon_seconds``."""
    row = db.fetch("check_claims", {"soon": soon_seconds})[0]
    return row[0], bool(row[1])


class ThereIs(NamedTuple):
    """Rows for the duties of workers: never a no where a duty would find some, perhaps a yes where it finds none.

    ``leases``: one runs out soon. ``unled``: no worker leads. What only a leader asks is None for others: ``fires``: a
    cron entry is to be fired or planned soon; ``crons``: there is any.
    """

    leases: bool
    paused_jobs: bool
    gates: bool
    limited_jobs: bool
    pauses: bool
    unled: bool
    expired_jobs: bool | None
    fires: bool | None
    crons: bool | None


def check_duties(
    db: Database, *, lease_seconds: float, fire_seconds: float, leads: bool, expired_after: str
) -> ThereIs:
    """Return what there is to do; leases and fires within so many seconds. ``expired_after``: see ``expire_jobs``."""
    params = {"lease": lease_seconds, "fire": fire_seconds, "leads": leads, "after": expired_after}
    found = ThereIs._make(db.fetch("check_duties", params)[0])
    return found if leads else found._replace(expired_jobs=None, fires=None, crons=None)


def list_unheld(db: Database, claim_ids: Sequence[str], held: Sequence[int], *, most: int) -> list[tuple[int, str]]:
    """Return (id, claim_id) of the unfinished jobs that carry one of these claims and are not among those ``held``."""
    rows = db.fetch("list_unheld", {"claim_ids": list(claim_ids), "held": list(held), "limit": most})
    return [(row[0], str(row[1])) for row in rows]


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
    overdue: Sequence[tuple[int, str]] = (),
) -> list[Rescued]:
    """Rescue the jobs of up to ``limit`` ledger rows that are due for a check.

    It takes only leases that had expired by ``seen``, a time of the server that the caller has read; None stands for
    the statement's own time, however late it arrives. ``held``: the caller's own claims, which it leaves alone, but for
    the jobs in ``overdue``, (id, claim_id): the caller could not stop them, and their deadlines passed
    ``grace_seconds`` ago. It takes nothing within ``quiet_seconds`` of the server's start. A name in neither list has a
    callback, or is not known here.
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
        "given_up": list({claim_id for _, claim_id in overdue}),
        "overdue": [job_id for job_id, _ in overdue],
    }
    return [Rescued._make(row[:11]) for row in db.fetch("rescue_jobs", params)]


def mark_lost(db: Database, taken: Sequence[Rescued], *, quiet_seconds: float) -> list[str]:
    """Mark the workers that lost these jobs as *lost*; return their names. Their next heartbeat clears it.

    A worker that still has a lease, or has beaten within ``quiet_seconds``, is alive and left alone.
    """
    params = {
        "ids": [job.id for job in taken],
        "claim_ids": [job.claim_id for job in taken],
        "quiet": quiet_seconds,
    }
    return [row[0] for row in db.fetch("mark_lost", params)]
