"""The admin pages of events: those that were sent, and those that jobs wait for."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet, Subquery, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.changelist import CappedPaginator
from django_pgjobs.admin.display import FactList, block, facts_table, format_html, json_block, person, short, when
from django_pgjobs.admin.readonly import column
from django_pgjobs.admin.sending import SendsEvents
from django_pgjobs.inspection.words import grouped
from django_pgjobs.models import EventState, Job, Memo
from django_pgjobs.presentation import sight
from django_pgjobs.presentation.flow import listed
from django_pgjobs.presentation.memos import RESULT_CHARS
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import BUILT_IN, MemoKind
from django_pgjobs.steering.events import may_be_sent

MOST = 100_000
"""Number of events that the list looks at, the newest ones."""

MOST_JOBS = 25
"""Number of waiting jobs that the page of an event names."""


class SentFilter(SimpleListFilter):
    """Events that jobs wait for, and events that no job has waited for: often the key is not what the job expects."""

    title = _("sent")
    parameter_name = "sent"
    offered: ClassVar[dict[str, tuple[object, Q]]] = {
        "not_sent": (_("Not sent: jobs wait for it, or have waited"), Q(sent_at=None)),
        "sent": (_("Sent"), Q(sent_at__isnull=False)),
        "nobody_waits": (_("Sent, and no job waits for it"), Q(sent_at__isnull=False, waits=0)),
    }

    def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, Any]]:
        """Return them, without counts."""
        return [(value, words) for value, (words, _condition) in self.offered.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        """Keep these."""
        return queryset.filter(self.offered.get(self.value() or "", ("", Q()))[1])


class EventAdmin(SendsEvents):
    """Events, read-only, without those of this package; their pages send them, and take them back."""

    list_display = ("shown_name", "shown_sent", "shown_by", "shown_waits", "shown_created")
    list_filter = (SentFilter,)
    lookups = ("sent",)
    posts = {"<path:object_id>/send/": "send", "<path:object_id>/withdraw/": "withdraw"}
    ordering = ("-created_at", "-pk")
    list_per_page = 50
    paginator = CappedPaginator
    search_fields = ("name",)
    search_help_text = _("A whole name, or a part of it.")
    change_form_template = "admin/pgjobs/eventstate/change_form.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Leave the payload out, which may be large, and the events that this package sends to itself."""
        events = super().get_queryset(request)
        return events.defer("payload").exclude(name__startswith=BUILT_IN)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        """Find the event of this name, else those with this text among the newest; without a term, the newest."""
        term = search_term.strip()
        if term and queryset.filter(pk=term).exists():
            return queryset.filter(pk=term), False
        edge = (
            EventState.objects.using(self.database or None)
            .order_by("-created_at")
            .values("created_at")[MOST : MOST + 1]
        )
        newest = Q(created_at__gt=Subquery(edge)) if edge.exists() else Q()
        return queryset.filter(newest, Q(name__icontains=term) if term else Q()), False

    shown_name = column(_("name"), lambda event: short(event.name, 120))
    shown_sent = column(_("sent"), lambda event: when(event.sent_at))
    shown_by = column(_("by whom"), lambda event: person(event.sent_by))
    shown_waits = column(_("waits"), lambda event: grouped(event.waits))
    shown_created = column(_("known since"), lambda event: when(event.created_at))

    def render_change_form(self, request: HttpRequest, context: Any, *args: object, **kwargs: object) -> HttpResponse:
        """Add the facts, the jobs that wait for it, and the form that sends it or takes it back."""
        event = context["original"]
        sections = [(_("Event"), facts_table(self._facts(request, event)))]
        may_send = may_be_sent(event.pk) and self.may_send(request)
        if event.sent_at is None and may_send:
            sections.append((_("Send"), self.sending_form(request, self._url("send", event), event.pk)))
        elif event.read_at is None and may_send:
            sections.append((_("Withdraw"), self.withdrawal_form(request, self._url("withdraw", event))))
        context["pgjobs_sections"] = sections
        context["title"] = gettext("Event %(name)s") % {"name": visible(event.pk[:200])}
        page: HttpResponse = super().render_change_form(request, context, *args, **kwargs)
        return page

    def _url(self, page: str, event: EventState) -> str:
        return self.pages.page(f"eventstate_{page}", quote(event.pk))

    def _facts(self, request: HttpRequest, event: EventState) -> FactList:
        is_sent = event.sent_at is not None
        return [
            (_("name"), event.name),
            (_("sent"), when(event.sent_at)),
            (_("by whom"), person(event.sent_by) if is_sent else None),
            (_("payload"), self._payload(request, event) if is_sent else None),
            (_("read"), when(event.read_at) if is_sent else None),
            (_("known since"), when(event.created_at)),
            (_("waits"), grouped(event.waits)),
            (_("jobs that wait"), self._waiters(event)),
        ]

    def _payload(self, request: HttpRequest, event: EventState) -> object:
        """The payload, for those who may see sensitive arguments: the event does not say which job's it is."""
        reveal = request.user.has_perm(sight.PERMISSION)
        if not sight.may_see(sight.Fact.EVENT_PAYLOAD, "", reveal=reveal):
            return format_html('<span class="quiet">{}</span>', _("hidden"))
        texts = EventState.objects.using(event._state.db).filter(pk=event.pk)
        text = texts.values_list(Left(Cast("payload", TextField()), RESULT_CHARS + 1), flat=True).first()
        if text is None:
            return "–"
        return block(f"{text[:RESULT_CHARS]}…") if len(text) > RESULT_CHARS else json_block(text)

    def _waiters(self, event: EventState) -> object:
        using = event._state.db
        memos = Memo.objects.using(using).filter(kind=MemoKind.EVENT, event=event.pk, finished_at=None)
        ids = list(memos.order_by("job_id").values_list("job_id", flat=True)[: MOST_JOBS + 1])
        jobs: list[Job] = list(listed(using).filter(pk__in=ids, finished_at=None).order_by("pk")[:MOST_JOBS])
        links = self.pages.links(jobs)
        return format_html("{}<div>…</div>", links) if len(ids) > MOST_JOBS else links or "–"

    # Sending, and taking back

    def send_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Send the event, then return to its page."""
        event = self._event(request, object_id)
        if event is None:
            return self._gone(request, object_id)
        back = self._url("change", event)
        return self.answer_sending(request, event.pk, back=back, using=self.written_at(event), subject=event)

    def withdraw_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Take the event back, then return to its page."""
        event = self._event(request, object_id)
        if event is None:
            return self._gone(request, object_id)
        return self.answer_withdrawal(request, event, back=self._url("change", event), using=self.written_at(event))

    def _event(self, request: HttpRequest, name: str) -> EventState | None:
        """Return the event, if there is one. Raises ``PermissionDenied``."""
        if not self.may_send(request):
            raise PermissionDenied
        found: EventState | None = self.get_object(request, unquote(name))
        return found

    def _gone(self, request: HttpRequest, name: str) -> HttpResponse:
        return self.to_list(request, _("There is no event %(name)s.") % {"name": visible(unquote(name)[:200])})
