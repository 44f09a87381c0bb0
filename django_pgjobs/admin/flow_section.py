"""The section of a job's page on what stands around it: its batch, its members, what it needs, what undoes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.display import badge, format_html, format_html_join, progress_bar, short
from django_pgjobs.inspection.words import grouped
from django_pgjobs.models import Gate, Job
from django_pgjobs.presentation import reach
from django_pgjobs.presentation.filters import OPEN_BATCHES
from django_pgjobs.presentation.flow import Linked, Surroundings, Undone
from django_pgjobs.presentation.wording import label_of
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import Outcome, Rule

RULES: dict[str, Any] = {
    Rule.SUCCEEDED.value: _("must succeed"),
    Rule.SETTLED.value: _("must end"),
    Rule.FAILED.value: _("must fail"),
}
"""Rule → the end of the needed job that it takes, in words."""


class Pages(NamedTuple):
    """The addresses of jobs and lists on the admin site of the page."""

    site: str

    def job(self, job_id: int) -> str:
        """Return the URL of a job's page."""
        return reverse("admin:pgjobs_job_change", args=[job_id], current_app=self.site)

    def jobs(self, **filters: Any) -> str:
        """Return the URL of the list of jobs that match the filters."""
        return f"{reverse('admin:pgjobs_job_changelist', current_app=self.site)}?{urlencode(filters)}"

    def members(self, batch_id: int, total: int = 0, **filters: str) -> str:
        """Return the URL of the list of a batch's members; ``total``: how many it has, so that all are looked at."""
        far = {"reach": "far"} if filters and total > reach.NEAR else {}
        return self.jobs(batch=batch_id, **filters, **far)

    def link(self, job: Job) -> str:
        """A link to a job, with its description and state."""
        link = format_html('<a href="{}">{} #{}</a>', self.job(job.pk), visible(job.name), job.pk)
        about = format_html(" {}", short(job.description, 60)) if job.description else ""
        return format_html("{}{} {}", link, about, badge(label_of(job)))

    def links(self, jobs: Sequence[Job]) -> str:
        """Links to jobs, one a line."""
        return format_html_join("", "<div>{}</div>", ((self.link(each),) for each in jobs))


def flow_facts(around: Surroundings, pages: Pages) -> list[tuple[Any, Any]]:
    """(label, value) pairs of a batch, of its members, of needed jobs and of those that need this one."""
    found: list[tuple[Any, Any]] = []
    if around.parent is not None:
        siblings = format_html('<div><a href="{}">{}</a></div>', pages.members(around.parent.pk), _("all members"))
        found.append((_("member of"), format_html("{}{}", pages.links([around.parent]), siblings)))
    if (gate := around.gate) is not None:
        bar = progress_bar(json.dumps({"n": gate.total - gate.unfinished, "total": max(gate.total, 1)}))
        found.append((_("members"), format_html("{}<div>{}</div>", bar, _figures_of(gate, pages))))
    if gate is not None and gate.hands:
        others = format_html('<a href="{}">{}</a>', pages.jobs(batch=OPEN_BATCHES), _("all open batches"))
        found.append((_("open"), format_html("{} ({})", _("for more members"), others)))
    if gate is not None and around.failed:
        state = Outcome.ABANDONED if gate.abandoned else Outcome.CANCELLED
        rest = pages.members(gate.job_id, gate.total, state=state.value)
        failed = format_html("{}{}", pages.links(around.failed), _more(around.more_failed, rest))
        found.append((_("failed members"), failed))
    for label, linked, more in (
        (_("needs"), around.needs, around.more_needs),
        (_("needed by"), around.dependents, around.more_dependents),
    ):
        found += [(label, format_html("{}{}", _linked(linked, pages), _more(more)))] if linked else []
    return found + _undoing_facts(around, pages)


def _undoing_facts(around: Surroundings, pages: Pages) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    if around.target is not None:
        found.append((_("undoes"), _undone([around.target], pages)))
    if around.undo is not None:
        found.append((_("undone by"), pages.links([around.undo])))
    if around.compensations:
        parts = format_html("{}{}", _undone(around.compensations, pages), _more(around.more_compensations))
        found.append((_("parts undone by"), parts))
    return found


def _undone(undone: Sequence[Undone], pages: Pages) -> str:
    """Links, with the name of the step that each is about."""
    rows = (
        (pages.link(each.job), format_html(" ({} {})", _("step"), short(each.step, 80)) if each.step else "")
        for each in undone
    )
    return format_html_join("", "<div>{}{}</div>", rows)


def _figures_of(gate: Gate, pages: Pages) -> str:
    """*997 succeeded, 3 abandoned, 0 cancelled, 0 not ended*, each with a link to these members."""
    words = {
        Outcome.SUCCEEDED: (_("%(count)s succeeded"), gate.succeeded),
        Outcome.ABANDONED: (_("%(count)s abandoned"), gate.abandoned),
        Outcome.CANCELLED: (_("%(count)s cancelled"), gate.cancelled),
    }
    figures: list[Any] = []
    for state, (text, count) in words.items():
        figure = text % {"count": grouped(count)}
        url = pages.members(gate.job_id, gate.total, state=state.value)
        figures.append(format_html('<a href="{}">{}</a>', url, figure) if count else figure)
    figure = _("%(count)s not ended") % {"count": grouped(gate.unfinished)}
    url = pages.members(gate.job_id, gate.total, q="ended:no")
    figures.append(format_html('<a href="{}">{}</a>', url, figure) if gate.unfinished else figure)
    all_of_them = format_html('<a href="{}">{}</a>', pages.members(gate.job_id), _("all members"))
    return format_html("{} ({})", format_html_join(", ", "{}", ((each,) for each in figures)), all_of_them)


def _linked(linked: Sequence[Linked], pages: Pages) -> str:
    rows = ((pages.link(each.job), RULES.get(each.rule, each.rule)) for each in linked)
    return format_html_join("", "<div>{} ({})</div>", rows)


def _more(number: int, url: str = "") -> str:
    """*and 12 more*, with a link to a list of them; nothing for none."""
    if number <= 0:
        return ""
    words = _("and %(count)s more") % {"count": grouped(number)}
    return format_html('<div><a href="{}">{}</a></div>', url, words) if url else format_html("<div>{}</div>", words)
