"""The only caller of ``sql/``: one typed function a statement, rows in, plain values out.

It knows no model and no policy. Every function takes the ``Database`` it runs on: a worker's own connection
(``worker.connection``) or, for registering, steering and tests, Django's (``on(alias)``). It never commits and
never retries; whoever owns the connection does.

Fenced functions return the ids they recorded. A missing id is a normal answer: *busy* (somebody holds the row),
*lost* (the claim is no longer ours), *done* (recorded before) or *cancelled* meanwhile; ``read_fences`` tells which.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from django.db import connections

from django_pgjobs import sql
from django_pgjobs.decisions import Failure

COPY_FROM_JOBS = 200
"""Rows from which a COPY is faster than one multi-row INSERT (benchmarks/registering.py)."""

INLINE_PAYLOAD_BYTES = 65_536
"""Payloads over this do not travel through the channel; the executor reads them under the fence."""

Params = Mapping[str, Any]
Rows = list[tuple[Any, ...]]


def statement(name: str) -> str:
    """Return the text of a statement, for a connection that runs it itself."""
    return sql.statement(name)


class Database(Protocol):
    """A connection that runs statements of ``sql/``."""

    def fetch(self, name: str, params: Params) -> Rows:
        """Run the statement and return its rows."""
        ...


class DjangoDatabase:
    """Django's connection of an alias, inside whatever transaction the caller has open."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def fetch(self, name: str, params: Params) -> Rows:
        """Run the statement and return its rows."""
        with connections[self.alias].cursor() as cursor:
            cursor.execute(sql.statement(name), params)
            return list(cursor.fetchall()) if cursor.description else []


def on(alias: str) -> DjangoDatabase:
    """Return Django's connection ``alias`` as a ``Database``."""
    return DjangoDatabase(alias)


# --- registering ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewJob:
    """What a registration writes. ``payload`` and ``headers`` are JSON text, durations seconds."""

    name: str
    payload: str
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 5
    timeout_seconds: float | None = None
    headers: str | None = None
    description: str = ""
    run_at: datetime | None = None
    delay_seconds: float | None = None


class Registered(NamedTuple):
    """What the database made of a registration."""

    id: int
    run_at: datetime
    created_at: datetime


def register_job(using: str, new: NewJob, *, notify: bool) -> Registered:
    """Insert one job in the caller's transaction; wake a worker at its commit if ``notify``."""
    params = {
        "name": new.name,
        "queue": new.queue,
        "priority": new.priority,
        "max_attempts": new.max_attempts,
        "timeout": new.timeout_seconds,
        "payload": new.payload,
        "headers": new.headers,
        "description": new.description,
        "run_at": new.run_at,
        "delay": new.delay_seconds or 0.0,
        "notify": notify,
    }
    row = on(using).fetch("register_job", params)[0]
    return Registered(*row[:3])


def register_jobs(using: str, new: Sequence[NewJob], *, notify: bool) -> list[int]:
    """Insert many jobs in the caller's transaction, by COPY from ``COPY_FROM_JOBS`` on; ids in input order."""
    if not new:
        return []
    ids = _copy_jobs(using, new) if len(new) >= COPY_FROM_JOBS else _insert_jobs(using, new)
    if notify:
        notify_queues(on(using), {(job.queue, job.priority) for job in new})
    return ids


def _insert_jobs(using: str, new: Sequence[NewJob]) -> list[int]:
    rows = on(using).fetch("register_jobs", {"jobs": "[" + ",".join(map(_job_as_json, new)) + "]"})
    return [row[0] for row in rows]


def _job_as_json(new: NewJob) -> str:
    fields = json.dumps(
        {
            "name": new.name,
            "queue": new.queue,
            "priority": new.priority,
            "max_attempts": new.max_attempts,
            "timeout": new.timeout_seconds,
            "description": new.description,
            "run_at": new.run_at.isoformat() if new.run_at else None,
            "delay": new.delay_seconds or 0.0,
        }
    )
    return f'{fields[:-1]}, "payload": {new.payload}, "headers": {new.headers or "null"}}}'


def _copy_jobs(using: str, new: Sequence[NewJob]) -> list[int]:
    reserved = on(using).fetch("reserve_ids", {"count": len(new)})
    with connections[using].cursor() as cursor, cursor.copy(sql.statement("copy_jobs")) as copy:
        for (job_id, now), job in zip(reserved, new, strict=True):
            run_at = (job.run_at or now) + timedelta(seconds=job.delay_seconds or 0.0)
            copy.write_row(
                (
                    job_id, job.name, job.queue, job.priority, job.max_attempts, job.timeout_seconds,
                    job.payload, job.headers, job.description, run_at,
                )
            )  # fmt: skip
    return [row[0] for row in reserved]


def notify_queues(db: Database, pairs: Iterable[tuple[str, int]]) -> None:
    """Wake workers that serve these (queue, priority) pairs, at the commit of the open transaction if there is one."""
    known = sorted(pairs)
    if known:
        db.fetch("notify_queues", {"queues": [q for q, _ in known], "priorities": [p for _, p in known]})


# --- claiming ------------------------------------------------------------------------------------------------------


class ClaimedJob(NamedTuple):
    """A job as the claim returns it; ``payload`` is JSON text, or None when it is too big for the channel."""

    id: int
    queue: str
    priority: int
    run_at: datetime
    name: str
    attempt: int
    max_attempts: int
    timeout_seconds: float | None
    ending: str | None
    ending_attempt: int
    cancelled: bool
    description: str
    payload: str | None
    headers: str | None
    error: str


class Pair(NamedTuple):
    """A queue at one priority, and where its claim begins."""

    queue: str
    priority: int
    run_at: datetime
    id: int


def claim_jobs(
    db: Database,
    pairs: Sequence[Pair],
    *,
    claim_id: UUID,
    worker: UUID,
    limit: int,
    lease_seconds: float,
    allowance_seconds: float,
    grace_seconds: float,
) -> list[ClaimedJob]:
    """Claim up to ``limit`` ready jobs, best pair first, and return them in the order they shall start.

    ``claim_id`` must be made freshly for each call, a repetition after a lost answer included: it is the fence.
    """
    params = {
        "queues": [pair.queue for pair in pairs],
        "priorities": [pair.priority for pair in pairs],
        "run_ats": [pair.run_at for pair in pairs],
        "ids": [pair.id for pair in pairs],
        "limit": limit,
        "claim_id": claim_id,
        "worker": worker,
        "lease": lease_seconds,
        "allowance": allowance_seconds,
        "grace": grace_seconds,
        "inline_bytes": INLINE_PAYLOAD_BYTES,
    }
    jobs = [ClaimedJob._make(row) for row in db.fetch("claim_jobs", params)]
    jobs.sort(key=lambda job: (-job.priority, job.run_at, job.id))
    return jobs


def list_pairs(db: Database) -> list[tuple[str, int]]:
    """Return every (queue, priority) that has a claimable or running job."""
    return [(row[0], row[1]) for row in db.fetch("list_pairs", {})]


def next_due(db: Database, pairs: Sequence[tuple[str, int]]) -> float | None:
    """Return the seconds until the next job of ``pairs`` is due by the database's clock; None when none is."""
    rows = db.fetch("next_due", {"queues": [p[0] for p in pairs], "priorities": [p[1] for p in pairs]})
    return None if rows[0][0] is None else float(rows[0][0])


def read_claim(db: Database, claim_id: UUID) -> list[int]:
    """Return the ids that a claim statement took whose answer was lost."""
    return [row[0] for row in db.fetch("read_claim", {"claim_id": claim_id})]


def park_unclaimable(db: Database, pair: Pair, reason: str) -> list[int]:
    """Park the first ready job of ``pair``, the one whose data made the claim fail."""
    params = {
        "queue": pair.queue,
        "priority": pair.priority,
        "run_at": pair.run_at,
        "after_id": pair.id,
        "reason": reason,
    }
    return [row[0] for row in db.fetch("park_unclaimable", params)]


# --- finalising: every write made for an attempt, fenced by (id, claim_id) -------------------------------------------


@dataclass(frozen=True, slots=True)
class Author:
    """The worker that writes: its id, its label, and the release of the code it runs."""

    worker: UUID
    name: str = ""
    release: str = ""


@dataclass(slots=True)
class End:
    """One attempt's end as a fenced statement takes it; only the fields its statement reads need a value.

    Not frozen: one is made per job, and a frozen one costs four times as much.
    """

    id: int
    claim_id: str
    seconds: float | None = None
    result: str | None = None
    delay: float = 0.0
    outcome: str = ""
    cause: str | None = None
    reason: str = ""
    fingerprint: str = ""
    failure: Failure | None = None

    def as_json(self, *keys: str) -> str:
        """Return a JSON object of the fence and of ``keys``."""
        fields: dict[str, object] = {"id": self.id, "claim_id": self.claim_id}
        fields.update((key, getattr(self, key)) for key in keys)
        return json.dumps(fields)

    def with_failure(self, *keys: str) -> str:
        """Return the same with the failure's columns; all null when there was none."""
        failure = self.failure
        fields: dict[str, object] = {"id": self.id, "claim_id": self.claim_id}
        fields.update((key, getattr(self, key)) for key in keys)
        if failure is not None:
            fields |= {
                "error": failure.summary,
                "exception": failure.kind,
                "message": failure.message,
                "chain": failure.chain,
                "traceback": failure.traceback,
            }
        return json.dumps(fields)


def _array(objects: Iterable[str]) -> str:
    return "[" + ",".join(objects) + "]"


def _author(author: Author) -> dict[str, object]:
    return {"worker": author.worker, "worker_name": author.name, "release": author.release}


def finalise_success(db: Database, ends: Sequence[End], author: Author) -> list[int]:
    """Record that these bodies returned; ``result`` is JSON text taken as it is."""
    items = _array(
        f'{{"id":{end.id},"claim_id":"{end.claim_id}",'
        f'"result":{end.result or "null"},"seconds":{end.seconds or 0.0:.6f}}}'
        for end in ends
    )
    return [row[0] for row in db.fetch("finalise_success", {"items": items, "worker": author.worker})]


class Rescheduled(NamedTuple):
    """A job that is ready again, and from when on."""

    id: int
    run_at: datetime
    queue: str
    priority: int


def finalise_retry(db: Database, ends: Sequence[End], author: Author) -> list[Rescheduled]:
    """Record failed attempts that may be tried again after ``delay`` seconds."""
    items = _array(end.with_failure("delay", "cause", "seconds") for end in ends)
    rows = db.fetch("finalise_retry", {"items": items, **_author(author)})
    return [Rescheduled._make(row) for row in rows]


def finalise_snooze(db: Database, ends: Sequence[End]) -> list[Rescheduled]:
    """Give jobs back that asked to come back after ``delay`` seconds, uncharged."""
    rows = db.fetch("finalise_snooze", {"items": _array(end.as_json("delay") for end in ends)})
    return [Rescheduled._make(row) for row in rows]


def finalise_end(db: Database, ends: Sequence[End], author: Author) -> list[int]:
    """End jobs as ``outcome`` (abandoned or cancelled); an Attempt is kept where ``cause`` is given."""
    items = _array(end.with_failure("outcome", "cause", "seconds", "reason") for end in ends)
    return [row[0] for row in db.fetch("finalise_end", {"items": items, **_author(author)})]


def mark_ending(db: Database, ends: Sequence[End], author: Author, *, allowance_seconds: float) -> list[int]:
    """Say that only the callback is left (``outcome`` names which); the same claim goes on with it."""
    items = _array(end.with_failure("outcome", "cause", "seconds", "reason") for end in ends)
    rows = db.fetch("mark_ending", {"items": items, "allowance": allowance_seconds, **_author(author)})
    return [row[0] for row in rows]


def park_jobs(db: Database, ends: Sequence[End]) -> list[int]:
    """Hold jobs that this code cannot run, uncharged, with ``reason`` and the ``fingerprint`` of the code."""
    items = _array(end.as_json("reason", "fingerprint") for end in ends)
    return [row[0] for row in db.fetch("park_jobs", {"items": items})]


class Released(NamedTuple):
    """A job that went back as it was."""

    id: int
    queue: str
    priority: int


def release_jobs(db: Database, ends: Sequence[End], author: Author) -> list[Released]:
    """Give jobs back, uncharged; an Attempt is kept where ``cause`` is given (it had started)."""
    items = _array(end.with_failure("cause", "seconds") for end in ends)
    rows = db.fetch("release_jobs", {"items": items, **_author(author)})
    return [Released._make(row) for row in rows]


def write_progress(db: Database, reports: Sequence[tuple[int, str, str]]) -> list[int]:
    """Keep (id, claim_id, progress as JSON text) of running jobs."""
    items = _array(f'{{"id":{job},"claim_id":"{claim}","progress":{text}}}' for job, claim, text in reports)
    return [row[0] for row in db.fetch("write_progress", {"items": items})]


def delete_claims(db: Database, claim_ids: Sequence[str]) -> int:
    """Drop ledger rows whose last job has ended; return how many went."""
    return len(db.fetch("delete_claims", {"claim_ids": list(claim_ids)}))


class FenceReading(NamedTuple):
    """How a job stands whose fenced write touched nothing."""

    id: int
    ours: bool
    ended: bool
    recorded: bool
    ending: bool
    cancelled: bool


def read_fences(db: Database, fences: Sequence[tuple[int, str]]) -> dict[int, FenceReading]:
    """Read, without a lock, how these (id, claim_id) stand; a job that is gone is not in the answer."""
    params = {"ids": [job for job, _ in fences], "claim_ids": [claim for _, claim in fences]}
    return {row[0]: FenceReading._make(row) for row in db.fetch("read_fences", params)}


def read_payload(db: Database, job_id: int, claim_id: str) -> str | None:
    """Return the payload of a claimed job as JSON text; None when the claim is lost."""
    rows = db.fetch("read_payload", {"id": job_id, "claim_id": claim_id})
    return str(rows[0][0]) if rows else None


# --- keeping -------------------------------------------------------------------------------------------------------


def renew_claims(db: Database, check_ins: Mapping[str, float], *, lease_seconds: float) -> set[str]:
    """Extend the leases of these claims; ``check_ins`` says in how many seconds others shall look at each.

    Returns the claims renewed; one that is missing was rescued.
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
    """Write this worker's heartbeat row; ``facts`` are its columns."""
    db.fetch("beat", facts)


def unpark_jobs(db: Database, fingerprints: Mapping[str, str], *, limit: int) -> list[Released]:
    """Let parked jobs go on that other code parked than that of ``fingerprints`` (name → fingerprint)."""
    params = {"names": list(fingerprints), "fingerprints": list(fingerprints.values()), "limit": limit}
    return [Released._make(row) for row in db.fetch("unpark_jobs", params)]


def terminate_backends(db: Database, application_name: str) -> None:
    """End the server processes that a killed executor left behind; its connections carry its name."""
    db.fetch("terminate_backends", {"application_name": application_name})


class Identity(NamedTuple):
    """Which database a connection sees."""

    system: str
    database: int
    table: int | None
    backend_pid: int
    max_connections: int


def read_identity(db: Database) -> Identity:
    """Return which database and which job table this connection sees; ``table`` is None before migrating."""
    return Identity._make(db.fetch("read_identity", {})[0])


def mark_waited(db: Database, job_id: int) -> bool | None:
    """Ask for a notification at the job's end; return whether it has ended, None when it is not committed."""
    rows = db.fetch("mark_waited", {"id": job_id})
    return bool(rows[0][0]) if rows else None


# --- steering: an operator's statements, on rows that the caller has locked -------------------------------------------


def cancel_jobs(
    db: Database, ids: Sequence[int], *, mode: str, by: str, reason: str, with_callback: Sequence[str]
) -> list[int]:
    """Cancel: unclaimed jobs end (or only their callback is left), claimed ones get the request."""
    params = {"ids": list(ids), "mode": mode, "by": by, "reason": reason, "with_callback": list(with_callback)}
    return [row[0] for row in db.fetch("cancel_jobs", params)]


def abandon_jobs(db: Database, ids: Sequence[int], *, reason: str, with_callback: Sequence[str]) -> list[int]:
    """Give unclaimed jobs up."""
    params = {"ids": list(ids), "reason": reason, "with_callback": list(with_callback)}
    return [row[0] for row in db.fetch("abandon_jobs", params)]


def retry_jobs(db: Database, ids: Sequence[int], *, attempts: Mapping[str, int], default_attempts: int) -> list[int]:
    """Make abandoned, cancelled and parked jobs ready; ``attempts`` says how many more each name gets."""
    params = {
        "ids": list(ids),
        "names": list(attempts),
        "attempts": list(attempts.values()),
        "default_attempts": default_attempts,
    }
    return [row[0] for row in db.fetch("retry_jobs", params)]


def release_wish(db: Database, ids: Sequence[int]) -> list[int]:
    """Ask the workers of these claimed jobs to give them back."""
    return [row[0] for row in db.fetch("release_wish", {"ids": list(ids)})]


def reschedule_jobs(
    db: Database,
    ids: Sequence[int],
    *,
    run_at: datetime | None,
    delay_seconds: float | None,
    queue: str | None,
    priority: int | None,
) -> list[int]:
    """Move unclaimed jobs to another instant, queue or priority."""
    params = {"ids": list(ids), "run_at": run_at, "delay": delay_seconds, "queue": queue, "priority": priority}
    return [row[0] for row in db.fetch("reschedule_jobs", params)]


def read_states(db: Database, ids: Sequence[int]) -> dict[int, tuple[str, bool]]:
    """Return id → (state, whether only its callback is left) of those that exist."""
    return {row[0]: (row[1], row[2]) for row in db.fetch("read_states", {"ids": list(ids)})}


def set_lock_timeout(db: Database, timeout: str) -> str:
    """Bound the lock waits of the open transaction; return the setting before."""
    return str(db.fetch("lock_timeout", {"timeout": timeout})[0][0])


def configuring(settings: Mapping[str, str], *, local: bool) -> Params:
    """Return what ``configure`` takes, for a connection that sends it together with another statement."""
    return {"names": list(settings), "values": list(settings.values()), "local": local}


def configure(db: Database, settings: Mapping[str, str], *, local: bool) -> None:
    """Set parameters of the session, or with ``local`` of the open transaction only."""
    db.fetch("configure", configuring(settings, local=local))


# --- rescue ---------------------------------------------------------------------------------------------------------


class Rescued(NamedTuple):
    """A job that was taken back from a worker that had lost it, and how it ended (empty: it is ready again)."""

    id: int
    name: str
    queue: str
    priority: int
    attempt: int
    claim_id: UUID
    message: str
    outcome: str


def rescue_jobs(
    db: Database,
    *,
    limit: int,
    quiet_seconds: float,
    grace_seconds: float,
    stale_seconds: float,
    without_on_cancel: Sequence[str],
    without_on_abandon: Sequence[str],
) -> list[Rescued]:
    """Take back the jobs of up to ``limit`` ledger rows that are due for a look.

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
    }
    return [Rescued._make(row[:8]) for row in db.fetch("rescue_jobs", params)]
