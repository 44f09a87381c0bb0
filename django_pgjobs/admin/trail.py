"""The actions of operators: a list of their own, and a table on the page of each job."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgjobs import reverting
from django_pgjobs.admin.actions import REASONS
from django_pgjobs.admin.changelist import CappedPaginator
from django_pgjobs.admin.display import Pages, below, format_html, format_html_join, link_to, person, short, when
from django_pgjobs.admin.readonly import ReadOnlyAdmin, column
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.inspection.words import grouped
from django_pgjobs.models import Action
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.steering.trail import ADMIN, recorded_as
from django_pgjobs.store import acting
from django_pgjobs.store.database import on

MOST = 25
"""Number of actions that the page of a job shows."""

MOST_JOBS = 100
"""Number of jobs that the page of an action names."""

VERBS: dict[str, object] = {
    "cancel": _("cancel"), "retry": _("retry"), "abandon": _("abandon"), "release": _("release"),
    "unblock": _("unblock"), "reschedule": _("reschedule"), "pause": _("pause"), "resume": _("resume"),
    "run now": _("run now"), "override": _("override"), "add": _("add"), "change": _("change"), "delete": _("delete"),
    "stack": _("take stack"), "quiet": _("quiet"), "drain": _("drain"), "recycle": _("recycle"),
    "limit": _("set the limit"), "restore limit": _("restore the limit"),
    "close": _("close"), "move": _("move"), "send": _("send"), "withdraw": _("withdraw"), "revert": _("undo"),
}  # fmt: skip


def what(verb: str, mode: str) -> str:
    """*Cancel (kill)*."""
    word = capfirst(str(VERBS.get(verb, verb)))
    return f"{word} ({mode})" if mode else word


def actions_of(job: Any, pages: Pages, *, may_view: bool) -> list[dict[str, object]]:
    """Return the actions on a job for its page, latest first."""
    found = acting.list_actions(on(job._state.db), job.pk, limit=MOST)
    via = dict(Action.Via.choices)
    return [
        {
            "when": link_to(when(each.acted_at), pages.page("action_change", each.id) if may_view else ""),
            "what": format_html("{}", what(each.verb, each.mode or visible(each.subject))),
            "who": person(each.acted_by),
            "via": via.get(each.via, each.via),
            "reason": short(each.reason, 500),
            "among": _among(each.changed, each.asked),
        }
        for each in found
    ]


def _among(changed: int, filter_words: str) -> SafeString | str:
    """*one of 130: queue bulk* for an action on many jobs."""
    if changed == 1 and not filter_words:
        return "–"
    words = gettext("one of %(count)s") % {"count": grouped(changed)}
    return format_html("{}: {}", words, filter_words[:200]) if filter_words else words


def _skipped_words(skipped: Mapping[str, int]) -> str:
    """*skipped: 10 started since, 8 ended since*; empty for none."""
    why = ", ".join(f"{grouped(number)} {REASONS.get(reason, reason)}" for reason, number in sorted(skipped.items()))
    return gettext("skipped: %(why)s") % {"why": why} if why else ""


def _prospect_words(action: Action, found: reverting.Prospect) -> str:
    """Return a sentence about the effects of an undo."""
    if action.verb in ("pause", "resume"):
        name = {"name": visible(f"{action.kind} {action.subject}")}
        if not found.count:
            return gettext("%(name)s was paused or resumed since, or the pause is over.") % name
        if action.verb == "pause":
            return gettext("An undo resumes %(name)s.") % name
        return gettext("An undo pauses %(name)s again.") % name
    if action.verb == "retry":
        text = ngettext(
            "An undo ends %(count)s job again, as it had ended; no callback runs.",
            "An undo ends %(count)s jobs again, as they had ended; no callback runs.",
            found.count,
        )
    else:
        text = ngettext(
            "An undo moves %(count)s job back to where it stood.",
            "An undo moves %(count)s jobs back to where they stood.",
            found.count,
        )
    return f"{text % {'count': grouped(found.count)}} {capfirst(_skipped_words(found.skipped))}".strip()


class ActionAdmin(ReadOnlyAdmin):
    """The actions of operators, latest first."""

    list_display = ("shown_when", "shown_what", "shown_who", "via", "shown_changed", "shown_of", "shown_reason")
    fieldsets = (
        (None, {"fields": ("shown_when", "shown_what", "shown_who", "via", "shown_reason")}),
        (_("Jobs"), {"fields": ("shown_changed", "shown_of", "shown_jobs")}),
    )
    posts = {"<str:object_id>/undo/": "undo"}
    ordering = ("-pk",)
    list_per_page = 50
    paginator = CappedPaginator
    change_form_template = "admin/pgjobs/action/change_form.html"

    def may_undo(self, request: HttpRequest, action: Action) -> bool:
        """Tell whether the user may do the opposite of this action."""
        needed = reverting.PERMISSIONS.get(action.verb, ())
        return self.has_view_permission(request) and request.user.has_perms(["pgjobs.view_job", *needed])

    def render_change_form(self, request: HttpRequest, context: Any, *args: object, **kwargs: object) -> HttpResponse:
        """Add what an undo would change, for those who may."""
        action = context["original"]
        if self.may_undo(request, action):
            found = reverting.prospect(action)
            context["pgjobs_undo"] = {
                "refusal": visible(found.refusal),
                "count": found.count,
                "words": _prospect_words(action, found),
                "url": self.pages.page("action_undo", action.pk),
            }
        page: HttpResponse = super().render_change_form(request, context, *args, **kwargs)
        return page

    def undo_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Undo an action, then return to its page."""
        if not self.is_id(object_id):
            raise Http404
        action_id, using = int(object_id), self.written
        action = Action.objects.using(using).filter(pk=action_id).first()
        if action is not None and not self.may_undo(request, action):
            raise PermissionDenied
        try:
            with recorded_as(ADMIN, f"action {action_id}") as origin:
                undone = reverting.revert(action_id, by=request.user, database=using, at_once=reverting.AT_ONCE)
        except InvalidJob as error:
            self.message_user(request, visible(error), messages.ERROR)
        else:
            text = gettext("Undo: %(count)s changed.") % {"count": grouped(undone.changed)}
            text = f"{text} {_skipped_words(undone.skipped)}".strip()
            self.message_user(request, text, messages.SUCCESS if undone.changed else messages.WARNING)
            if action is not None and undone.changed:
                self.log_change(request, action, text)
            action_id = origin.recorded[-1] if origin.recorded else action_id
        return HttpResponseRedirect(self.pages.page("action_change", action_id))

    shown_when = column(_("when"), lambda action: when(action.acted_at))
    shown_what = column(_("what"), lambda action: format_html("{}", what(action.verb, action.mode)))
    shown_who = column(_("who"), lambda action: person(action.acted_by))
    shown_reason = column(_("reason"), lambda action: short(action.reason, 200) or "–")

    @admin.display(description=_("changed"))
    def shown_changed(self, action: Action) -> object:
        """Return how many jobs changed, and why others were skipped."""
        skipped = action.skipped if isinstance(action.skipped, dict) else {}
        return below(grouped(action.changed), _skipped_words(skipped))

    @admin.display(description=_("of what"))
    def shown_of(self, action: Action) -> object:
        """The filter of a bulk action, or the queue, job, cron entry or event."""
        kinds = {
            "queue": _("queue"), "job": _("job"), "key": _("each key of a job"), "cron": _("cron entry"),
            "event": _("event"), "worker": _("worker"),
        }  # fmt: skip
        if action.kind in kinds:
            return format_html("{} {}", kinds[action.kind], action.subject)
        return short(action.asked, 200) if action.asked else _("chosen jobs")

    @admin.display(description=_("jobs"))
    def shown_jobs(self, action: Action) -> object:
        """Links to the first jobs that it changed."""
        parts = ActionPart.objects.using(action._state.db).filter(action_id=action.pk).order_by("part")
        ids = list(islice(chain.from_iterable(part.job_ids for part in parts.iterator(1)), MOST_JOBS + 1))
        if not ids:
            return "–"
        pages = self.pages
        urls = ((pages.job(each), pages.shown(each)) for each in ids[:MOST_JOBS])
        links = format_html_join(", ", '<a href="{}">#{}</a>', urls)
        listed = pages.jobs(q=f"action:{action.pk}")
        more = ", …" if len(ids) > MOST_JOBS else ""
        return format_html("{} {}{}", link_to(_("list them"), listed), links, more)

    def get_readonly_fields(self, request: HttpRequest, obj: object = None) -> Any:
        """All of them."""
        return [name for _heading, fields in self.fieldsets for name in fields["fields"]]
