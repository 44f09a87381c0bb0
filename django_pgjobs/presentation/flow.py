"""The surroundings of a job: its batch, the figures of its own members, what it needs, what needs it, what undoes
it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Left, Now

from django_pgjobs.context import FAILED
from django_pgjobs.models import Job, JobQuerySet
from django_pgjobs.models.gates import Gate, Link
from django_pgjobs.presentation.job_rows import fate
from django_pgjobs.states import UNDO, FlowFlag, Outcome

MOST = 25
"""Number of jobs of each kind that are shown."""


class Linked(NamedTuple):
    """A job that another needs, or that needs it, and by which rule; the rule of a member is empty."""

    rule: str
    job: Job


class Undone(NamedTuple):
    """A job that undoes another, or that another undoes, and the step that it is about; empty for all of it."""

    step: str
    job: Job


@dataclass(slots=True)
class Surroundings:
    """Everything is None or empty that the job does not have. ``gate``: of a batch. ``failed``: members of it.

    ``target``: what it undoes. ``undo``: the job that undoes it, the latest; ``compensations``: the jobs that undo its
    parts. ``more_failed``, ``more_needs``, ``more_dependents``, ``more_compensations``: how many there are beside those
    in the lists.
    """

    parent: Job | None = None
    gate: Gate | None = None
    failed: list[Job] = field(default_factory=list)
    needs: list[Linked] = field(default_factory=list)
    dependents: list[Linked] = field(default_factory=list)
    more_failed: int = 0
    more_needs: int = 0
    more_dependents: int = 0
    target: Undone | None = None
    undo: Job | None = None
    compensations: list[Undone] = field(default_factory=list)
    more_compensations: int = 0

    def __bool__(self) -> bool:
        undoing = self.target or self.undo or self.compensations
        return bool(self.parent or self.gate or self.needs or self.dependents or undoing)

    @property
    def is_undone(self) -> bool:
        """True if something undoes the job, or has: then it is not retried."""
        undo = self.undo
        return undo is not None and not (undo.attempt == 0 and undo.outcome == Outcome.CANCELLED)


def listed(using: str | None) -> JobQuerySet:
    """Return jobs as lists show them: with the database's clock and their fate, without columns that may be huge."""
    jobs = Job.objects.using(using).defer("payload", "headers", "result", "progress", "options")
    return jobs.annotate(now=Now(), fate=fate())


def surroundings(job: Job) -> Surroundings:
    """Return what stands around a job; no query for one that is part of no flow."""
    found = Surroundings()
    jobs = listed(job._state.db)
    _add_undoing(found, job, jobs)
    if not job.flow & ~FlowFlag.ITS_OWN:
        return found
    if job.parent_id is not None:
        found.parent = jobs.filter(pk=job.parent_id).first()
    if job.flow & FlowFlag.GATED:
        found.gate = Gate.objects.using(job._state.db).filter(pk=job.pk, eager=False).first()
    if found.gate is not None and found.gate.unmet:
        found.failed = list(jobs.filter(FAILED, parent_id=job.pk).order_by("pk")[:MOST])
        found.more_failed = found.gate.unmet - MOST if len(found.failed) == MOST else 0
    links = Link.objects.using(job._state.db)
    needs, found.more_needs = _first(links.filter(job_id=job.pk).order_by("parent_id"), job.flow & FlowFlag.GATED)
    dependents, found.more_dependents = _first(
        links.filter(parent_id=job.pk).order_by("job_id"), job.flow & FlowFlag.NEEDED
    )
    rows = jobs.in_bulk([*(link.parent_id for link in needs), *(link.job_id for link in dependents)])
    found.needs = [Linked(link.rule, rows[link.parent_id]) for link in needs if link.parent_id in rows]
    found.dependents = [Linked(link.rule, rows[link.job_id]) for link in dependents if link.job_id in rows]
    return found


def _add_undoing(found: Surroundings, job: Job, jobs: JobQuerySet) -> None:
    """Add what the job undoes, and what undoes it: a job with steps, a batch, or a member of one may be undone."""
    if job.target_id is not None:
        target = jobs.filter(pk=job.target_id).first()
        own: Any = _with_step(jobs).filter(pk=job.pk).first()
        found.target = None if target is None else Undone((own and own.step) or "", target)
    if not job.flow & (FlowFlag.UNDOABLE | FlowFlag.MEMBER):
        return
    undoing = _with_step(jobs).filter(target_id=job.pk).order_by("pk")
    if job.flow & FlowFlag.UNDOABLE:
        found.undo = undoing.filter(name=UNDO).last()
    rows: list[Any] = list(undoing.exclude(name=UNDO)[: MOST + 1])
    found.compensations = [Undone(row.step or "", row) for row in rows[:MOST]]
    found.more_compensations = undoing.exclude(name=UNDO).count() - MOST if len(rows) > MOST else 0


def _with_step(jobs: JobQuerySet) -> JobQuerySet:
    """Add the step that a compensation undoes; this raises nothing, regardless of its options."""
    return jobs.annotate(step=Left(KeyTextTransform(1, KeyTransform("target", "options")), 500))


def _first(links: QuerySet[Link], exist: int) -> tuple[list[Link], int]:
    """Return the first links, if any exist, and how many there are beside them."""
    first = list(links[:MOST]) if exist else []
    return first, links.count() - MOST if len(first) == MOST else 0
