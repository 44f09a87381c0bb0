"""The admin pages of the limits that operators set in place of the code's: to set, to see beside these, to restore."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.display import format_html, person, short, when
from django_pgjobs.admin.pauses import LASTING, PauseForm, QueueStateAdmin
from django_pgjobs.admin.readonly import column, may
from django_pgjobs.definition.declared_limits import declared
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import LimitOverride, QueueState
from django_pgjobs.queues import limits
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.steering.trail import ADMIN, recorded_as


class LimitForm(PauseForm):
    """Asks for the queue or job, the numbers, the reason, and the end. Setting a limit again replaces all of it."""

    lasts = forms.ChoiceField(
        label=_("For"), required=False, choices=(("", _("until it is restored, or the time below")), *LASTING[1:]),
        widget=forms.RadioSelect, help_text=_("Or name the time of its end."),
    )  # fmt: skip
    anyway = forms.BooleanField(
        label=_("Limit this queue although nothing seems to use it"), required=False, widget=forms.HiddenInput
    )
    unknown = _("No job or setting knows a queue %(queue)s%(hint)s. To limit it anyway, check the box below.")

    class Meta:
        model = LimitOverride
        fields = ("kind", "name", "concurrency", "rate", "per", "reason", "until")
        help_texts = {
            "concurrency": _("Leave empty to keep the number in the code."),
            "rate": _("How many start in a period. Leave empty to keep the number in the code."),
            "per": _("The period. Leave empty for that of the code, or 60 seconds."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["until"].help_text = _("When the code's numbers apply again. Leave empty to restore them by hand.")

    def clean(self) -> Any:
        """Refuse numbers that no limit may have."""
        given = super().clean() or self.cleaned_data
        if {"kind", "name", "concurrency", "rate", "per"} <= given.keys() and "name" not in self.errors:
            code = declared(given["kind"], given["name"])
            try:
                if not code.applies:
                    raise InvalidJob(gettext("This job has no limit with a key."))
                limits.checked(code.limit, given["concurrency"], given["rate"], given["per"])
            except InvalidJob as error:
                self.add_error("concurrency", visible(error))
        return given


class LimitOverrideAdmin(QueueStateAdmin):
    """The limits in force. Users with the permission set them and restore the code's; rows are never edited."""

    form = LimitForm
    list_display: Any = (
        "shown_name", "shown_kind", "shown_limit", "shown_code", "shown_by", "shown_reason", "shown_since",
        "shown_until",
    )  # fmt: skip
    fieldsets = (
        (None, {"fields": ("kind", "name", "anyway", "concurrency", "rate", "per", "reason", "lasts", "until")}),
    )
    readonly_fields: ClassVar[tuple[str, ...]] = list_display
    actions = ("restore",)
    posts = {"<path:object_id>/restore/": "restore"}

    has_add_permission = has_pause_permission = has_limit_permission = may("limit_queue")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Set the limit, in the name of the user."""
        lasts = form.cleaned_data.get("lasts")
        words = {"by": request.user, "reason": obj.reason, "until": int(lasts) if lasts else obj.until}
        numbers = {name: getattr(obj, name) for name in ("concurrency", "rate", "per")}
        with recorded_as(ADMIN):
            obj.pk = limits.override(obj.kind, obj.name, **numbers, **words, database=self.written).pk

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        """Go to the list: there is nothing to edit."""
        message = gettext("The limit of %(kind)s %(name)s is set.") % {
            "kind": obj.get_kind_display(),
            "name": visible(obj.name),
        }
        self.message_user(request, message, messages.SUCCESS)
        return HttpResponseRedirect(self.pages.page("limitoverride_changelist"))

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        """Offer those who may restore a limit a button in each row."""
        return (*self.list_display, "shown_restore") if self.has_limit_permission(request) else self.list_display

    def restore_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Restore one limit, then return to the list."""
        if not self.has_limit_permission(request) or not self.has_view_permission(request):
            raise PermissionDenied
        found = self.get_queryset(request)
        self.restore(request, found.filter(pk=object_id) if self.is_id(object_id) else found.none())
        return HttpResponseRedirect(self.pages.page("limitoverride_changelist"))

    @admin.display(description=_("restore"))
    def shown_restore(self, limit: LimitOverride) -> str:
        """A button; it sends the form of the list to another address."""
        button = '<button type="submit" formaction="{}" class="pgjobs-textbutton">{}</button>'
        return format_html(button, self.pages.page("limitoverride_restore", limit.pk), _("Restore"))

    @admin.action(description=_("Restore the code's limit"), permissions=["limit"])
    def restore(self, request: HttpRequest, queryset: QuerySet[QueueState]) -> None:
        """Restore the code's numbers for the selected ones."""
        done: list[str] = []
        for limit in queryset:
            with recorded_as(ADMIN):
                restored = limits.restore(limit.kind, limit.name, by=request.user, database=self.written_at(limit))
            if restored:
                self.log_change(request, limit, gettext("Restored."))
                done.append(f"{limit.get_kind_display()} {visible(limit.name)}")
        text = gettext("Restored: %(names)s.") % {"names": ", ".join(done)}
        text = text if done else gettext("No limit was set anymore.")
        self.message_user(request, text, messages.SUCCESS if done else messages.WARNING)

    shown_limit = column(_("limit"), lambda limit: _numbers(limit.concurrency, limit.rate, limit.per))
    shown_code = column(_("in the code"), lambda limit: _in_code(limit))
    shown_by = column(_("set by"), lambda limit: person(limit.set_by))
    shown_reason = column(_("reason"), lambda limit: short(limit.reason, 200) or "–")
    shown_since = column(_("set at"), lambda limit: when(limit.set_at))


def _in_code(limit: LimitOverride) -> str:
    code = declared(limit.kind, limit.name)
    if not code.applies:
        return gettext("idle: the code has nothing that it could count")
    if code.limit is None:
        return gettext("no limit")
    return _numbers(code.limit.concurrency, code.limit.rate, code.limit.per)


def _numbers(concurrency: int | None, rate: int | None, per: float | None) -> str:
    said = [] if concurrency is None else [gettext("%(count)s at once") % {"count": concurrency}]
    if rate is not None:
        said.append(gettext("%(count)s starts in %(seconds)s s") % {"count": rate, "seconds": f"{per or 0.0:g}"})
    return capfirst(", ".join(said))
