"""What stands around a job: its batch, the figures of its own members, what it needs, and what needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from django.db.models import QuerySet
from django.db.models.functions import Now

from django_pgjobs.context import FAILED
from django_pgjobs.models import Gate, Job, JobQuerySet, Link
from django_pgjobs.presentation.fate import fate
from django_pgjobs.states import Flow

MOST = 25
"""How many jobs of each kind are shown."""


class Linked(NamedTuple):
    """A job that another needs, or that needs it, and by which rule; the rule of a member is empty."""

    rule: str
    job: Job


@dataclass(slots=True)
class Surroundings:
    """Everything is None or empty that the job does not have. ``gate``: of a batch. ``failed``: members of it.

    ``more_failed``, ``more_needs``, ``more_dependents``: how many there are beside those in the lists.
    """

    parent: Job | None = None
    gate: Gate | None = None
    failed: list[Job] = field(default_factory=list)
    needs: list[Linked] = field(default_factory=list)
    dependents: list[Linked] = field(default_factory=list)
    more_failed: int = 0
    more_needs: int = 0
    more_dependents: int = 0

    def __bool__(self) -> bool:
        return bool(self.parent or self.gate or self.needs or self.dependents)


def listed(using: str | None) -> JobQuerySet:
    """Return jobs as lists show them: with the database's clock and their fate, without columns that may be huge."""
    jobs = Job.objects.using(using).defer("payload", "headers", "result", "progress", "options")
    return jobs.annotate(now=Now(), fate=fate())


def surroundings(job: Job) -> Surroundings:
    """Return what stands around a job; no query for one that is part of no flow."""
    found = Surroundings()
    if not job.flow & ~Flow.ITS_OWN:
        return found
    jobs = listed(job._state.db)
    if job.parent_id is not None:
        found.parent = jobs.filter(pk=job.parent_id).first()
    if job.flow & Flow.GATED:
        found.gate = Gate.objects.using(job._state.db).filter(pk=job.pk, eager=False).first()
    if found.gate is not None and found.gate.unmet:
        found.failed = list(jobs.filter(FAILED, parent_id=job.pk).order_by("pk")[:MOST])
        found.more_failed = found.gate.unmet - MOST if len(found.failed) == MOST else 0
    links = Link.objects.using(job._state.db)
    needs, found.more_needs = _first(links.filter(job_id=job.pk).order_by("parent_id"), job.flow & Flow.GATED)
    dependents, found.more_dependents = _first(
        links.filter(parent_id=job.pk).order_by("job_id"), job.flow & Flow.NEEDED
    )
    rows = jobs.in_bulk([*(link.parent_id for link in needs), *(link.job_id for link in dependents)])
    found.needs = [Linked(link.rule, rows[link.parent_id]) for link in needs if link.parent_id in rows]
    found.dependents = [Linked(link.rule, rows[link.job_id]) for link in dependents if link.job_id in rows]
    return found


def _first(links: QuerySet[Link], exist: int) -> tuple[list[Link], int]:
    """Return the first links, if any exist, and how many there are beside them."""
    first = list(links[:MOST]) if exist else []
    return first, links.count() - MOST if len(first) == MOST else 0
