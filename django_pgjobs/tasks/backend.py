"""``PgJobsBackend``: what ``TASKS`` names. It validates, enqueues and finds results; the engine does the rest.

Django makes one for each alias and thread, the first while modules are imported: so it has no state, and its module
loads no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.allowed import check_allowed_queue
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.validation import check_queue
from django_pgjobs.tasks import families
from django_pgjobs.tasks.families import OF_INVALID, BaseTaskBackend, InvalidTask
from django_pgjobs.values.setting_rules import InvalidOption

if TYPE_CHECKING:
    from django_pgjobs.tasks.families import Task, TaskResult


class PgJobsBackend(BaseTaskBackend):
    """Tasks as jobs in PostgreSQL: deferred, prioritised, async, with results for every process."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    is_pgjobs = True

    def validate_task(self, task: Task) -> None:
        """Refuse a task that no worker could run or that settings do not allow. Raises ``InvalidTask``."""
        if isinstance(task.func, JobPolicy):
            raise InvalidTask(
                f"{task.func.name} is a job already: take its as_task(), or write @task above @policy instead of @job."
            )
        after: Any = task.run_after
        if isinstance(after, timedelta):
            if after < timedelta(0):
                raise InvalidTask(f"run_after must not be negative, as {after} is.")
            # The contract allows it, and its own validation only knows instants.
            task = families.changed(task, {"run_after": None})
        elif after is not None and not isinstance(after, datetime):
            raise InvalidTask(f"run_after must be a datetime or a timedelta, not {after!r}.")
        try:
            super().validate_task(task)
            check_queue(task.queue_name)
            check_allowed_queue(task.queue_name, _allowed_queues())
        except OF_INVALID as error:
            raise InvalidTask(*error.args) from None
        except InvalidOption as error:
            raise InvalidTask(f"Task {task.module_path}: {error}") from None

    def enqueue(self, task: Task, args: Sequence[object], kwargs: Mapping[str, object]) -> TaskResult:
        """Store a job for ``task`` in the caller's transaction, and return its result.

        If its key is taken, the result is that of the job that has it. Raises ``InvalidTask``, ``TypeError`` for
        arguments that the function does not take or that are no JSON; then nothing is stored, and an open transaction
        stays usable.
        """
        from django_pgjobs.tasks import definitions  # here: tasks are decorated before there are models

        self.validate_task(task)
        return definitions.enqueue(self, task, args, kwargs)

    def many_stored(self) -> None:
        """Called after ``enqueue_many``. A backend for tests may run the jobs."""

    def get_result(self, result_id: str) -> TaskResult:
        """Return the result of this id, one statement. Raises ``TaskResultDoesNotExist``, also after its retention."""
        from django_pgjobs.tasks import results  # here: it needs models

        return results.found(self.alias, result_id)

    def check(self, **kwargs: object) -> Iterable[CheckMessage]:
        """Return what is wrong with the settings of this alias."""
        from django_pgjobs.tasks.checks import check_alias  # here for start-up time

        return check_alias(self)


def _allowed_queues() -> tuple[str, ...] | None:
    try:
        return get_conf().queues
    except ImproperlyConfigured:
        return None  # the checks say what is wrong
