"""The callable of a worker for a task: it sends signals, passes the context, and makes the result JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction, sync_to_async

from django_pgjobs.context import JobContext, current_context
from django_pgjobs.exceptions import UnstorableResult
from django_pgjobs.execution.attempt import awaited, value_of
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.serialization.payload import Unstored
from django_pgjobs.tasks import plain, results, sending
from django_pgjobs.tasks.families import TaskContext

if TYPE_CHECKING:
    from django_pgjobs.jobs import JobDefinition

P = ParamSpec("P")
R = TypeVar("R")

OUR_FILES.add(__file__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PgTaskContext(TaskContext):
    """The context of a running task. ``job``: the ``JobContext``, which knows of progress, cancellation and time left.

    ``task_result`` is what it was when the attempt began, with the errors of earlier attempts.
    """

    job: JobContext


def body_of(definition: JobDefinition[P, R], func: Callable[..., object]) -> Callable[..., Any]:
    """Return the function that an attempt calls instead of the task's own."""
    made = _async_body(definition, func) if iscoroutinefunction(func) else _sync_body(definition, func)
    return wraps(func)(made)


def _sync_body(definition: JobDefinition[P, R], func: Callable[..., object]) -> Callable[..., object]:
    def body(*args: object, **kwargs: object) -> object:
        if sending.anybody_wants_starts():
            sending.send_started(current_context())
        try:
            value = value_of(func(*args, **kwargs))
        except BaseException as error:
            sending.note_raised(current_context(), error)
            raise
        return value if type(value) in plain.AS_THEY_ARE else stored(definition, value)

    def body_with_context(job: JobContext, /, *args: object, **kwargs: object) -> object:
        return body(PgTaskContext(task_result=results.of_running(job), job=job), *args, **kwargs)

    return body_with_context if definition.takes_context else body


def _async_body(definition: JobDefinition[P, R], func: Callable[..., object]) -> Callable[..., object]:
    async def body(*args: object, **kwargs: object) -> object:
        if sending.anybody_wants_starts():
            await sending.asend_started(current_context())
        try:
            value = await awaited(func(*args, **kwargs))
        except BaseException as error:
            sending.note_raised(current_context(), error)
            raise
        return stored(definition, value)

    async def body_with_context(job: JobContext, /, *args: object, **kwargs: object) -> object:
        result = await sync_to_async(results.of_running)(job)
        return await body(PgTaskContext(task_result=result, job=job), *args, **kwargs)

    return body_with_context if definition.takes_context else body


def stored(definition: JobDefinition[P, R], value: object) -> object:
    """Return a task's result as JSON keeps it. One that JSON does not have: ``Unstored``, or ``UnstorableResult``."""
    if not definition.store_result:
        return value  # which the attempt drops
    try:
        return plain.plain_result(value)
    except UnstorableResult as error:
        if definition.strict_results:
            raise
        return Unstored(str(error))
