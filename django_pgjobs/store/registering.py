"""Registering: inserting jobs in the caller's transaction, and waking workers at its commit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connections

from django_pgjobs.store import database
from django_pgjobs.store.database import Database, on

COPY_FROM_JOBS = 1000
"""Rows from which a COPY is faster than one multi-row INSERT (benchmarks/lines/register_many.py)."""


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
    with connections[using].cursor() as cursor, cursor.copy(database.statement("copy_jobs")) as copy:
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
