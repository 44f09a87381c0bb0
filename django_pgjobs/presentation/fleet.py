"""Workers as the overview and the shell list them, and what they run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from django.db.models import Q, QuerySet

from django_pgjobs.inspection.liveness import LIVE
from django_pgjobs.models import Heartbeat
from django_pgjobs.store import explaining
from django_pgjobs.store.database import Database
from django_pgjobs.store.explaining import RunningJob
from django_pgjobs.values.built_in import OWN_QUEUE

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import WorkerRow

_IS_ID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.IGNORECASE)


def listed_workers(using: str, *, everyone: bool = False) -> QuerySet[WorkerRow]:
    """Return the workers with their status, latest heartbeat first; with ``everyone`` also those that stopped."""
    workers: QuerySet[WorkerRow] = Heartbeat.objects.using(using).with_status().order_by("-last_beat_at", "pk")
    return workers if everyone else workers.exclude(state=Heartbeat.Stage.STOPPED)


def workers_of(using: str, queues: Sequence[str] | None, *, everyone: bool = False) -> list[WorkerRow]:
    """Return those that serve any of these queues, None for all; see ``listed_workers``."""
    found = listed_workers(using, everyone=everyone)
    return [worker for worker in found if queues is None or any(_serves(worker, queue) for queue in queues)]


def named_workers(using: str, names: Sequence[str]) -> list[tuple[UUID, str]]:
    """Return id and name of the workers with these ids or names; of a name those that have left only if none lives."""
    ids = [UUID(name) for name in names if _IS_ID.fullmatch(name)]
    found = listed_workers(using, everyone=True).filter(Q(name__in=names) | Q(pk__in=ids))
    rows = list(found.values_list("pk", "name", "status"))
    alive = {name for _, name, status in rows if status in LIVE}
    return [(pk, name) for pk, name, status in rows if pk in ids or status in LIVE or name not in alive]


def _serves(worker: Heartbeat, queue: str) -> bool:
    if queue == OWN_QUEUE:
        return True
    named, excluded = worker.served
    return (named is None or queue in named) and queue not in excluded


def running_jobs(db: Database, workers: Sequence[WorkerRow], *, most: int) -> dict[UUID, list[RunningJob]]:
    """Return what each of these workers runs now by its id, up to ``most`` jobs, the longest first."""
    running: dict[UUID, list[RunningJob]] = {worker.pk: [] for worker in workers}
    for job in explaining.list_running(db, list(running), most=most) if running else ():
        running[job.worker].append(job)
    return running
