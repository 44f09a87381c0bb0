"""Jobs as lists and pages read them: their fate where that is more than the state, JSON as text, attempts, steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, cast

from django.db.models import Case, Exists, OuterRef, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Left, Now

from django_pgjobs.fields import LATEST_FIRST
from django_pgjobs.inspection.liveness import LOST, SILENT
from django_pgjobs.models import Attempt, Heartbeat, Job, JobStack, Step
from django_pgjobs.models.attempts import Claim
from django_pgjobs.states import EXPIRED

if TYPE_CHECKING:
    from datetime import timedelta

    from django.db.models.expressions import Combinable

    from django_pgjobs.models import CronEntry, LogLine, Memo

    # The rows that pages and commands read: a model, and what the query adds to it

    class JobRow(Job):
        """A job with the database's clock and its fate; with JSON as text, or with the starts of long texts."""

        now: datetime
        fate: str
        payload_text: str
        headers_text: str | None
        result_text: str | None
        progress_text: str | None
        options_text: str | None
        payload_size: int
        result_size: int | None
        payload_start: str | None
        error_start: str
        hold_start: str
        reason_start: str
        cancel_start: str
        by_start: str
        progress_start: str | None
        worker_name: str | None
        reveal: bool
        in_columns: bool

    class AttemptRow(Attempt):
        """An attempt with JSON as text, and cut texts."""

        chain_text: str
        trace: str
        words: str

    class StackRow(JobStack):
        """A request for a stack with cut texts."""

        who: str
        words: str
        code: str
        text: str

    class LineRow(LogLine):
        """A line of a job with cut texts."""

        text: str
        whose: str

    class MemoRow(Memo):
        """A memo with JSON as text, and cut texts."""

        result_text: str | None
        undo_name: str | None
        error_start: str
        name_start: str
        event_start: str | None

    class CronRow(CronEntry):
        """A schedule with its arguments as text, and whether each database has one of its own."""

        declared_text: str
        own_text: str | None
        in_each: bool

    class WorkerRow(Heartbeat):
        """A worker with its status, the time since its last heartbeat, and whether it leads."""

        status: str
        beat_age: timedelta
        leads: bool


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


def with_texts(jobs: QuerySet[Job]) -> QuerySet[JobRow]:
    """Add the database's clock, ``fate``, and each JSON column as text under *COLUMN_text* in its place."""
    texts: dict[str, object] = {f"{column}_text": Cast(column, TextField()) for column in JSON_COLUMNS}
    return cast("QuerySet[JobRow]", jobs.defer(*JSON_COLUMNS).annotate(now=Now(), fate=fate(), **texts))


def peaks_of(job: JobRow) -> dict[int, tuple[int, int]]:
    """Return attempt → megabytes of its process when it began, and at most, of the latest attempts that were measured.

    ``job`` has the text of its options.
    """
    found = re.search(r'"peaks": "([^"]*)"', job.options_text or "")
    peaks = re.findall(r"(\d{1,9}):(\d{1,9})-(\d{1,9})", found[1]) if found else ()
    return {int(attempt): (int(start), int(peak)) for attempt, start, peak in peaks}


def latest_attempts(job: Job, most: int) -> list[AttemptRow]:
    """Return the rows of the latest attempts that did not succeed, latest first: JSON as text, texts cut."""
    rows = Attempt.objects.using(job._state.db).filter(job_id=job.pk).defer("chain", "traceback", "message")
    extracts: dict[str, Combinable] = {
        "chain_text": Cast("chain", TextField()),
        "trace": Left("traceback", TRACEBACK_CHARS),
    }
    found = rows.annotate(**extracts, words=Left("message", 2000)).order_by(LATEST_FIRST)[:most]
    return cast("list[AttemptRow]", list(found))


def stacks_of(job: Job) -> list[StackRow]:
    """Return the stacks that were asked for, latest first, texts cut."""
    rows = JobStack.objects.using(job._state.db).filter(job_id=job.pk).defer("asked_by", "reason", "stack", "problem")
    cut: dict[str, Combinable] = {
        "who": Left("asked_by", 1000),
        "words": Left("reason", 1000),
        "code": Left("problem", 100),
    }
    found = rows.annotate(**cut, text=Left("stack", TRACEBACK_CHARS)).order_by(LATEST_FIRST)[:ATTEMPTS]
    return cast("list[StackRow]", list(found))


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
