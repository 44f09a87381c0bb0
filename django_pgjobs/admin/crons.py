"""The admin pages of cron entries: their status, their next fires, and the operator's overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.contrib.admin.utils import unquote as unquoted
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet, TextField
from django.db.models.functions import Cast
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_pgjobs.admin.actions import ACTIONS, message_of
from django_pgjobs.admin.changelist import CappedPaginator
from django_pgjobs.admin.cron_forms import OverrideForm, jobs_to_schedule
from django_pgjobs.admin.cron_pages import add_schedule, change_schedule
from django_pgjobs.admin.display import (
    badge,
    below,
    format_html,
    format_html_join,
    link_to,
    person,
    short,
    status_badge,
    table_of,
    when,
)
from django_pgjobs.admin.readonly import ReadOnlyAdmin, column, may
from django_pgjobs.admin.trail import what
from django_pgjobs.exceptions import PgJobsError
from django_pgjobs.models import Action, CronEntry, Job
from django_pgjobs.presentation import sight
from django_pgjobs.presentation.schedules import in_each_database, meaning, next_fire
from django_pgjobs.presentation.sight import Hidden
from django_pgjobs.presentation.wording import arguments
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.steering.batching import Steered
from django_pgjobs.steering.crons import JSON_COLUMNS, OVERRIDES
from django_pgjobs.steering.trail import ADMIN, recorded_as

if TYPE_CHECKING:
    from django.forms import BaseForm

    from django_pgjobs.presentation.job_rows import CronRow


PREVIEWED = 10
MOST_NAMED = 10
"""Number of jobs that a message names."""

MOST_SHOWN = 10
"""Number of jobs, and of actions, that the page of an entry shows."""

BUTTONS = {
    "pause": _("pause"), "resume": _("resume"), "run_now": _("run now"), "stop": _("stop and cancel its jobs"),
    "remove": _("delete"),
}  # fmt: skip

ALSO_NEEDED = {"stop": "pgjobs.cancel_job", "remove": "pgjobs.delete_cronentry"}
"""Permissions that a button needs beside that to run entries."""

ASKING = ("pause", "stop", "remove")
"""Buttons that ask for the reason."""


def on_selected(verb: str) -> object:
    """Return the action of the list that does this to the selected entries."""

    def steer_selected(page: CronEntryAdmin, request: HttpRequest, entries: object) -> None:
        page.steer(request, entries, verb)

    steer_selected.__name__ = verb
    return admin.action(description=capfirst(BUTTONS[verb]), permissions=["run"])(steer_selected)


class CronEntryAdmin(ReadOnlyAdmin):
    """Cron entries: operators override those of code, and delete rows; they pause, resume and run all of them."""

    form = OverrideForm
    change_form_template = "admin/pgjobs/cronentry/change_form.html"
    list_display = (
        "shown_name", "shown_status", "shown_expression", "shown_job", "shown_last_fire", "shown_last_job",
        "shown_next_fire",
    )  # fmt: skip
    ordering = ("name",)
    search_fields = ("name__startswith", "job_name__startswith")
    search_help_text = _("How the name of an entry or of its job begins.")
    paginator = CappedPaginator
    actions: Any = tuple(map(on_selected, ("pause", "resume", "run_now")))
    fieldsets = (
        (None, {"fields": ("shown_name", "shown_status", "shown_note", "shown_job", "shown_arguments")}),
        (_("Schedule"), {"fields": ("shown_expression", "misfire", "overlap", "shown_bounds", "shown_fires")}),
        (
            _("History"),
            {"fields": ("shown_last_fire", "shown_jobs", "shown_created", "shown_declared", "shown_actions")},
        ),
        (_("Overrides"), {"fields": OVERRIDES}),
    )
    readonly_fields = tuple(str(name) for _heading, part in fieldsets[:-1] for name in part["fields"])
    posts = {"<path:object_id>/steer/<slug:verb>/": "steer"}

    # Permissions

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Tell whether the user may override; a row has a page of its own for changes."""
        if obj is not None and obj.origin == CronEntry.Origin.ROW:
            return False
        return request.user.has_perm("pgjobs.change_cronentry")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may make schedules, and code exposes a job to them."""
        return request.user.has_perm("pgjobs.add_cronentry") and bool(jobs_to_schedule())

    has_run_permission = may("run_cronentry")

    def get_fieldsets(self, request: HttpRequest, obj: CronEntry | None = None) -> Any:
        """Leave out the arguments for users who may not see all of them; rows have no overrides."""
        if obj is not None and obj.origin == CronEntry.Origin.ROW:
            return self.fieldsets[:-1]
        fields = OVERRIDES if _may_see_arguments(request, obj) else ("expression", "zone")
        return (*self.fieldsets[:-1], (self.fieldsets[-1][0], {"fields": fields}))

    # Reading

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Read the arguments as text, so that a malformed value spoils nothing else on the page."""
        entries = super().get_queryset(request).defer(*JSON_COLUMNS).annotate(in_each=in_each_database())
        texts = {"declared_text": Cast("declared_payload", TextField()), "own_text": Cast("payload", TextField())}
        return cast("QuerySet[Model]", entries.annotate(**texts))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Note whether the user may see sensitive arguments; give unparsable ones to the form as text."""
        entry = super().get_object(request, object_id, from_field)
        if entry is not None:
            entry.reveal = request.user.has_perm(sight.PERMISSION)
            try:
                entry.refresh_from_db(fields=["payload"])
            except (ValueError, RecursionError):
                entry.payload = InvalidJSONInput(entry.own_text)
        return entry

    shown_name = column(_("name"), lambda entry: visible(entry.name))
    shown_job = column(_("job"), lambda entry: visible(entry.job_name))
    shown_last_fire = column(_("last fire"), lambda entry: when(entry.last_fire_at))
    shown_next_fire = column(_("next fire"), lambda entry: when(next_fire(entry)))
    shown_created = column(_("created"), lambda entry: when(entry.created_at))

    @admin.display(description=_("status"))
    def shown_status(self, entry: CronEntry) -> object:
        """The status in one word; for a pause also who paused it and until when."""
        word = status_badge(entry)
        if entry.status != "paused":
            return word
        until = format_html("{} {}", _("until"), when(entry.paused_until)) if entry.paused_until else ""
        return below(word, format_html("{} {}", person(entry.paused_by), until) if entry.paused_by or until else "")

    @admin.display(description=_("declared last"))
    def shown_declared(self, entry: CronRow) -> object:
        """The instant of the latest declaration, and a word if there is one for each database."""
        words = _("For each database: this is the entry of %(alias)s, and changes here concern no other one.")
        return below(when(entry.declared_at), words % {"alias": entry._state.db} if entry.in_each else "")

    @admin.display(description=_("why"))
    def shown_note(self, entry: CronEntry) -> object:
        """Why it does not fire, and what to do."""
        if entry.broken:
            words = {"reason": visible(entry.broken[:1000])}
            if entry.origin == CronEntry.Origin.ROW:
                return _("It does not fire: %(reason)s. Correct the schedule, or deploy code that fits it.") % words
            return _("It does not fire: %(reason)s. Correct the row or the override.") % words
        if entry.status == "missing":
            text = _("No worker has declared it since {}. It fires again when one does.")
            return format_html(str(text), when(entry.missing_since))
        return visible(entry.paused_reason) if entry.is_paused and entry.paused_reason else "–"

    @admin.display(description=_("expression"))
    def shown_expression(self, entry: CronEntry) -> object:
        """The effective expression and zone, an interval also in words; below them declared ones, if overridden."""
        own = entry.expression is not None or entry.zone is not None
        counts = format_html("<code>{}</code> {}", entry.effective_expression, entry.effective_zone)
        counts = below(counts, meaning(entry))
        declared = _("declared: %(expression)s %(zone)s")
        words = declared % {"expression": entry.declared_expression, "zone": entry.declared_zone}
        return below(counts, words if own else "")

    @admin.display(description=_("last job"))
    def shown_last_job(self, entry: CronEntry) -> object:
        """The latest job and its state, if it still exists."""
        if entry.last_job_id is None:
            return "–"
        job = Job.objects.using(entry._state.db).filter(pk=entry.last_job_id).only("state").first()
        if job is None:
            return _("%(id)d (deleted)") % {"id": entry.last_job_id}
        return format_html("{} {}", self._link_to(job), badge(job.state))

    @admin.display(description=_("bounds"))
    def shown_bounds(self, entry: CronEntry) -> object:
        """The first and the last instant at which it may fire, and how many fires it has made of how many."""
        rows = [
            (_("start"), entry.starts_at and when(entry.starts_at)),
            (_("end"), entry.ends_at and when(entry.ends_at)),
            (_("fires"), entry.max_fires and f"{entry.fires_made} / {entry.max_fires}"),
        ]
        given = [(str(label), value) for label, value in rows if value]
        return table_of(given) if given else "–"

    @admin.display(description=_("latest jobs"))
    def shown_jobs(self, entry: CronEntry) -> object:
        """The latest jobs with their fires and states, if they still exist."""
        jobs = Job.objects.using(entry._state.db).filter(cron_entry=entry.pk).only("state", "fire_at").order_by("-pk")
        found = list(jobs[:MOST_SHOWN])
        if not found:
            return self.shown_last_job(entry)
        rows = ((self._link_to(job), badge(job.state), when(job.fire_at)) for job in found)
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{} {} {}</li>", rows))

    @admin.display(description=_("changes"))
    def shown_actions(self, entry: CronEntry) -> object:
        """Return who changed what, latest first."""
        actions = Action.objects.using(entry._state.db).filter(kind="cron", subject=entry.pk)
        found = actions.order_by("-pk")[:MOST_SHOWN]
        rows = [
            (when(each.acted_at), what(each.verb, short(each.mode, 500)), person(each.acted_by), each.reason)
            for each in found
        ]
        listed = format_html_join("", "<li>{}: {}, {} {}</li>", rows)
        return format_html("<ul>{}</ul>", listed) if rows else "–"

    @admin.display(description=_("next fires"))
    def shown_fires(self, entry: CronEntry) -> object:
        """The next fires of its schedule, as if it were on."""
        fires = entry.next_fires(PREVIEWED)
        if not fires:
            return "–"
        items = format_html_join("", "<li>{}</li>", ((when(fire),) for fire in fires))
        zone = _("In the time zone %(zone)s.") % {"zone": timezone.get_current_timezone_name()}
        return format_html('<ol>{}</ol><span class="pgjobs-below">{}</span>', items, zone)

    @admin.display(description=_("arguments"))
    def shown_arguments(self, entry: CronRow) -> object:
        """The arguments of its jobs; sensitive ones only for users who may see them."""
        shown = arguments(entry.job_name, entry.own_text or entry.declared_text, reveal=getattr(entry, "reveal", False))
        return str(shown) if isinstance(shown, Hidden) else table_of((key, short(value, 500)) for key, value in shown)

    # Changing

    def save_model(self, request: HttpRequest, obj: CronEntry, form: BaseForm, change: bool) -> None:
        """Write the changed overrides, and no other column."""
        if form.changed_data:
            with recorded_as(ADMIN):
                obj.override(by=request.user, **{name: form.cleaned_data[name] for name in form.changed_data})

    def steer(self, request: HttpRequest, entries: Any, verb: str, **words: object) -> None:
        """Do this to each entry, and say how many there were."""
        done, made = 0, []
        for entry in entries:
            try:
                with recorded_as(ADMIN):
                    changed = getattr(entry, verb)(by=request.user, **words)
            except PgJobsError as error:
                self.message_user(request, visible(error), messages.ERROR)
            else:
                done += 1
                made += [changed] if isinstance(changed, Job) else []
                if isinstance(changed, Steered) and changed.skipped:
                    self.message_user(request, message_of(ACTIONS["cancel"], changed)[1], messages.WARNING)
                if verb == "remove":
                    self.log_deletions(request, cast("Any", [entry]))
                else:
                    self.log_change(request, entry, str(capfirst(str(BUTTONS[verb]))))
        if done:
            text = ngettext("%(verb)s: %(count)d entry.", "%(verb)s: %(count)d entries.", done)
            message = text % {"verb": capfirst(str(BUTTONS[verb])), "count": done}
            message = format_html("{} {}", message, self._named(request, made)) if made else message
            self.message_user(request, message, messages.SUCCESS)

    def _named(self, request: HttpRequest, made: list[Job]) -> SafeString:
        """Name the new jobs; users who may view them get links."""
        shown = request.user.has_perm("pgjobs.view_job")
        names = [self._link_to(job) if shown else self.pages.shown(job.pk) for job in made[:MOST_NAMED]]
        more = "…" if len(made) > MOST_NAMED else "."
        head = ngettext("Its job:", "Their jobs:", len(made))
        return format_html("{} {}{}", head, format_html_join(", ", "{}", ((name,) for name in names)), more)

    def _link_to(self, job: Job) -> object:
        return link_to(self.pages.shown(job.pk), self.pages.job(job.pk))

    def get_urls(self) -> list[URLPattern]:
        """Add the page that changes a row."""
        change = self.admin_site.admin_view(self.door("schedule_view"))
        page = path("<path:object_id>/schedule/", change, name="pgjobs_cronentry_schedule")
        return [page, *super().get_urls()]

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: object = None) -> HttpResponse:
        """Make a schedule; see ``cron_pages``."""
        return add_schedule(self, request)

    def schedule_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Change a row; see ``cron_pages``."""
        return change_schedule(self, request, object_id)

    def steer_view(self, request: HttpRequest, object_id: str, verb: str) -> HttpResponse:
        """Apply one action to one entry, then return to its page."""
        if verb not in BUTTONS or not self.has_view_permission(request) or not self.has_run_permission(request):
            raise PermissionDenied
        if verb in ALSO_NEEDED and not request.user.has_perm(ALSO_NEEDED[verb]):
            raise PermissionDenied
        name, entries = unquoted(object_id), self.get_queryset(request)
        entries = entries.filter(pk=name) if self.is_id(name) else entries.none()
        words = {"reason": request.POST.get("reason", "")[:500]} if verb in ASKING else {}
        if not entries:
            return self.to_list(request, _("There is no such cron entry."))
        self.steer(request, entries, verb, **words)
        if verb == "remove" and not entries.all():
            return HttpResponseRedirect(self.pages.page("cronentry_changelist"))
        return HttpResponseRedirect(self.pages.page("cronentry_change", object_id))

    def render_change_form(self, request: HttpRequest, context: Any, *args: object, **kwargs: object) -> HttpResponse:
        """Add the buttons that the entry's status and the user's permissions allow."""
        entry = context["original"]
        own = entry.origin == CronEntry.Origin.ROW
        verbs: list[str] = []
        if self.has_run_permission(request):
            verbs = ["resume" if entry.is_paused else "pause", "run_now", "stop"]
            verbs += ["remove"] if own or entry.status == "missing" else []
        if own and request.user.has_perm("pgjobs.change_cronentry"):
            context["pgjobs_change_url"] = self.pages.page("cronentry_schedule", quote(entry.pk))
        context["pgjobs_buttons"] = [
            {
                "verb": verb,
                "word": capfirst(str(BUTTONS[verb])),
                "asks": verb in ASKING,
                "destructive": verb in ("stop", "remove"),
                "url": self.pages.page("cronentry_steer", quote(entry.pk), verb),
            }
            for verb in verbs
            if verb not in ALSO_NEEDED or request.user.has_perm(ALSO_NEEDED[verb])
        ]
        page: HttpResponse = super().render_change_form(request, context, *args, **kwargs)
        return page


def _may_see_arguments(request: HttpRequest, entry: CronEntry | None) -> bool:
    name = "" if entry is None else entry.job_name
    return sight.may_see(sight.Fact.WRITTEN, name, reveal=request.user.has_perm(sight.PERMISSION))
