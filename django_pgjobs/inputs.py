"""What the running job needed, for its own code: which jobs, how they ended, what they returned."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db.models import Q, QuerySet

from django_pgjobs.states import GATHERING, NOT_NEEDED, Outcome


class Inputs:
    """The jobs that a job needed, as querysets of ``Job``: each reads the database when you iterate it."""

    __slots__ = ("_alias", "_job_id")

    def __init__(self, job_id: int, alias: str | None) -> None:
        self._job_id = job_id
        self._alias = alias

    def __repr__(self) -> str:
        return f"<Inputs of job {self._job_id}>"

    @property
    def jobs(self) -> QuerySet[Any]:
        """The jobs that it needed; for what comes after a batch, the batch."""
        return self._all().filter(dependents__job_id=self._job_id).order_by("pk")

    @property
    def members(self) -> QuerySet[Any]:
        """The members of the batches and flows among them."""
        return self._all().filter(parent__dependents__job_id=self._job_id).order_by("pk")

    def failed(self) -> QuerySet[Any]:
        """Those of both that were abandoned or cancelled, without batches and flows themselves.

        A member that was cancelled because nobody needed it has not failed.
        """
        bad = Q(outcome=Outcome.ABANDONED) | (Q(outcome=Outcome.CANCELLED) & ~Q(cancel_by=NOT_NEEDED))
        bad &= ~Q(name__in=GATHERING)
        found = [jobs.filter(bad).order_by().values("pk") for jobs in (self.jobs, self.members)]
        return self._all().filter(pk__in=found[0].union(found[1], all=True)).order_by("pk")

    def _all(self) -> QuerySet[Any]:
        jobs: QuerySet[Any] = apps.get_model("pgjobs", "Job").objects.using(self._alias)
        return jobs
