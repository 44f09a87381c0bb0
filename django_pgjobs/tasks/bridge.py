"""Between tasks and jobs: what ``using`` of a task cannot say is said of its job definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from django_pgjobs.jobs import JobDefinition
from django_pgjobs.tasks import definitions, results
from django_pgjobs.tasks.definitions import definition_of

if TYPE_CHECKING:
    import typing_extensions

    from django_pgjobs.models import Job
    from django_pgjobs.tasks.families import Task, TaskOf, TaskResult

    # With defaults, for tasks of which checkers know no arguments.
    P = typing_extensions.ParamSpec("P", default=...)
    R = typing_extensions.TypeVar("R", default=Any)
else:
    P, R = ParamSpec("P"), TypeVar("R")


def job_of(task: TaskOf[P, R]) -> JobDefinition[P, R]:
    """Return the job definition of a task: ``job_of(send_welcome).using(unique="welcome:7").register(7)``.

    It is that of the module's task: ``task.using(…)`` has the same one. May import the task's module. Raises
    ``InvalidTask`` for a task that no worker could find.
    """
    return cast("JobDefinition[P, R]", definition_of(cast("Task", task)))


def result_of(job: Job) -> TaskResult:
    """Return the result of a job, read again. Raises ``TaskResultDoesNotExist`` if its row or its code is gone."""
    return results.of_job(job)


def enqueue_many(task: TaskOf[P, R], calls: Iterable[tuple[Sequence[object], Mapping[str, object]]]) -> list[str]:
    """Store one job of ``task`` for each (args, kwargs), all in one statement; return the ids of their results.

    The ids are in the order of the calls. Checks and stores each call as ``enqueue`` does, all or none, in the
    caller's transaction; if a key is taken, the id is that of the job that has it. Raises ``InvalidTask`` and
    ``TypeError`` naming the row.
    """
    return definitions.enqueue_many(cast("Task", task), calls)
