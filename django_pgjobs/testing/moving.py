"""Moving rows in time: the database's clock decides, so tests move the rows and stub no clock."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django.db import router
from django.db.models import DateTimeField, F, Model, QuerySet

from django_pgjobs.definition.validation import did_you_mean
from django_pgjobs.models import Job, Memo
from django_pgjobs.models.attempts import Claim


def backdate(rows: Model | QuerySet[Model], /, **moves: float | timedelta) -> int:
    """Move instants of rows into the past, by seconds or ``timedelta``; return how many rows were changed.

    ``rows``: a ``Job`` or a queryset of jobs; ``Attempt``, ``Claim`` and ``Heartbeat`` work too. ``moves``: how far to
    move each field: ``run_at``, ``created_at``, ``claimed_at``, ``overdue_at``, ``finished_at``, …; for jobs also
    ``lease``, the lease of the claims that hold them. ``run_at`` moves ``created_at`` and ``ready_at`` with it: a job
    that is late by its ``run_at`` has waited that long. It moves what the job sleeps or waits for too, so a sleep of an
    hour is over, and a wait of an hour has timed out, after ``run_at=3600``. Negative values move into the future;
    unset instants stay unset. A single row is refreshed. Raises ``TypeError`` for names that are not instants of the
    rows.
    """
    queryset: Any = rows if isinstance(rows, QuerySet) else _itself(rows)
    by = {name: move if isinstance(move, timedelta) else timedelta(seconds=move) for name, move in moves.items()}
    _check_instants(queryset.model, by)
    if queryset.model is Job and "run_at" in by:
        by = {"created_at": by["run_at"], "ready_at": by["run_at"], **by}
    using = queryset._db or router.db_for_write(queryset.model)
    found = queryset.model._base_manager.using(using).filter(
        pk__in=list(queryset.using(using).values_list("pk", flat=True))
    )
    fields = [name for name in by if name != "lease"]
    if queryset.model is Job:
        _move_claims(found, by.get("lease"), by.get("overdue_at"))
    if queryset.model is Job and "run_at" in by:
        open_memos = Memo._base_manager.using(using).filter(job_id__in=found.values("pk"), finished_at__isnull=True)
        open_memos.update(wake_at=F("wake_at") - by["run_at"])
    count: int = found.update(**{name: F(name) - by[name] for name in fields}) if fields else found.count()
    if isinstance(rows, Model) and fields:
        rows.refresh_from_db(fields=fields)
    return count


def _itself(row: Model) -> QuerySet[Model]:
    manager = type(row)._base_manager
    found = manager.using(row._state.db).filter(pk=row.pk)
    return found


def _check_instants(model: type[Model], moves: Collection[str]) -> None:
    known = [field.name for field in model._meta.concrete_fields if isinstance(field, DateTimeField)]
    known += ["lease"] if model is Job else []
    for name in moves:
        if name not in known:
            raise TypeError(f"{model.__name__} has no instant {name!r}{did_you_mean(name, known)}")
    if not moves:
        raise TypeError(f"backdate() needs what to move, one or more of {', '.join(known)}")


def _move_claims(jobs: QuerySet[Job], lease: timedelta | None, deadline: timedelta | None) -> None:
    """Move leases, and the instants at which others check these claims: the lease's end or the earliest deadline."""
    steps = [step for step in (lease, deadline) if step is not None]
    if steps:
        held = Claim._base_manager.using(jobs.db).filter(claim_id__in=list(jobs.values_list("claim_id", flat=True)))
        held.update(
            lease_expires_at=F("lease_expires_at") - (lease or timedelta()), check_at=F("check_at") - max(steps)
        )
