"""The columns of the list of jobs, and how their rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery, TextField
from django.db.models.functions import Cast, Left, Now
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.display import ago, badge, below, format_html, person, progress_bar, relative, short
from django_pgjobs.admin.readonly import column
from django_pgjobs.models import Claim, Heartbeat, Job
from django_pgjobs.presentation import job_list
from django_pgjobs.presentation.job_rows import fate
from django_pgjobs.presentation.wording import STATE_LABELS, label_of, seconds
from django_pgjobs.states import JobState, Outcome

LIST_COLUMNS = (
    "id", "name", "state", "queue", "priority", "attempt", "max_attempts", "run_at", "finished_at", "duration_seconds",
    "description", "outcome", "ending", "hold", "claimed_at", "cancel_mode",
)  # fmt: skip
"""The columns that the list reads; none of them can grow to a megabyte."""


class JobColumns:
    """The part of ``JobAdmin`` that shows a row of the list."""

    list_display: Any = ("shown_state", "id", "shown_name", "shown_queue", "shown_attempt", "shown_run_at", "shown_end")
    list_display_of = {
        "running": (
            "shown_state", "id", "shown_name", "shown_worker", "shown_claimed", "shown_progress", "shown_queue",
        ),
        "cancelled": ("shown_state", "id", "shown_name", "shown_cancel", "shown_queue", "shown_attempt", "shown_end"),
        "abandoned": ("shown_state", "id", "shown_name", "shown_error", "shown_queue", "shown_attempt", "shown_end"),
        "retrying": ("shown_state", "id", "shown_name", "shown_error", "shown_queue", "shown_attempt", "shown_run_at"),
    }  # fmt: skip
    """Columns of the list for states that need their own."""

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the most useful columns for the chosen state."""
        return self.list_display_of.get(request.GET.get("state", ""), self.list_display)

    def read_rows(self, jobs: QuerySet[Any], ids: Sequence[int]) -> list[Any]:
        """Read one page of the list; every row carries the database's clock."""
        rows = jobs.annotate(
            now=Now(),
            fate=fate(),
            error_start=Left("error", 200),
            hold_start=Left("hold_reason", 200),
            cancel_start=Left("cancel_reason", 200),
            by_start=Left("cancel_by", 200),
            worker_name=_worker_of(),
            progress_start=Left(Cast("progress", TextField()), 500),
        ).only(*LIST_COLUMNS)
        return job_list.in_order(rows, ids)

    shown_name = column(_("name"), lambda job: below(job.name, short(job.description, 60)))
    shown_error = column(_("error"), lambda job: short(job.error_start, 200) or "–")
    shown_attempt = column(_("attempt"), lambda job: f"{job.attempt} / {job.max_attempts}")
    shown_run_at = column(_("run at"), lambda job: relative(job.run_at, job.now))
    shown_claimed = column(_("since"), lambda job: ago(job.claimed_at, job.now))

    @admin.display(description=_("state"))
    def shown_state(self, job: Any) -> str:
        """The coloured label, with the reason below; a note if only a callback is left."""
        label: Any = badge(label_of(job))
        if job.ending and not job.outcome:
            label = format_html('{} <span class="pgjobs-ending">→ {}</span>', label, STATE_LABELS.get(job.ending, ""))
        return below(label, self._why(job))

    def _why(self, job: Any) -> Any:
        """The most telling fact: who runs it, who cancelled it, what holds it, or its error."""
        if job.in_columns:
            return ""
        if job.state == JobState.RUNNING:
            return format_html("{} {}", self.shown_worker(job), self.shown_progress(job)) if job.worker_name else ""
        if job.outcome == Outcome.CANCELLED:
            return self.shown_cancel(job)
        return short(job.hold_start if job.hold else job.error_start if job.outcome != Outcome.SUCCEEDED else "", 60)

    @admin.display(description=_("worker"))
    def shown_worker(self, job: Any) -> str:
        """The worker that claimed it."""
        return short(job.worker_name or "–", 60)

    @admin.display(description=_("progress"))
    def shown_progress(self, job: Any) -> str:
        """The progress bar and the job's message."""
        return progress_bar(job.progress_start) if job.progress_start else ""

    @admin.display(description=_("by whom, why"))
    def shown_cancel(self, job: Any) -> str:
        """Return who cancelled it and why, or the job's own words."""
        why = job.cancel_start or job.error_start
        if not job.by_start:
            return short(why, 60) or "–"
        by = format_html(str(_("by {}")), person(job.by_start))
        return format_html("{}: {}", by, short(why, 60)) if why else by

    @admin.display(description=_("queue"))
    def shown_queue(self, job: Job) -> str:
        """The queue, and below it any priority but the default."""
        return below(job.queue, _("priority %(number)d") % {"number": job.priority} if job.priority else "")

    @admin.display(description=_("finished"))
    def shown_end(self, job: Any) -> str:
        """Return how long ago it ended, and the duration."""
        if job.finished_at is None:
            return "–"
        took = _("took %(time)s") % {"time": seconds(job.duration_seconds)} if job.duration_seconds is not None else ""
        return below(relative(job.finished_at, job.now), took)


def _worker_of() -> Subquery:
    """An expression: the name of the worker that claimed the job."""
    claims = Claim.objects.filter(claim_id=OuterRef(OuterRef("claim_id"))).values("worker")
    return Subquery(Heartbeat.objects.filter(pk__in=claims).values("name")[:1])
