"""Send an event from a page, or take it back: the forms, and the answers to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.readonly import ReadOnlyAdmin
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.steering import events
from django_pgjobs.steering.events import Sent, Withdrawn
from django_pgjobs.steering.trail import ADMIN, MOST_CHARS, recorded_as

if TYPE_CHECKING:
    from django_pgjobs.models import EventState


PERMISSION = "pgjobs.send_event"

ANSWERS: dict[Sent, tuple[int, object]] = {
    Sent.SENT: (messages.SUCCESS, _("Sent %(event)s.")),
    Sent.BEFORE: (messages.WARNING, _("%(event)s was sent before: the first one counts.")),
    Sent.BUSY: (messages.ERROR, _("%(event)s is locked by another transaction: try again.")),
}

WITHDRAWAL_ANSWERS: dict[Withdrawn, tuple[int, object]] = {
    Withdrawn.WITHDRAWN: (messages.SUCCESS, _("Withdrew %(event)s.")),
    Withdrawn.KEPT: (messages.WARNING, _("%(event)s was not sent, or a job has read it.")),
    Withdrawn.BUSY: ANSWERS[Sent.BUSY],
}


class EventForm(forms.Form):
    """The payload of an event."""

    payload = forms.CharField(
        label=_("Payload (JSON)"),
        required=False,
        help_text=_('The payload that the job gets, such as {"approved": true}. Empty for null.'),
        widget=forms.Textarea(attrs={"rows": 4, "cols": 60, "spellcheck": "false"}),
    )

    def clean_payload(self) -> object:
        """Parse it, and say where it is no JSON."""
        try:
            return events.payload_of(self.cleaned_data["payload"])
        except ValueError as error:
            problem = {"problem": visible(str(error)[:300])}
            raise ValidationError(_("This is not valid JSON: %(problem)s.") % problem) from None


class WithdrawalForm(forms.Form):
    """Why an event is taken back."""

    reason = forms.CharField(label=_("Reason"), required=False, max_length=MOST_CHARS)


class SendsEvents(ReadOnlyAdmin):
    """Pages with a form that sends an event."""

    def may_send(self, request: HttpRequest) -> bool:
        """Tell whether the user may."""
        return bool(self.has_view_permission(request) and request.user.has_perm(PERMISSION))

    def get_fieldsets(self, request: HttpRequest, obj: object = None) -> Any:
        """Return none: the page of a row consists of sections, not of a form."""
        return ()

    def sending_form(self, request: HttpRequest, url: str, event: str) -> SafeString:
        """Return the form."""
        given = {"form": EventForm(auto_id="send_%s"), "url": url, "event": event}
        return render_to_string("admin/pgjobs/send_event_form.html", given, request)

    def withdrawal_form(self, request: HttpRequest, url: str) -> SafeString:
        """Return the form that takes an event back."""
        given = {"form": WithdrawalForm(auto_id="withdraw_%s"), "url": url}
        return render_to_string("admin/pgjobs/withdraw_event_form.html", given, request)

    def answer_withdrawal(self, request: HttpRequest, event: EventState, *, back: str, using: str) -> HttpResponse:
        """Take an event back as long as no job has read it, and return to its page."""
        form = WithdrawalForm(request.POST)
        if not form.is_valid():
            self.message_user(request, " ".join(map(str, cast(Any, form.errors["reason"]))), messages.ERROR)
            return HttpResponseRedirect(back)
        reason = form.cleaned_data["reason"]
        try:
            with recorded_as(ADMIN):
                done = events.withdraw_by_operator(using, event.pk, by=request.user, reason=reason)
        except InvalidJob as error:
            self.message_user(request, visible(str(error)), messages.ERROR)
            return HttpResponseRedirect(back)
        level, text = WITHDRAWAL_ANSWERS[done]
        words = str(text) % {"event": visible(event.pk)}
        self.message_user(request, words, level)
        if done is Withdrawn.WITHDRAWN:
            self.log_change(request, event, words)
        return HttpResponseRedirect(back)

    def answer_sending(
        self, request: HttpRequest, event: str, *, back: str, using: str, subject: object
    ) -> HttpResponse:
        """Ask whether to send the event, since the first one counts; send it once that is confirmed, and return.

        Or show the form with what is wrong in it. ``subject``: the row to whose history this belongs.
        """
        form = EventForm(request.POST, auto_id="send_%s")
        if form.is_valid() and (problem := events.problem_of_payload(event, form.cleaned_data["payload"])):
            form.add_error("payload", visible(problem))
        if form.is_valid() and "confirmed" in request.POST:
            try:
                with recorded_as(ADMIN):
                    sent = events.send_by_operator(using, event, form.cleaned_data["payload"], by=request.user)
            except InvalidJob as error:
                form.add_error("payload", visible(str(error)))
            else:
                level, text = ANSWERS[sent]
                words = str(text) % {"event": visible(event)}
                self.message_user(request, words, level)
                if sent is Sent.SENT:
                    self.log_change(request, subject, words)
                return HttpResponseRedirect(back)
        return self.own_page(
            request, "send_event.html", title=gettext("Send event"), event=event, shown=visible(event),
            form=form, asks=form.is_valid(), url=request.get_full_path(), back=back,
        )  # fmt: skip
