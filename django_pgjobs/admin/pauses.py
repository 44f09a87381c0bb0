"""The admin pages of pauses, to pause and resume, and the notices about pauses on the pages of jobs."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminSplitDateTime, AdminTextInputWidget
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.display import format_html, format_html_join, person, short, when
from django_pgjobs.admin.readonly import ReadOnlyAdmin, column, may
from django_pgjobs.definition.registry import registry
from django_pgjobs.definition.validation import did_you_mean
from django_pgjobs.exceptions import InvalidJob, UnknownJob
from django_pgjobs.models import QueueState
from django_pgjobs.queues import pauses
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.steering.trail import ADMIN, REASON_CHARS, recorded_as

if TYPE_CHECKING:
    from django_pgjobs.models import Job


MOST_NOTICES = 5
MOST_OFFERED = 500


def notices_for_list(queue: str, name: str, using: str | None) -> list[SafeString]:
    """Notices above a list of jobs: the pauses of the queue and the name that it filters by."""
    found = [
        state
        for state in pauses.current(using)
        if state.name == {"queue": queue, "job": name}.get(state.kind) or not (queue or name)
    ]
    sentences = [_sentence(state) for state in found[:MOST_NOTICES]]
    if left := len(found) - MOST_NOTICES:
        text = ngettext("%(count)d more is paused.", "%(count)d more are paused.", left)
        sentences += [format_html("{}", text % {"count": left})] if left > 0 else []
    return sentences


def notices_for_job(job: Job) -> list[SafeString]:
    """Notices above a job's page: the pauses of its queue and its name."""
    return [_sentence(state) for state in pauses.pauses_of(job.queue, job.name, job._state.db)]


def _sentence(state: QueueState) -> SafeString:
    what = _("Queue {} is paused") if state.kind == QueueState.Kind.QUEUE else _("Job {} is paused")
    head = format_html(str(what), format_html("<strong>{}</strong>", state.name))
    by = format_html(" {} {}", _("by"), person(state.paused_by)) if state.paused_by else ""
    until = format_html(" {} {}", _("until"), when(state.until)) if state.until else ""
    return format_html("{}{}{}{}.", head, by, until, f": {state.reason[:500].rstrip('.')}" if state.reason else "")


LASTING = (
    ("", _("until it is resumed, or the time below")),
    ("900", _("15 minutes")),
    ("3600", _("1 hour")),
    ("28800", _("8 hours")),
)
"""Durations of a pause to choose from, in seconds."""


class KnownNamesInput(AdminTextInputWidget):
    """A text field that offers the known queues and jobs; ``database``: where, if several are served."""

    database: str | None = None

    def render(self, name: str, value: object, attrs: Any = None, renderer: Any = None) -> SafeString:
        """Add the list that the field names."""
        names = sorted({*pauses.known_queues(self.database), *registry.names()})[:MOST_OFFERED]
        field = super().render(name, value, {**(attrs or {}), "list": "pgjobs-known"}, renderer)
        offered = format_html_join("", '<option value="{}"></option>', ((each,) for each in names))
        return format_html('{}<datalist id="pgjobs-known">{}</datalist>', field, offered)


class PauseForm(forms.ModelForm):  # type: ignore[type-arg]
    """Asks for the queue or job to pause, the reason, and the end. Pausing again replaces the earlier values."""

    reason = forms.CharField(
        label=capfirst(_("reason")), required=False, max_length=REASON_CHARS, widget=AdminTextInputWidget
    )
    name = forms.CharField(
        label=capfirst(_("name")),
        help_text=_("The name of the queue or of the job definition."),
        widget=KnownNamesInput,
    )
    until = forms.SplitDateTimeField(
        label=capfirst(_("until")),
        required=False,
        widget=AdminSplitDateTime(attrs={"aria-label": _("until")}),
        help_text=_("When the pause ends by itself. Leave empty to pause until it is resumed."),
    )
    lasts = forms.ChoiceField(
        label=_("For"), required=False, choices=LASTING, widget=forms.RadioSelect,
        help_text=_("Or name the time of its end."),
    )  # fmt: skip
    anyway = forms.BooleanField(
        label=_("Pause this queue although nothing seems to use it"), required=False, widget=forms.HiddenInput
    )

    unknown = _("No job or setting knows a queue %(queue)s%(hint)s. To pause it anyway, check the box below.")

    class Meta:
        model = QueueState
        fields: tuple[str, ...] = ("kind", "name", "reason", "until")

    def clean_until(self) -> object:
        """Refuse an instant in the past; the database's clock has the last word."""
        until = self.cleaned_data["until"]
        if until is not None and until <= timezone.now():
            raise forms.ValidationError(_("This time is in the past."))
        return until

    def clean(self) -> Any:
        """Refuse names that no queue or job can have."""
        given = super().clean() or self.cleaned_data
        if given.get("lasts") and given.get("until"):
            self.add_error("until", _("Choose how long, or name a time, not both."))
        if "kind" in given and "name" in given:
            try:
                is_queue = given["kind"] == QueueState.Kind.QUEUE
                if not is_queue:
                    registry.get(given["name"])  # a user who types a name does not choose which module is imported here
                pauses.names_of("queue" if is_queue else "job", given["name"])
            except (InvalidJob, UnknownJob) as error:
                self.add_error("name", visible(error))
            else:
                self._check_known(given)
        return given

    def _check_known(self, given: Any) -> None:
        """Ask before pausing a queue that no job, definition or setting knows: it may be a typo."""
        if given["kind"] != QueueState.Kind.QUEUE or given.get("anyway"):
            return
        known = pauses.known_queues(cast(Any, self.fields["name"].widget).database)
        if given["name"] not in known:
            self.fields["anyway"].widget = forms.CheckboxInput()
            words = {"queue": repr(given["name"]), "hint": did_you_mean(given["name"], known)}
            self.add_error("name", str(self.unknown) % words)


class QueueStateAdmin(ReadOnlyAdmin):
    """The current pauses. Users with the permission add rows and resume by an action; rows are never edited or
    deleted."""

    form = PauseForm
    list_display = ("shown_name", "shown_kind", "shown_by", "shown_reason", "shown_since", "shown_until")
    fieldsets = ((None, {"fields": ("kind", "name", "anyway", "reason", "lasts", "until")}),)
    readonly_fields: ClassVar[tuple[str, ...]] = list_display
    search_fields = ("name", "reason")
    ordering = ("-kind", "name")
    actions = ("resume",)
    posts = {"<path:object_id>/resume/": "resume"}

    has_add_permission = has_pause_permission = may("pause_queue")

    def get_fieldsets(self, request: HttpRequest, obj: object = None) -> Any:
        """Return the form for a new pause, or the facts of an existing one."""
        return self.fieldsets if obj is None else ((None, {"fields": self.readonly_fields}),)

    def get_form(self, request: HttpRequest, obj: object = None, change: bool = False, **kwargs: object) -> Any:
        """Offer the names of this database."""
        form = super().get_form(request, obj, change, **kwargs)
        if self.database and "name" in form.base_fields:
            # All requests share the field of the class.
            field = form.base_fields["name"] = deepcopy(form.base_fields["name"])
            field.widget.database = self.database
        return form

    def get_queryset(self, request: HttpRequest) -> QuerySet[QueueState]:
        """Leave out pauses that have ended by the database's clock: they have no effect."""
        states: Any = super().get_queryset(request)
        return cast("QuerySet[QueueState]", states.current())

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, object] | None = None
    ) -> HttpResponse:
        """Pause; if the database's clock refuses, show why."""
        # Every button leads to the list.
        one_button = {"show_save_and_add_another": False, "show_save_and_continue": False}
        try:
            page: HttpResponse = super().add_view(request, form_url, {**one_button, **(extra_context or {})})
        except InvalidJob as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        return page

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Pause, in the name of the user."""
        lasts = form.cleaned_data.get("lasts")
        words = {"by": request.user, "reason": obj.reason, "until": int(lasts) if lasts else obj.until}
        known = pauses.known_queues(self.database or None)
        obj.unknown = obj.kind == QueueState.Kind.QUEUE and obj.name not in known
        with recorded_as(ADMIN):
            obj.pk = pauses.pause(obj.kind, obj.name, **words, database=self.written).pk

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        """Go to the list: there is nothing to edit."""
        message = gettext("%(kind)s %(name)s is paused.") % {
            "kind": capfirst(obj.get_kind_display()),
            "name": visible(obj.name),
        }
        if obj.unknown:
            doubt = gettext("No job or setting knows this queue.")
            message = f"{message} {doubt}"
        self.message_user(request, message, messages.WARNING if obj.unknown else messages.SUCCESS)
        return HttpResponseRedirect(self.pages.page("queuestate_changelist"))

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        """Offer those who may resume a button in each row."""
        return (*self.list_display, "shown_resume") if self.has_pause_permission(request) else self.list_display

    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Resume one pause, then return to the list."""
        if not self.has_pause_permission(request) or not self.has_view_permission(request):
            raise PermissionDenied
        states = self.get_queryset(request)
        self.resume(request, states.filter(pk=object_id) if self.is_id(object_id) else states.none())
        return HttpResponseRedirect(self.pages.page("queuestate_changelist"))

    @admin.display(description=_("resume"))
    def shown_resume(self, state: QueueState) -> str:
        """A button; it sends the form of the list to another address."""
        button = '<button type="submit" formaction="{}" class="pgjobs-textbutton">{}</button>'
        return format_html(button, self.pages.page("queuestate_resume", state.pk), _("Resume"))

    @admin.action(description=_("Resume selected %(verbose_name_plural)s"), permissions=["pause"])
    def resume(self, request: HttpRequest, queryset: QuerySet[QueueState]) -> None:
        """Resume the selected pauses."""
        done: list[str] = []
        for state in queryset:
            with recorded_as(ADMIN):
                resumed = pauses.resume(state.kind, state.name, by=request.user, database=self.written_at(state))
            if resumed:
                self.log_change(request, state, gettext("Resumed."))
                done.append(f"{state.get_kind_display()} {visible(state.name)}")
        text = gettext("Resumed: %(names)s.") % {"names": ", ".join(done)}
        text = text if done else gettext("Nothing was paused anymore.")
        self.message_user(request, text, messages.SUCCESS if done else messages.WARNING)

    shown_name = column(_("name"), lambda state: visible(state.name))
    shown_by = column(_("paused by"), lambda state: person(state.paused_by))
    shown_reason = column(_("reason"), lambda state: short(state.reason, 200) or "–")
    shown_kind = column(_("kind"), lambda state: state.get_kind_display())
    shown_since = column(_("paused at"), lambda state: when(state.paused_at))
    shown_until = column(_("until"), lambda state: when(state.until) if state.until else _("no end"))
