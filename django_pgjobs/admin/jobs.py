"""The admin pages of jobs: the list with its bulk actions, and the page of one job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, QuerySet, Subquery, TextField
from django.db.models.functions import Cast, Left, Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.actions import ACTIONS, SteeringAction, message_of, steer
from django_pgjobs.admin.bulk import is_for_a_job, is_served, register_bulk
from django_pgjobs.admin.changelist import CappedPaginator, JobChangeList, list_filters
from django_pgjobs.admin.confirming import filter_words, neighbours_of, preview, samples_of
from django_pgjobs.admin.display import (
    Pages,
    ago,
    badge,
    below,
    format_html,
    link_to,
    person,
    progress_bar,
    relative,
    short,
)
from django_pgjobs.admin.elsewhere import found_elsewhere, is_wanted, named_job
from django_pgjobs.admin.jobpage import JobPage
from django_pgjobs.admin.pauses import notices_for_list
from django_pgjobs.admin.readonly import column, may
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.logs import log as logger
from django_pgjobs.models import Action, Heartbeat, Job, JobQuerySet
from django_pgjobs.models.attempts import Claim
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.presentation import filters, job_list
from django_pgjobs.presentation.job_conditions import search_condition
from django_pgjobs.presentation.job_rows import fate
from django_pgjobs.presentation.job_search import JobSearch, parse_search
from django_pgjobs.presentation.memos import awaited
from django_pgjobs.presentation.wording import STATE_LABELS, label_of, seconds
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import JobState, Outcome
from django_pgjobs.steering.batching import who
from django_pgjobs.steering.trail import ADMIN, recorded_as

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import JobRow

LIST_COLUMNS = (
    "id", "name", "state", "queue", "priority", "attempt", "max_attempts", "run_at", "finished_at", "duration_seconds",
    "description", "outcome", "ending", "hold", "claimed_at", "cancel_mode",
)  # fmt: skip
"""The columns that the list reads; none of them can grow to a megabyte."""


def on_selected(action: SteeringAction) -> object:
    """Return the action of the list that does this to the selected jobs."""

    def act(page: JobAdmin, request: HttpRequest, jobs: object) -> HttpResponse | None:
        return page.act(action, request, jobs)

    act.__name__ = action.name
    needed = action.permission.removeprefix("pgjobs.").removesuffix("_job")  # as in has_retry_permission
    return admin.action(description=action.of_selected, permissions=[needed])(act)


class JobAdmin(JobPage):
    """Jobs, read-only; the actions are methods of ``JobQuerySet``."""

    list_display = ("shown_state", "id", "shown_name", "shown_queue", "shown_attempt", "shown_run_at", "shown_end")
    list_display_of = {
        "running": (
            "shown_state", "id", "shown_name", "shown_worker", "shown_claimed", "shown_progress", "shown_queue",
        ),
        "cancelled": ("shown_state", "id", "shown_name", "shown_cancel", "shown_queue", "shown_attempt", "shown_end"),
        "abandoned": ("shown_state", "id", "shown_name", "shown_error", "shown_queue", "shown_attempt", "shown_end"),
        "retrying": ("shown_state", "id", "shown_name", "shown_error", "shown_queue", "shown_attempt", "shown_run_at"),
    }  # fmt: skip
    """Columns of the list for states that need their own."""
    list_display_links = ("id", "shown_name")
    list_per_page = 50
    paginator = CappedPaginator
    search_fields = ("name", "description")
    search_help_text = _(
        "Digits search for an id; other text searches in names and descriptions. Words narrow it: error:Declined "
        "arg.order:17 worker:web-1 key:… tag:… queue:… name:… front:task alias:… since:1h older:7d"
    )
    actions: Any = tuple(
        on_selected(ACTIONS[name])
        for name in ("retry", "retry_members", "run_now", "release", "unblock", "close", "cancel", "abandon")
    )
    posts = {"<str:object_id>/steer/<slug:name>/": "steer", "<str:object_id>/send/": "send"}
    change_list_template = "admin/pgjobs/job/change_list.html"

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[JobChangeList]:
        """Use the list that reads along indexes."""
        return JobChangeList

    def get_list_filter(self, request: HttpRequest) -> list[Any]:
        """Return the filters of the table ``filters``."""
        return list_filters()

    def lookup_allowed(self, lookup: str, value: object, request: HttpRequest | None = None) -> bool:
        """Allow only those."""
        return lookup in filters.parameters()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """Find an id if the term is digits; else search in names and descriptions."""
        return queryset.filter(search_condition(*parse_search(search_term))), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
        """Add the pauses of the queue and the name that it filters by."""
        queue, name = request.GET.get("queue", ""), request.GET.get("name", "")
        notes: dict[str, Any] = {
            "pgjobs_pauses": notices_for_list(queue, name, self.database or None),
            "pgjobs_pauses_url": self.pauses_url(request),
            "pgjobs_overview_url": self.pages.page("overview_changelist"),
        }
        if self.database and request.method == "GET":
            term, others = request.GET.get("q", ""), [alias for alias in self.aliases if alias != self.database]
            if job := named_job(term, self.aliases):
                return HttpResponseRedirect(Pages(self.admin_site.name, job[0]).jobs(q=job[1]))
            search = JobSearch.of(request.GET, term)
            if is_wanted(search) and self.has_view_permission(request):
                notes["pgjobs_elsewhere"] = found_elsewhere(search, self.admin_site.name, others)
        return super().changelist_view(request, {**notes, **(extra_context or {})})

    # Its columns

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the most useful columns for the chosen state."""
        columns = self.list_display_of.get(request.GET.get("state", ""), self.list_display)
        return tuple("shown_id" if self.database and each == "id" else each for each in columns)

    def get_list_display_links(self, request: HttpRequest, list_display: Any) -> Any:
        """Link the id with its database, too."""
        return (*self.list_display_links, "shown_id") if self.database else self.list_display_links

    @admin.display(description="ID")
    def shown_id(self, job: Job) -> str:
        """The id with its database, where several are served."""
        return self.pages.shown(job.pk)

    def read_rows(self, jobs: QuerySet[Job], ids: Sequence[int]) -> list[JobRow]:
        """Read one page of the list; every row carries the database's clock."""
        rows = cast(
            "QuerySet[JobRow]",
            jobs.annotate(
                now=Now(),
                fate=fate(),
                error_start=Left("error", 200),
                hold_start=Left("hold_reason", 200),
                cancel_start=Left("cancel_reason", 200),
                by_start=Left("cancel_by", 200),
                worker_name=_worker_of(),
                progress_start=Left(Cast("progress", TextField()), 500),
            ).only(*LIST_COLUMNS),
        )
        return job_list.in_order(rows, ids)

    shown_name = column(_("name"), lambda job: below(job.name, short(job.description, 60)))
    shown_error = column(_("error"), lambda job: short(job.error_start, 200) or "–")
    shown_attempt = column(_("attempt"), lambda job: f"{job.attempt} / {job.max_attempts}")
    shown_run_at = column(_("run at"), lambda job: relative(job.run_at, job.now))
    shown_claimed = column(_("since"), lambda job: ago(job.claimed_at, job.now))

    @admin.display(description=_("state"))
    def shown_state(self, job: JobRow) -> str:
        """The coloured label, with the reason below; a note if only a callback is left."""
        label = badge(label_of(job))
        if job.ending and not job.outcome:
            label = format_html('{} <span class="pgjobs-ending">→ {}</span>', label, STATE_LABELS.get(job.ending, ""))
        return below(label, self._why(job))

    def _why(self, job: JobRow) -> object:
        """The most telling fact: who runs it, who cancelled it, what holds it, or its error."""
        if job.in_columns:
            return ""
        if job.state == JobState.RUNNING:
            return format_html("{} {}", self.shown_worker(job), self.shown_progress(job)) if job.worker_name else ""
        if job.outcome == Outcome.CANCELLED:
            return self.shown_cancel(job)
        return short(job.hold_start if job.hold else job.error_start if job.outcome != Outcome.SUCCEEDED else "", 60)

    @admin.display(description=_("worker"))
    def shown_worker(self, job: JobRow) -> str:
        """The worker that claimed it."""
        return short(job.worker_name or "–", 60)

    @admin.display(description=_("progress"))
    def shown_progress(self, job: JobRow) -> str:
        """The progress bar and the job's message."""
        return progress_bar(job.progress_start) if job.progress_start else ""

    @admin.display(description=_("by whom, why"))
    def shown_cancel(self, job: JobRow) -> str:
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
    def shown_end(self, job: JobRow) -> str:
        """Return how long ago it ended, and the duration."""
        if job.finished_at is None:
            return "–"
        took = _("took %(time)s") % {"time": seconds(job.duration_seconds)} if job.duration_seconds is not None else ""
        return below(relative(job.finished_at, job.now), took)

    # Actions on many

    has_retry_permission = may("retry_job")
    has_cancel_permission = may("cancel_job")
    has_abandon_permission = may("abandon_job")
    has_reschedule_permission = may("reschedule_job")

    def act(self, action: SteeringAction, request: HttpRequest, jobs: Any) -> HttpResponse | None:
        """Apply an action to the selected jobs, or to all of the list, after the question that it asks."""
        everything = request.POST.get("select_across") == "1"
        many = 2 if everything else len(set(request.POST.getlist(ACTION_CHECKBOX_NAME)))
        form = action.form_for(many)(request.POST if "confirmed" in request.POST else None, initial={"mode": "ask"})
        asks = action.always_confirms or everything or (many > 1 and action.form_of_many is not None)
        if asks and not (form.is_bound and form.is_valid()):
            return self._confirm(action, request, jobs, form, everything=everything)
        answers = form.cleaned_data if form.is_bound and form.is_valid() else {}
        if everything and is_for_a_job(action, jobs):
            return self._register_bulk(action, request, answers)
        try:
            with recorded_as(ADMIN, (_search_of(request).words or "all") if everything else "") as origin:
                steered = steer(action, jobs, request.user, answers, everything=everything)
        except InvalidJob as error:
            self.message_user(request, str(error), messages.ERROR)
            return None
        logger.info("jobs steered action=%s by=%s changed=%d", action.name, who(request.user), steered.changed)
        level, text = message_of(action, steered, answers)
        batches = jobs.filter(action.condition) if action.changes_members else None
        self._log_many(request, origin.recorded, text, everything=everything, batches=batches)
        self.message_user(request, self._with_trace(request, text, origin.recorded), level)
        return None

    def _register_bulk(
        self, action: SteeringAction, request: HttpRequest, answers: Mapping[str, object]
    ) -> HttpResponse:
        """Let a job change them, and show its page."""
        using, words = self.written, _search_of(request).words
        job, action_id = register_bulk(action, request.GET.dict(), request.user, answers, words, using)
        logger.info("bulk action registered action=%s by=%s job=%d", action.name, who(request.user), job.pk)
        text = _("This job changes them; its progress is shown here.")
        self._log_many(request, [action_id], str(text), everything=True)
        self.message_user(request, self._with_trace(request, str(text), [action_id]), messages.SUCCESS)
        return HttpResponseRedirect(self.pages.job(job.pk))

    def _log_many(
        self, request: HttpRequest, recorded: list[int], text: str, *, everything: bool, batches: Any = None
    ) -> None:
        """Log the action in the history of each selected job that changed, or of these batches whose members did.

        For a whole list it is logged in the action's own.
        """
        if not recorded:
            return
        using = self.written
        done: Any = Action.objects.using(using).filter(pk__in=recorded)
        if not everything and batches is not None:
            done = batches.only("pk", "name")
        elif not everything:
            parts = ActionPart.objects.using(using).filter(action_id__in=recorded).values_list("job_ids", flat=True)
            done = Job.objects.using(using).filter(pk__in=list(chain.from_iterable(parts))).only("pk", "name")
        entries: Any = LogEntry.objects
        entries.log_actions(request.user.pk, [self.named(row) for row in done], CHANGE, text)

    def _with_trace(self, request: HttpRequest, text: str, recorded: list[int]) -> str:
        if not recorded or not request.user.has_perm("pgjobs.view_action"):
            return text
        return format_html("{} {}", text, link_to(_("Which ones"), self.pages.page("action_change", recorded[-1])))

    def _confirm(
        self, action: SteeringAction, request: HttpRequest, jobs: JobQuerySet, form: object, *, everything: bool
    ) -> HttpResponse:
        chosen = list(dict.fromkeys(request.POST.getlist(ACTION_CHECKBOX_NAME)))
        found = preview(action, jobs, everything=everything)
        bulk = everything and is_for_a_job(action, jobs)
        return self.own_page(
            request,
            "job/confirm_action.html",
            title=capfirst(str(action.verb)),
            action=action,
            form=form,
            # For all pages only the filter matters, but Django insists on at least one selected job.
            chosen=[self.pages.shown(each) for each in (chosen[:1] if everything else chosen)],
            everything=everything,
            filter=filter_words(_search_of(request)) if everything else "",
            preview=found,
            bulk=bulk,
            unserved=bulk and not is_served(self.written),
            samples=samples_of(self, found),
            notes=[note for note in (action.note, action.note_of_batch if found.gathering else "") if note],
            neighbours=neighbours_of(found.ids, self.pages, self.database or None)
            if action.stops_neighbours and found.ids
            else "",
            checkbox=ACTION_CHECKBOX_NAME,
            back=request.get_full_path(),
        )

    # Actions on one

    def send_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send the event that a job waits for, then return to its page."""
        if not self.may_send(request):
            raise PermissionDenied
        job = self._job(request, object_id)
        if job is None:
            return self.to_list(request, _("There is no job %(id)s.") % {"id": self.pages.shown(object_id[:100])})
        event, page = request.POST.get("event", ""), self.with_filters(request, self.pages.job(job.pk))
        using = self.written_at(job)
        if event != awaited(job.pk, using):
            text = _("The job does not wait for %(event)s any more.") % {"event": visible(event[:200])}
            self.message_user(request, text, messages.WARNING)
            return HttpResponseRedirect(page)
        return self.answer_sending(request, event, back=page, using=using, subject=job)

    def steer_view(self, request: HttpRequest, object_id: str, name: str) -> HttpResponse:
        """Apply one action to one job, then return to its page."""
        action = ACTIONS.get(name)
        if action is None or not self.has_view_permission(request) or not request.user.has_perm(action.permission):
            raise PermissionDenied
        job = self._job(request, object_id)
        if job is None:
            return self.to_list(request, _("There is no job %(id)s.") % {"id": self.pages.shown(object_id[:100])})
        self._steer_one(request, action, job)
        return HttpResponseRedirect(self.with_filters(request, self.pages.job(job.pk)))

    def _job(self, request: HttpRequest, object_id: str) -> Job | None:
        jobs = self.get_queryset(request).only("pk", "name")
        return jobs.filter(pk=object_id).first() if self.is_id(object_id) else None

    def _steer_one(self, request: HttpRequest, action: SteeringAction, job: Job) -> None:
        form = action.form(request.POST)
        if not form.is_valid():
            problems = " ".join(str(problem) for found in form.errors.values() for problem in found)
            self.message_user(request, problems, messages.ERROR)
            return
        jobs = self.get_queryset(request).filter(pk=job.pk)
        try:
            with recorded_as(ADMIN):
                steered = steer(action, jobs, request.user, form.cleaned_data, everything=False)
        except InvalidJob as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        level, text = message_of(action, steered, form.cleaned_data)
        self.message_user(request, text, level)
        if steered.changed:
            self.log_change(request, job, text)


def _worker_of() -> Subquery:
    """An expression: the name of the worker that claimed the job."""
    claims = Claim.objects.filter(claim_id=OuterRef(OuterRef("claim_id"))).values("worker")
    return Subquery(Heartbeat.objects.filter(pk__in=claims).values("name")[:1])


def _search_of(request: HttpRequest) -> JobSearch:
    return JobSearch.of(request.GET, request.GET.get("q", ""))
