"""Jobs like this one: lists of the same name, error, key of limits, cron entry and tag; and its callbacks."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgjobs.admin.display import LabelledValues, Pages, format_html, format_html_join
from django_pgjobs.definition.registry import registry
from django_pgjobs.inspection.words import grouped
from django_pgjobs.models import Job
from django_pgjobs.states import Outcome

MOST = 100
"""Number of jobs that a link counts."""

CALLBACKS: dict[str, Any] = {
    "on_success": gettext_lazy("when it has succeeded"),
    "on_abandon": gettext_lazy("when it is abandoned"),
    "on_cancel": gettext_lazy("when it is cancelled"),
}
_BY_ENDING = {"succeeded": "on_success", "abandoned": "on_abandon", "cancelled": "on_cancel"}


def siblings(job: Any, pages: Pages) -> LabelledValues:
    """Return links to lists; counts stop at ``MOST`` and cost an index probe each."""
    error = job.error_class if job.outcome == Outcome.ABANDONED and job.error_class else None
    of_error = pages.jobs(state="abandoned", q=f'error:"{error}"')
    of_cron, of_key = pages.jobs(q=f'cron:"{job.cron_entry}"'), pages.jobs(q=f'key:"{job.key}"')
    tags = format_html_join(", ", '<a href="{}">{}</a>', ((pages.jobs(tag=tag), tag) for tag in job.tags or ()))
    return [
        (_("same name"), _link(pages.jobs(name=job.name), job.name)),
        (_("same error"), _link(of_error, error, _count(job, error)) if error else None),
        (_("held by the same limits"), _link(pages.jobs(state="limited", name=job.name), job.limit_key)),
        (_("same cron entry"), _link(of_cron, job.cron_entry)),
        (_("same key"), _link(of_key, job.key)),
        (_("same tag"), tags or None),
    ]


def _link(url: str, text: str | None, count: str = "") -> str | None:
    return None if text is None else format_html('<a href="{}">{}</a> {}', url, text[:200], count)


def _count(job: Any, error: str) -> str:
    jobs = Job.objects.using(job._state.db).filter(error_class=error, finished_at__isnull=False)
    number = len(jobs.values_list("pk")[: MOST + 1])
    more = "≥ " if number > MOST else ""
    text = ngettext("%(count)s job", "%(count)s jobs", number) % {"count": grouped(min(number, MOST))}
    return f"({more}{text})"


def callbacks(job: Any) -> LabelledValues:
    """Return (name, words) pairs: which callbacks the code has, how often one has started, and whether it failed."""
    definition = registry.resolved(job.name)
    if definition is None:
        return []
    ours = _BY_ENDING.get(job.outcome or job.ending or "")
    found: LabelledValues = []
    for name, words in CALLBACKS.items():
        if getattr(definition, f"{name}_func") is None:
            continue
        starts = job.ending_attempt if name == ours else 0
        text = ngettext("%(when)s; started once", "%(when)s; started %(count)d times", starts)
        text = text % {"when": words, "count": starts} if starts else str(words)
        if starts > 1:
            text = _("%(text)s, as the starts before failed or were lost") % {"text": text}
        found.append((name, text))
    return found
