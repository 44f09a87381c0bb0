"""The jobs to which a running job is related: those that it needed, and the target of a compensation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db.models import BooleanField, F, Func, Q, QuerySet, Subquery

from django_pgjobs.serialization.payload import revive
from django_pgjobs.states import GATHERING, NOT_NEEDED, Outcome

if TYPE_CHECKING:
    pass

FAILED = Q(outcome=Outcome.ABANDONED) | (Q(outcome=Outcome.CANCELLED) & ~Q(cancel_by=NOT_NEEDED))
"""The condition of jobs that were abandoned, or cancelled though they were needed."""


class Inputs:
    """The jobs that a job needed, as querysets of ``Job``: each reads the database when you iterate it."""

    __slots__ = ("_job_id", "_using")

    def __init__(self, job_id: int, using: str | None) -> None:
        self._job_id = job_id
        self._using = using

    def __repr__(self) -> str:
        return f"<Inputs of job {self._job_id}>"

    @property
    def jobs(self) -> QuerySet[Any]:
        """The jobs that it needed; for what comes after a batch, the batch."""
        return self._all().filter(_is_among("id", self._needed())).order_by("pk")

    @property
    def members(self) -> QuerySet[Any]:
        """The members of the batches and flows among them."""
        return self._all().filter(_is_among("parent_id", self._needed()), parent__isnull=False).order_by("pk")

    def failed(self) -> QuerySet[Any]:
        """Those of both that were abandoned or cancelled, without batches and flows themselves.

        A member that was cancelled because it was not needed has not failed.
        """
        bad = FAILED & ~Q(name__in=GATHERING)
        found = [jobs.filter(bad).order_by().values("pk") for jobs in (self.jobs, self.members)]
        return self._all().filter(_is_among("id", found[0].union(found[1], all=True))).order_by("pk")

    def _needed(self) -> QuerySet[Any, Any]:
        links: QuerySet[Any, Any] = apps.get_model("pgjobs", "Link").objects.filter(job_id=self._job_id)
        return links.values("parent_id")

    def _all(self) -> QuerySet[Any]:
        jobs: QuerySet[Any] = apps.get_model("pgjobs", "Job").objects.using(self._using)
        return jobs


def _is_among(column: str, ids: QuerySet[Any, Any]) -> Q:
    """Return the condition that a column is one of these; as an array, which the server makes once, then it looks."""
    array = Subquery(ids, template="ARRAY(%(subquery)s)")
    words: dict[str, Any] = {"template": "%(expressions)s)", "arg_joiner": " = ANY ("}
    return Q(Func(F(column), array, output_field=BooleanField(), **words))


class Target:
    """The target of a compensation. ``job_id``: a job; ``step``: the name of its step, empty for all of the job."""

    __slots__ = ("_using", "job_id", "step")

    def __init__(self, job_id: int, step: str, using: str | None) -> None:
        self.job_id = job_id
        self.step = step
        self._using = using

    def __repr__(self) -> str:
        return f"<Target {self.id}>"

    @property
    def id(self) -> str:
        """A text that identifies it, for an idempotency key: always the same, of no other target."""
        return f"{self.job_id}/{self.step}" if self.step else str(self.job_id)

    @property
    def job(self) -> Any:
        """The ``Job``. Raises ``Job.DoesNotExist``."""
        return apps.get_model("pgjobs", "Job").objects.using(self._using).get(pk=self.job_id)

    @property
    def result(self) -> Any:
        """Value that the step or the job returned; None for a step of a job that continued with the next one."""
        if not self.step:
            return revive(self.job.result)
        memos = apps.get_model("pgjobs", "Memo").objects.using(self._using).filter(job_id=self.job_id, name=self.step)
        return revive(memos.values_list("result", flat=True).first())
