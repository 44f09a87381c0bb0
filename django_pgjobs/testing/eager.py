"""``EagerBackend``: a task is run when it is enqueued, in the test's own transaction.

Like every backend it is made while modules are imported, so nothing here loads a model at the top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from django_pgjobs.context import running_alias
from django_pgjobs.tasks import PgJobsBackend

if TYPE_CHECKING:
    from django_pgjobs.tasks.families import Task, TaskResult


class EagerBackend(PgJobsBackend):
    """``PgJobsBackend`` for tests: ``enqueue`` stores a job, calls ``run_jobs``, and returns the result after that.

    So arguments and results go through the database, and policies hold: a task whose attempt failed is ``READY`` until
    its retry is due, one with ``run_after`` until that. A task that a task enqueues runs when that one has ended.
    """

    def enqueue(self, task: Task, args: Sequence[object], kwargs: Mapping[str, object]) -> TaskResult:
        """Store a job, run it and all other jobs due in its database, and return its result after that.

        Raises what ``PgJobsBackend.enqueue`` raises. If a task raises ``KeyboardInterrupt`` or an exception of the test
        framework, raises that, once it is recorded.
        """
        result = super().enqueue(task, args, kwargs)
        self._run_due()
        return self.get_result(result.id)

    def many_stored(self) -> None:
        """Run what ``enqueue_many`` has stored."""
        self._run_due()

    def _run_due(self) -> None:
        from django_pgjobs.tasks import results  # here: it needs models
        from django_pgjobs.testing.running import run_jobs  # here: it needs models

        using = results.database_of(self.alias)
        if running_alias() != using:
            run_jobs(database=using)
