"""Sections of a job's page on what stands around it: its batch and members, what it needs, what undoes it, its
callbacks, and jobs like it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_pgjobs.admin.display import (
    FactList,
    Pages,
    format_html,
    format_html_join,
    link_to,
    progress_bar,
    short,
)
from django_pgjobs.definition.registry import registry
from django_pgjobs.inspection.words import grouped
from django_pgjobs.models import Job
from django_pgjobs.models.gates import Gate
from django_pgjobs.presentation.filters import OPEN_BATCHES
from django_pgjobs.presentation.flow import Linked, Surroundings, Undone
from django_pgjobs.states import Outcome, Rule

RULES: dict[str, object] = {
    Rule.SUCCEEDED.value: _("must succeed"),
    Rule.SETTLED.value: _("must end"),
    Rule.FAILED.value: _("must fail"),
}
"""Rule → the end of the needed job that it takes, in words."""

MOST = 100
"""Number of jobs that a link counts."""

CALLBACKS: dict[str, object] = {
    "on_success": _("when it has succeeded"),
    "on_abandon": _("when it is abandoned"),
    "on_cancel": _("when it is cancelled"),
}
_BY_ENDING = {"succeeded": "on_success", "abandoned": "on_abandon", "cancelled": "on_cancel"}


def flow_facts(around: Surroundings, pages: Pages) -> FactList:
    """Facts about a batch, its members, needed jobs and those that need this one, and what undoes what."""
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


def _facts_of_gate(around: Surroundings, gate: Gate, pages: Pages) -> FactList:
    bar = progress_bar(json.dumps({"n": gate.total - gate.unfinished, "total": max(gate.total, 1)}))
    found: FactList = [(_("members"), format_html("{}<div>{}</div>", bar, _figures_of(gate, pages)))]
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
    figures = [
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


def siblings(job: Job, pages: Pages) -> FactList:
    """Return links to lists; counts stop at ``MOST`` and cost an index probe each."""
    error = job.error_class if job.outcome == Outcome.ABANDONED and job.error_class else None
    of_error = pages.jobs(state="abandoned", q=f'error:"{error}"')
    of_cron, of_key = pages.jobs(q=f'cron:"{job.cron_entry}"'), pages.jobs(q=f'key:"{job.key}"')
    of_sequence = pages.jobs(q=f'sequence:"{job.sequence}"')
    tags = format_html_join(", ", '<a href="{}">{}</a>', ((pages.jobs(tag=tag), tag) for tag in job.tags or ()))
    return [
        (_("same name"), _named(pages.jobs(name=job.name), job.name)),
        (_("same error"), _named(of_error, error, _counted(job, error)) if error else None),
        (_("held by the same limits"), _named(pages.jobs(state="limited", name=job.name), job.limit_key)),
        (_("same cron entry"), _named(of_cron, job.cron_entry)),
        (_("same key"), _named(of_key, job.key)),
        (_("same sequence"), _named(of_sequence, job.sequence)),
        (_("same tag"), tags or None),
    ]


def _named(url: str, text: str | None, count: str = "") -> str | None:
    return None if text is None else format_html('<a href="{}">{}</a> {}', url, text[:200], count)


def _counted(job: Job, error: str) -> str:
    jobs = Job.objects.using(job._state.db).filter(error_class=error, finished_at__isnull=False)
    number = len(jobs.values_list("pk")[: MOST + 1])
    more = "≥ " if number > MOST else ""
    text = ngettext("%(count)s job", "%(count)s jobs", number) % {"count": grouped(min(number, MOST))}
    return f"({more}{text})"


def callbacks(job: Job) -> FactList:
    """Return (name, words) pairs: which callbacks the code has, how often one has started, and whether it failed."""
    definition = registry.resolved(job.name)
    if definition is None:
        return []
    ours = _BY_ENDING.get(job.outcome or job.ending or "")
    found: FactList = []
    for name, words in CALLBACKS.items():
        if getattr(definition, f"_{name}_func") is None:
            continue
        starts = job.ending_attempt if name == ours else 0
        text = ngettext("%(when)s; started once", "%(when)s; started %(count)d times", starts)
        text = text % {"when": words, "count": starts} if starts else str(words)
        if starts > 1:
            text = _("%(text)s, as the starts before failed or were lost") % {"text": text}
        found.append((name, text))
    return found
