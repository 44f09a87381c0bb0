"""The confirmation page of an action: how many jobs, their names, and a sample of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgjobs.admin.actions import REASONS, SteeringAction
from django_pgjobs.admin.display import Pages
from django_pgjobs.inspection.words import grouped
from django_pgjobs.models import Heartbeat, Job, JobQuerySet
from django_pgjobs.models.attempts import Claim
from django_pgjobs.presentation.job_search import JobSearch
from django_pgjobs.presentation.wording import STATE_LABELS, label_of
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.states import GATHERING, JobState

COUNTED = 100_000
"""Counts are exact up to this many jobs."""

NAMED = 10
"""The breakdown lists this many names and sums up the rest."""

SAMPLED = 5

NEIGHBOURS = 5
"""Number of neighbours that the page names."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The jobs of an action: ``ids`` of some that it would change, and counts as text.

    ``gathering``: whether batches or flows are among them.
    """

    ids: list[int]
    count: str
    skipped: list[tuple[str, str]]
    names: list[tuple[str, str]]
    gathering: bool


def preview(action: SteeringAction, jobs: JobQuerySet, *, everything: bool) -> Preview:
    """Count the selected jobs, or all jobs of a list that are in the action's states."""
    if everything:
        taken = dict(jobs.filter(action.condition).values_list("pk", "name")[: COUNTED + 1])
        skipped: Counter[str] = Counter()
    else:
        taken, skipped = action.sorted_out(jobs)
    more = len(taken) > COUNTED
    number = grouped(min(len(taken), COUNTED))
    return Preview(
        ids=list(taken),
        count=_("more than %(count)s") % {"count": number} if more else number,
        skipped=[(str(REASONS.get(reason, reason)), grouped(n)) for reason, n in sorted(skipped.items())],
        names=_named(Counter(taken.values())),
        gathering=any(name in GATHERING for name in taken.values()),
    )


def _named(names: Counter[str]) -> list[tuple[str, str]]:
    found = [(visible(name), grouped(number)) for name, number in names.most_common(NAMED)]
    if others := len(names) - len(found):
        rest = sum(names.values()) - sum(number for _, number in names.most_common(NAMED))
        found.append(
            (
                ngettext("%(count)d other name", "%(count)d other names", others) % {"count": others},
                grouped(rest),
            )
        )
    return found


def samples_of(admin: Any, found: Preview) -> list[dict[str, object]]:
    """Return the first of these jobs by id, as rows of the list."""
    rows = admin.read_rows(Job.objects.using(admin.database or None), sorted(found.ids)[:SAMPLED])
    return [
        {
            "id": admin.pages.shown(row.pk),
            "url": admin.pages.job(row.pk),
            "name": visible(row.name),
            "description": visible(row.description[:120]),
            "state": STATE_LABELS.get(label_of(row), row.state),
            "queue": visible(row.queue),
        }
        for row in rows
    ]


def filter_words(search: JobSearch) -> str:
    """Describe the filter of a list; without a filter, say so."""
    return visible(search.words) or _("none: every job")


def neighbours_of(ids: list[int], pages: Pages, using: str | None) -> str:
    """Name the other jobs on the workers that run these; a killed process releases them too."""
    running = Job.objects.using(using).filter(state=JobState.RUNNING)
    claims = Claim.objects.using(using)
    claimed = running.filter(pk__in=ids).values("claim_id")
    workers = claims.filter(claim_id__in=claimed).values("worker")
    named = sorted(Heartbeat.objects.using(using).filter(pk__in=workers).values_list("name", flat=True))
    theirs = running.filter(claim_id__in=claims.filter(worker__in=workers).values("claim_id")).exclude(pk__in=ids)
    others = list(theirs.order_by("pk").values_list("pk", "name")[: NEIGHBOURS + 1])
    where = {"workers": visible(", ".join(named)[:1000]) or _("their workers")}
    # Executors are shared by all homes of a worker.
    beyond = [_("Jobs of other databases on the same workers would run again, too.")] if pages.database else []
    if not others:
        return beyond[0] if beyond else _("Nothing else runs on %(workers)s now.") % where
    words = [f"#{pages.shown(job_id)} {visible(name)}" for job_id, name in others[:NEIGHBOURS]]
    where["jobs"] = ", ".join([*words, "…"] if len(others) > NEIGHBOURS else words)
    return " ".join([_("Also running on %(workers)s: %(jobs)s.") % where, *beyond])
