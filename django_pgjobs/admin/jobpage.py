"""The page of one job: its facts, its state and the reason, its arguments, and its attempts.

The page reads JSON columns as text and parses them here, so that a forged value (nested too deeply, a number of 5,000
digits) spoils only its own place on the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.db.models import Func, IntegerField, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.actions import ACTIONS
from django_pgjobs.admin.attempts_section import attempt_rows, awaits_its_turn, line_rows, stack_rows
from django_pgjobs.admin.confirming import neighbours_of
from django_pgjobs.admin.display import (
    FactList,
    Pages,
    badge,
    block,
    facts_table,
    format_html,
    format_html_join,
    json_block,
    link_to,
    person,
    progress_bar,
    short,
    table_of,
    when,
)
from django_pgjobs.admin.flow_section import callbacks, flow_facts, siblings
from django_pgjobs.admin.memo_section import memo_rows, waiting_facts
from django_pgjobs.admin.pauses import notices_for_job
from django_pgjobs.admin.sending import SendsEvents
from django_pgjobs.admin.timeline import drawing, pieces
from django_pgjobs.admin.trail import actions_of
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.inspection import why
from django_pgjobs.inspection.liveness import STATUS_LABELS
from django_pgjobs.inspection.words import Reason
from django_pgjobs.models import Heartbeat, Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.presentation import sight
from django_pgjobs.presentation.flow import Surroundings, surroundings
from django_pgjobs.presentation.fronts import front_of
from django_pgjobs.presentation.job_rows import (
    ATTEMPTS,
    JSON_COLUMNS,
    finished_steps,
    latest_attempts,
    peaks_of,
    with_texts,
)
from django_pgjobs.presentation.memos import awaited, suspension
from django_pgjobs.presentation.sight import Hidden
from django_pgjobs.presentation.wording import arguments, label_of, result, seconds, size
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import GATHERING, Hold, JobState, MemoKind
from django_pgjobs.steering.events import may_be_sent
from django_pgjobs.store.memos import Suspension

if TYPE_CHECKING:
    from django_pgjobs.presentation.job_rows import JobRow, WorkerRow

SIZED = ("payload", "result")
MOST_WHY = 2000
CANCEL_MODES = {"ask": _("ask"), "interrupt": _("interrupt"), "kill": _("kill")}


BUTTONS_INSTEAD: dict[str, object] = {
    "cancelled": _("Retry makes it ready again."),
    "abandoned": _("Fix the cause, then retry it."),
    "cancelling": _("If it does not stop, cancel it again with a stronger mode."),
    "scheduled": _("Run now makes it due."),
    "retrying": _("Run now makes it due."),
    "paused": _("It continues when the pause ends or a user resumes it."),
    "not_needed": _("To run it all the same, retry it."),
    "blocked_by_jobs": _("Unblock runs it all the same."),
    "out_of_turn": _("Unblock lets it pass abandoned ones; to pass others, cancel these."),
    "sleeping": _("Unblock ends its sleep."),
    "waiting_for_event": _("Send the event below, or unblock it as if the event had not come in time."),
    "waiting_for_gather": _("Below is a link to them."),
    "step_retrying": _("Run now tries the step again."),
}
"""Reason code → advice on a page that has the button instead of the command; other codes have none here."""

BUTTONS_OF_BATCHES: dict[str, object] = {
    "abandoned": _("Retry failed members lets it wait for them again."),
    "blocked_by_members": _("Unblock ends it by its figures so far."),
    "open": _("If no more are added, close it."),
}
"""The same for a batch or flow; *open* stands for one that waits for members and is open for more."""


class JobPage(SendsEvents):
    """The half of ``JobAdmin`` that shows one job."""

    change_form_template = "admin/pgjobs/job/change_form.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Defer columns that may be huge or malformed; the page of a job reads them as text."""
        jobs = super().get_queryset(request)
        return jobs.defer(*JSON_COLUMNS)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> JobRow | None:
        """Return the job with its JSON as text and the database's clock; None if the id is invalid."""
        if not self.is_id(object_id):
            return None
        sizes = {f"{each}_size": Func(each, function="pg_column_size", output_field=IntegerField()) for each in SIZED}
        job: JobRow | None = with_texts(self.get_queryset(request)).annotate(**sizes).filter(pk=object_id).first()
        if job is not None:
            job.reveal = request.user.has_perm(sight.PERMISSION)
        return job

    def render_change_form(self, request: HttpRequest, context: Any, *args: object, **kwargs: object) -> HttpResponse:
        """Add the attempts, and the actions that the job's state and the user's permissions allow."""
        job = context["original"]
        steps = finished_steps(job)
        attempts, worker = latest_attempts(job, ATTEMPTS + 1), self._beat(job)
        reason = why.of(job.pk, job._state.db)
        context["pgjobs_pauses"] = [] if job.outcome else notices_for_job(job)
        context["pgjobs_pauses_url"] = self.pauses_url(request)
        around = surroundings(job)
        waits_for = suspension(job)
        context["pgjobs_header"] = {
            "state": badge(label_of(job)),
            "why": visible(str(reason.text)[:MOST_WHY]),
            "advice": _advices_of(reason, job, around),
            "progress": progress_bar(job.progress_text) if job.progress_text is not None and not job.outcome else "",
            "worker": self._worker(request, job, worker),
        }
        more = len(attempts) > ATTEMPTS
        context["pgjobs_timeline"] = drawing(
            pieces(job, attempts[:ATTEMPTS], steps, more=more, is_waiting=awaits_its_turn(job.pk, worker))
        )
        context["pgjobs_sections"] = self._sections(request, job, around, waits_for)
        context["pgjobs_is_live"] = not job.outcome
        context["pgjobs_copied"] = (_("Arguments"), _("Result"))
        context["pgjobs_actions"] = self._offered(request, job, around, waits_for)
        context["pgjobs_memos"], context["pgjobs_more_memos"] = memo_rows(job)
        context["pgjobs_trail"] = actions_of(job, self.pages, may_view=request.user.has_perm("pgjobs.view_action"))
        context["pgjobs_steps"] = [
            {
                "name": visible(step.name),
                "queue": visible(step.queue),
                "attempt": step.attempt,
                "worker": visible(step.worker_name[:200]),
                "took": seconds(step.duration_seconds),
                "finished": when(step.finished_at),
            }
            for step in steps
        ]
        if request.user.has_perm("pgjobs.view_stack"):
            context["pgjobs_stacks"] = stack_rows(job)
        context["pgjobs_lines"] = line_rows(job)
        context["pgjobs_attempts"] = attempt_rows(job, attempts, steps, worker)
        context["pgjobs_more_attempts"] = more
        context["pgjobs_peaks"] = peaks_of(job)
        page: HttpResponse = super().render_change_form(request, context, *args, **kwargs)
        return page

    def pauses_url(self, request: HttpRequest) -> str:
        """URL of the page that resumes pauses, for users who may see it."""
        return self.pages.page("queuestate_changelist") if request.user.has_perm("pgjobs.view_queuestate") else ""

    def with_filters(self, request: HttpRequest, url: str) -> str:
        """Return the URL with the filters of the list, to which the page then leads back."""
        return add_preserved_filters({"preserved_filters": self.get_preserved_filters(request), "opts": self.opts}, url)

    def _offered(
        self, request: HttpRequest, job: JobRow, around: Surroundings, waits_for: Suspension | None
    ) -> list[dict[str, object]]:
        return [
            {
                "name": action.name,
                "verb": action.verb,
                "destructive": action.destructive,
                "notes": action.notes(job),
                "button": action.button_for(job.name),
                "neighbours": neighbours_of([job.pk], self.pages, job._state.db) if action.stops_neighbours else "",
                "form": action.form(auto_id=f"{action.name}_%s"),
                "url": self.with_filters(request, self.pages.page("job_steer", job.pk, action.name)),
            }
            for action in ACTIONS.values()
            if request.user.has_perm(action.permission) and action.allows(job, around, waits_for)
        ]

    def _waiting(self, request: HttpRequest, job: Job, waits_for: Suspension) -> str:
        """Facts about the wait of a job; of an event, also the form that sends it, for those who may."""
        facts, form = facts_table(waiting_facts(waits_for, self.pages)), ""
        if waits_for.kind == MemoKind.EVENT and self.may_send(request):
            event = awaited(job.pk, job._state.db)
            if event is not None and may_be_sent(event):
                form = self.sending_form(
                    request, self.with_filters(request, self.pages.page("job_send", job.pk)), event
                )
        return format_html("{}{}", facts, form)

    def _beat(self, job: JobRow) -> WorkerRow | None:
        """The worker that claimed the job or wrote its last end; None if there is none, or it is forgotten."""
        using = job._state.db
        if not job.claim_id and not job.worker:
            return None
        whose = Q(pk=job.worker)
        if job.claim_id and not job.outcome:
            whose = Q(pk__in=Claim.objects.using(using).filter(claim_id=job.claim_id).values("worker"))
        return Heartbeat.objects.using(using).with_status().filter(whose).first()

    def _worker(self, request: HttpRequest, job: JobRow, beat: WorkerRow | None) -> str:
        """Name and status of the worker, else its id, else nothing."""
        if beat is None:
            return str(job.worker or "")
        may_view = request.user.has_perm("pgjobs.view_heartbeat")
        name = link_to(short(beat.name, 200), self.pages.page("heartbeat_change", beat.pk) if may_view else "")
        status = badge(beat.status, STATUS_LABELS.get(beat.status, beat.status))
        return name if job.outcome or not job.claim_id else format_html("{} {}", name, status)

    def _sections(
        self, request: HttpRequest, job: JobRow, around: Surroundings, waits_for: Suspension | None = None
    ) -> FactList:
        """Return (heading, table) pairs, the state first; leave out what this job lacks."""
        pages = self.pages
        state, facts = facts_table(_state_of(job, pages)), facts_table(_facts_of(job, pages))
        first, *second = [(_("State"), state), (_("Job"), facts)] if state else [(_("Job"), facts)]
        claim = job.claim_id if job.claim_id and not job.outcome else None
        headers = None if job.headers_text is None else json_block(job.headers_text)
        found: FactList = [
            first,
            (_("Waits for"), "" if waits_for is None else self._waiting(request, job, waits_for)),
            (_("Flow"), facts_table(flow_facts(around, pages))),
            *second,
            (_("Timing (%(zone)s)") % {"zone": timezone.get_current_timezone_name()}, facts_table(_times_of(job))),
            (_("Arguments"), _arguments_of(job)),
            (_("Result"), "" if job.result_text is None else _result_of(job)),
            (_("Callbacks"), facts_table(callbacks(job))),
            (_("Jobs like this one"), facts_table(siblings(job, pages))),
            (_("Execution"), facts_table([(_("claim"), claim), (_("headers"), headers)])),
        ]
        return [(heading, shown) for heading, shown in found if shown]


def _hidden(what: Hidden) -> str:
    return format_html('<p class="quiet">{}</p>', what.reason)


def _result_of(job: JobRow) -> object:
    shown = result(job.name, job.result_text or "", reveal=job.reveal)
    return _hidden(shown) if isinstance(shown, Hidden) else json_block(shown)


def _state_of(job: Job, pages: Pages) -> FactList:
    found = format_html_join("", "<div>{}</div>", ((each,) for each in _blockers_of(job, pages)))
    return [(_("blocked by"), found or None), (_("last error"), block(job.error) if job.error else None)]


def _facts_of(job: JobRow, pages: Pages) -> FactList:
    tries = _("%(attempt)d of %(most)d") % {"attempt": job.attempt, "most": job.max_attempts}
    fire = format_html("{} {}", job.cron_entry, when(job.fire_at)) if job.fire_at else job.cron_entry
    return [
        (_("name"), job.name),
        (_("front"), str(front_of(job.name, job.headers_text)) or None),
        (_("description"), short(job.description, 1000) if job.description else None),
        (_("queue"), job.queue),
        (_("priority"), job.priority),
        (_("attempt"), tries),
        (_("key"), job.key),
        (_("sequence"), job.sequence),
        (_("idempotency key"), job.idempotency_key),
        (_("tags"), _tag_links(job.tags, pages) if job.tags else None),
        (_("deadline"), when(job.deadline) if job.deadline else None),
        (_("expires at"), when(job.expires_at) if job.expires_at else None),
        (_("options"), None if job.options_text is None else json_block(job.options_text)),
        (_("size of arguments"), size(job.payload_size)),
        (_("size of result"), None if job.result_size is None else size(job.result_size)),
        (_("cron entry and fire"), None if job.cron_entry is None else fire),
    ]


def _tag_links(tags: tuple[str, ...], pages: Pages) -> str:
    return format_html_join(", ", '<a href="{}">{}</a>', ((pages.jobs(tag=tag), tag) for tag in tags))


def _arguments_of(job: JobRow) -> str:
    shown = arguments(job.name, job.payload_text, reveal=job.reveal)
    if isinstance(shown, Hidden):
        return _hidden(shown)
    if not shown:
        return format_html('<p class="quiet">{}</p>', _("none"))
    return table_of((short(name, 200), block(text)) for name, text in shown)


_NAME_THE_CANCELLER = ("cancelled", "cancelling", "silent")
"""Codes of reasons whose text already names who cancelled the job, and why."""


def _advices_of(reason: Reason, job: Job, around: Surroundings) -> list[object]:
    """Sentences below the reason: what to do, and who asked for a cancel."""
    advice = _advice_of(reason, job, around)
    found: list[object] = [visible(str(advice))] if advice else []
    if job.cancel_requested_at:
        found.append(_cancel_of(job, named=reason.code in _NAME_THE_CANCELLER))
    if registry.resolved(job.name) is None:
        found.append(_("This process knows no job with this name."))
        found += [visible(why_not[:500])] if (why_not := registry.why_unknown(job.name)) else []
    return found


def _blockers_of(job: Job, pages: Pages) -> list[str]:
    """Links to some of the jobs that hold the slots it waits for; the reason names the limits."""
    if job.hold != Hold.LIMITED:
        return []
    found: list[str] = []
    for blocker in job.blocked_by():
        urls = ((pages.job(each), pages.shown(each)) for each in blocker.job_ids)
        found += [format_html_join(", ", '<a href="{}">#{}</a>', urls)] if blocker.job_ids else []
    return found


def _advice_of(reason: Reason, job: Job, around: Surroundings) -> object:
    """The advice; names the button of this page instead of the command."""
    if "manage.py pgjobs" not in reason.advice:
        return reason.advice
    if around.is_undone and job.outcome:
        return _("It is not retried, as its undo has begun.")
    gate = around.gate
    if job.name not in GATHERING:
        return BUTTONS_INSTEAD.get(reason.code, reason.advice)
    is_open = reason.code == "blocked_by_members" and gate is not None and gate.hands
    return BUTTONS_OF_BATCHES.get("open" if is_open else reason.code, reason.advice)


def _cancel_of(job: Job, *, named: bool) -> str:
    """Mode and instant of the cancel; also who and why, unless a sentence above ``named`` them."""
    mode = CANCEL_MODES.get(job.cancel_mode, job.cancel_mode)
    head = format_html(str(_("Cancel ({}) requested {}")), mode, when(job.cancel_requested_at))
    if named:
        return head
    head = format_html(str(_("{} by {}")), head, person(job.cancel_by)) if job.cancel_by else head
    return format_html("{}: {}", head, short(job.cancel_reason, 500)) if job.cancel_reason else head


def _times_of(job: Job) -> FactList:
    instants = ["created_at", "run_at", "ready_at", "cancel_requested_at", "finished_at"]
    # Admitted, parked and released jobs keep these values of an earlier claim, which say nothing about the present.
    if job.state == JobState.RUNNING:
        instants[3:3] = ["claimed_at", "overdue_at"]
    elif job.outcome:
        instants[3:3] = ["claimed_at"]
    shown: FactList = [(_verbose(name), when(value)) for name in instants if (value := getattr(job, name))]
    limit = _("unlimited") if job.timeout_seconds is None else seconds(job.timeout_seconds)
    own = not job.outcome or job.timeout_seconds not in (None, get_conf().default_timeout_seconds)
    waited = None
    if job.outcome and job.claimed_at is not None:
        waited = max((job.claimed_at - max(job.created_at, job.run_at)).total_seconds(), 0.0)
    return [
        *shown,
        (_("took"), None if job.duration_seconds is None else seconds(job.duration_seconds)),
        (_("timeout"), limit if own else None),
        (_("waited last"), None if waited is None else seconds(waited)),
    ]


def _verbose(name: str) -> str:
    return str(Job._meta.get_field(name).verbose_name)  # type: ignore[union-attr]
