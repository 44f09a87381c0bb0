"""The section of a job's page on what stands around it: its batch, its members, what it needs, what undoes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext_lazy as _

from django_pgjobs.admin.display import (
    LabelledValues,
    Pages,
    format_html,
    format_html_join,
    link_to,
    progress_bar,
    short,
)
from django_pgjobs.inspection.words import grouped
from django_pgjobs.models import Gate, Job
from django_pgjobs.presentation.filters import OPEN_BATCHES
from django_pgjobs.presentation.flow import Linked, Surroundings, Undone
from django_pgjobs.states import Outcome, Rule

RULES: dict[str, Any] = {
    Rule.SUCCEEDED.value: _("must succeed"),
    Rule.SETTLED.value: _("must end"),
    Rule.FAILED.value: _("must fail"),
}
"""Rule → the end of the needed job that it takes, in words."""


def flow_facts(around: Surroundings, pages: Pages) -> LabelledValues:
    """LabelledValues about a batch, its members, needed jobs and those that need this one, and what undoes what."""
    needs, dependents = _linked(around.needs, pages), _linked(around.dependents, pages)
    parts = _undone(around.compensations, pages)
    return [
        (_("member of"), _parent_of(around.parent, pages) if around.parent is not None else None),
        *(_facts_of_gate(around, around.gate, pages) if around.gate is not None else []),
        (_("needs"), format_html("{}{}", needs, _more(around.more_needs)) if needs else None),
        (_("needed by"), format_html("{}{}", dependents, _more(around.more_dependents)) if dependents else None),
        (_("undoes"), _undone([around.target], pages) if around.target is not None else None),
        (_("undone by"), pages.links([around.undo]) if around.undo is not None else None),
        (_("parts undone by"), format_html("{}{}", parts, _more(around.more_compensations)) if parts else None),
    ]


def _parent_of(parent: Job, pages: Pages) -> str:
    siblings = link_to(_("all members"), pages.members(parent.pk))
    return format_html("{}<div>{}</div>", pages.links([parent]), siblings)


def _facts_of_gate(around: Surroundings, gate: Gate, pages: Pages) -> LabelledValues:
    bar = progress_bar(json.dumps({"n": gate.total - gate.unfinished, "total": max(gate.total, 1)}))
    found: LabelledValues = [(_("members"), format_html("{}<div>{}</div>", bar, _figures_of(gate, pages)))]
    if gate.hands:
        others = link_to(_("all open batches"), pages.jobs(batch=OPEN_BATCHES))
        found.append((_("open"), format_html("{} ({})", _("for more members"), others)))
    if around.failed:
        state = Outcome.ABANDONED if gate.abandoned else Outcome.CANCELLED
        rest = pages.members(gate.job_id, gate.total, state=state.value)
        failed = format_html("{}{}", pages.links(around.failed), _more(around.more_failed, rest))
        found.append((_("failed members"), failed))
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
    figures: list[tuple[Any, int, dict[str, str]]] = [
        (_("%(count)s succeeded"), gate.succeeded, {"state": Outcome.SUCCEEDED.value}),
        (_("%(count)s abandoned"), gate.abandoned, {"state": Outcome.ABANDONED.value}),
        (_("%(count)s cancelled"), gate.cancelled, {"state": Outcome.CANCELLED.value}),
        (_("%(count)s not ended"), gate.unfinished, {"q": "ended:no"}),
    ]
    links = (
        (link_to(text % {"count": grouped(count)}, pages.members(gate.job_id, gate.total, **some) if count else ""),)
        for text, count, some in figures
    )
    all_of_them = link_to(_("all members"), pages.members(gate.job_id))
    return format_html("{} ({})", format_html_join(", ", "{}", links), all_of_them)


def _linked(linked: Sequence[Linked], pages: Pages) -> str:
    rows = ((pages.link(each.job), RULES.get(each.rule, each.rule)) for each in linked)
    return format_html_join("", "<div>{} ({})</div>", rows)


def _more(number: int, url: str = "") -> str:
    """*and 12 more*, with a link to a list of them; nothing for none."""
    if number <= 0:
        return ""
    return format_html("<div>{}</div>", link_to(_("and %(count)s more") % {"count": grouped(number)}, url))
