"""Jobs as lists and pages read them: their fate where that is more than the state, JSON as text, attempts, steps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Case, Exists, OuterRef, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Left, Now

from django_pgjobs.fields import LATEST_FIRST
from django_pgjobs.inspection.liveness import LOST, SILENT
from django_pgjobs.models import Attempt, Heartbeat, Job, Step
from django_pgjobs.models.attempts import Claim
from django_pgjobs.states import EXPIRED

ATTEMPTS = 25
"""Number of attempts to show, latest first."""

TRACEBACK_CHARS = 20_000

JSON_COLUMNS = ("payload", "headers", "result", "progress", "options")
"""Read as text, so that a malformed one spoils nothing else."""


def expired() -> Q:
    """Return the condition of jobs that have expired and wait for their end."""
    return Q(expires_at__lte=Now(), attempt=0, claim_id__isnull=True, outcome__isnull=True, ending__isnull=True)


def fate() -> Case:
    """Return an annotation: *lost* for running jobs without a lease, *silent* if the worker is silent, else empty.

    An unclaimed job that has expired, and that the leader has not ended yet, is *expired*.

    The words are the codes of ``why``. It costs one lookup by primary key for each running job, nothing for others.
    """
    leases = Claim._base_manager.filter(claim_id=OuterRef("claim_id"), lease_expires_at__gt=Now())
    live = Heartbeat.objects.live().filter(pk=OuterRef("worker"))
    return Case(
        When(expired(), then=Value(EXPIRED)),
        When(Q(claim_id__isnull=True) | Q(outcome__isnull=False), then=Value("")),
        When(~Exists(leases), then=Value(LOST)),
        When(~Exists(leases.filter(Exists(live))), then=Value(SILENT)),
        default=Value(""),
        output_field=TextField(),
    )


def with_texts(jobs: QuerySet[Any]) -> QuerySet[Any]:
    """Add the database's clock, ``fate``, and each JSON column as text under *COLUMN_text* in its place."""
    texts: dict[str, object] = {f"{column}_text": Cast(column, TextField()) for column in JSON_COLUMNS}
    found: QuerySet[Any] = jobs.defer(*JSON_COLUMNS).annotate(now=Now(), fate=fate(), **texts)
    return found


def latest_attempts(job: Job, most: int) -> list[Any]:
    """Return the rows of the latest attempts that did not succeed, latest first: JSON as text, texts cut."""
    rows = Attempt.objects.using(job._state.db).filter(job_id=job.pk).defer("chain", "traceback", "message")
    extracts: Any = {"chain_text": Cast("chain", TextField()), "trace": Left("traceback", TRACEBACK_CHARS)}
    return list(rows.annotate(**extracts, words=Left("message", 2000)).order_by(LATEST_FIRST)[:most])


def finished_steps(job: Job) -> list[Step]:
    """Return the finished steps that are kept, latest first, without their arguments; one query if there are any."""
    if not job.flow:
        return []
    return list(Step.objects.using(job._state.db).filter(job_id=job.pk).defer("payload").order_by("-pk"))


def step_at(job: Job, steps: Sequence[Step], instant: datetime) -> str:
    """Return the name of the step whose attempt ended at ``instant``; ``steps`` are latest first.

    If the job finished more steps than are kept, it may be a later one.
    """
    name = job.name
    for step in steps:
        if step.finished_at < instant:
            break
        name = step.name
    return name
