"""The actions of operators: a list of their own, and a table on the page of each job."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as now_translated
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.changelist import CappedPaginator
from django_pgjobs.admin.display import below, format_html, format_html_join, person, short, when
from django_pgjobs.admin.flow_section import Pages
from django_pgjobs.admin.readonly import ReadOnlyAdmin
from django_pgjobs.models import Action, ActionPart
from django_pgjobs.presentation.wording import STATE_LABELS, grouped
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.store import statements as store

MOST = 25
"""How many actions the page of a job shows."""

MOST_JOBS = 100
"""How many jobs the page of an action names."""

VERBS: dict[str, Any] = {
    "cancel": _("cancel"), "retry": _("retry"), "abandon": _("abandon"), "release": _("release"),
    "reschedule": _("reschedule"), "pause": _("pause"), "resume": _("resume"), "run now": _("run now"),
    "override": _("override"), "add": _("add"), "change": _("change"), "delete": _("delete"),
    "close": _("close"), "send": _("send"),
}  # fmt: skip


def what(verb: str, mode: str) -> str:
    """*Cancel (kill)*."""
    word = capfirst(str(VERBS.get(verb, verb)))
    return f"{word} ({mode})" if mode else word


def actions_of(job: Any, current_app: str, *, linked: bool) -> list[dict[str, Any]]:
    """Return the actions on a job for its page, latest first."""
    found = store.list_actions(store.on(job._state.db), job.pk, limit=MOST)
    via = dict(Action.Via.choices)
    return [
        {
            "when": _linked(when(each.acted_at), each.id, current_app) if linked else when(each.acted_at),
            "what": format_html("{}", what(each.verb, each.mode or visible(each.subject))),
            "who": person(each.acted_by),
            "via": via.get(each.via, each.via),
            "reason": short(each.reason, 500),
            "among": _among(each.changed, each.asked),
        }
        for each in found
    ]


def _linked(text: Any, action_id: int, current_app: str) -> SafeString:
    return format_html(
        '<a href="{}">{}</a>', reverse("admin:pgjobs_action_change", args=[action_id], current_app=current_app), text
    )


def _among(changed: int, filter_words: str) -> SafeString | str:
    """*one of 130: queue bulk* for an action on many jobs."""
    if changed == 1 and not filter_words:
        return "–"
    words = now_translated("one of %(count)s") % {"count": grouped(changed)}
    return format_html("{}: {}", words, filter_words[:200]) if filter_words else words


class ActionAdmin(ReadOnlyAdmin):
    """The actions of operators, latest first."""

    list_display = ("shown_when", "shown_what", "shown_who", "via", "shown_changed", "shown_of", "shown_reason")
    fieldsets = (
        (None, {"fields": ("shown_when", "shown_what", "shown_who", "via", "shown_reason")}),
        (_("Jobs"), {"fields": ("shown_changed", "shown_of", "shown_jobs")}),
    )
    ordering = ("-pk",)
    list_per_page = 50
    paginator = CappedPaginator

    @admin.display(description=_("when"))
    def shown_when(self, action: Action) -> Any:
        """To the second."""
        return when(action.acted_at)

    @admin.display(description=_("what"))
    def shown_what(self, action: Action) -> Any:
        """The verb; for a cancel also its mode."""
        return format_html("{}", what(action.verb, action.mode))

    @admin.display(description=_("who"))
    def shown_who(self, action: Action) -> Any:
        """A user's name, or the text that code passed."""
        return person(action.acted_by)

    @admin.display(description=_("changed"))
    def shown_changed(self, action: Action) -> Any:
        """How many jobs changed, and why others were skipped."""
        skipped = action.skipped if isinstance(action.skipped, dict) else {}
        why = ", ".join(f"{number} {STATE_LABELS.get(reason, reason)}" for reason, number in sorted(skipped.items()))
        return below(grouped(action.changed), now_translated("skipped: %(why)s") % {"why": why} if why else "")

    @admin.display(description=_("of what"))
    def shown_of(self, action: Action) -> Any:
        """The filter of a bulk action, or the queue, job, cron entry or event."""
        kinds = {"queue": _("queue"), "job": _("job"), "cron": _("cron entry"), "event": _("event")}
        if action.kind in kinds:
            return format_html("{} {}", kinds[action.kind], action.subject)
        return short(action.asked, 200) if action.asked else _("chosen jobs")

    @admin.display(description=_("reason"))
    def shown_reason(self, action: Action) -> Any:
        """As it was given."""
        return short(action.reason, 200) or "–"

    @admin.display(description=_("jobs"))
    def shown_jobs(self, action: Action) -> Any:
        """Links to the first jobs that it changed."""
        parts = ActionPart.objects.using(action._state.db).filter(action_id=action.pk).order_by("part")
        ids = list(islice(chain.from_iterable(part.job_ids for part in parts.iterator(1)), MOST_JOBS + 1))
        if not ids:
            return "–"
        pages = (
            (reverse("admin:pgjobs_job_change", args=[job_id], current_app=self.admin_site.name), job_id)
            for job_id in ids[:MOST_JOBS]
        )
        links = format_html_join(", ", '<a href="{}">#{}</a>', pages)
        listed = Pages(self.admin_site.name).jobs(q=f"action:{action.pk}")
        more = ", …" if len(ids) > MOST_JOBS else ""
        return format_html('<a href="{}">{}</a> {}{}', listed, _("list them"), links, more)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """All of them."""
        return [name for _heading, fields in self.fieldsets for name in fields["fields"]]
