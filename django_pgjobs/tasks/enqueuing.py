"""Enqueue a task: from its call to the stored row and the result that the caller gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import router

from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.registering.destination import writable_alias
from django_pgjobs.registering.encode import Row
from django_pgjobs.registering.register import register_all_fresh, register_one
from django_pgjobs.tasks import results, sending
from django_pgjobs.tasks.definitions import TaskDefinition, definition_of
from django_pgjobs.tasks.families import InvalidTaskJob
from django_pgjobs.tasks.plain import plain_arguments
from django_pgjobs.tasks.policies import mark_of
from django_pgjobs.tasks.settings import options_of

if TYPE_CHECKING:
    from django_pgjobs.definition.options import Plan
    from django_pgjobs.tasks.families import BaseTaskBackend, Task, TaskResult

WAITS = "waits for the database: in asynchronous code write"


def enqueue(backend: BaseTaskBackend, task: Task, args: Sequence[object], kwargs: Mapping[str, object]) -> TaskResult:
    """Store a job of a valid task; see ``PgJobsBackend.enqueue``."""
    taken, named = plain_arguments(args, kwargs)
    definition = definition_of(task)
    definition._fits(*taken, **named)
    own: Task | None = getattr(definition, "task", None)
    try:
        row = Row(definition, plan_of(definition, task), taken, named, results.header_of(task, own))
        job: Any = register_one(row)
    except InvalidJob as error:
        raise InvalidTaskJob(str(error)) from error.__cause__
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(f"enqueue() {WAITS} await aenqueue(…).") from None
    if not job.fresh:
        return results.found(backend.alias, str(job.pk))
    result = results.of_new_job(job, task, backend.alias, taken, named)
    sending.send_enqueued(type(backend), result)
    return result


def enqueue_many(task: Task, calls: Iterable[tuple[Sequence[object], Mapping[str, object]]]) -> list[str]:
    """Store jobs of one task; see ``bridge.enqueue_many``."""
    definition = definition_of(task)
    backend = task.get_backend()
    backend.validate_task(task)
    try:
        plan = plan_of(definition, task)
        headers = results.header_of(task, getattr(definition, "task", None))
        ids, fresh = register_all_fresh(_rows(definition, plan, headers, calls), None, plan.conf)
    except InvalidJob as error:
        raise InvalidTaskJob(str(error)) from error.__cause__
    except SynchronousOnlyOperation:
        raise SynchronousOnlyOperation(f"enqueue_many() {WAITS} await sync_to_async(enqueue_many)(…).") from None
    if sending.others_want_enqueued():
        made = results.of_jobs(writable_alias(plan.database), [ids[at] for at in fresh], task.backend)
        for result in made:
            sending.send_enqueued(type(backend), result)
    then = getattr(backend, "many_stored", None)  # another backend has no such method
    if then is not None:
        then()
    return list(map(str, ids))


def _rows(
    definition: JobDefinition[..., Any], plan: Plan, headers: Mapping[str, object] | None, calls: Iterable[Any]
) -> Iterator[Row]:
    fits = definition._fits
    for number, call in enumerate(calls):
        try:
            args, kwargs = call
            if isinstance(args, str | bytes) or not isinstance(kwargs, (dict, Mapping)):  # an ABC asks longer
                raise TypeError
        except (TypeError, ValueError):
            words = f"row {number}: must be a pair of arguments and keyword arguments, not {call!r}"
            raise InvalidTaskJob(words) from None
        try:
            taken, named = plain_arguments(args, kwargs)
            fits(*taken, **named)
        except (TypeError, ValueError) as error:
            raise type(error)(f"row {number}: {error}") from error.__cause__
        yield Row(definition, plan, taken, named, headers)


def plan_of(definition: JobDefinition[..., Any], task: Task) -> Plan:
    """Return what a registration of ``task`` writes. Raises ``InvalidJob``."""
    given: dict[str, Any] = {}
    if task.queue_name != definition.queue:
        given["queue"] = task.queue_name
    if task.priority != definition.priority:
        given["priority"] = int(task.priority)
    after: Any = task.run_after
    if isinstance(after, timedelta):
        given["delay"] = after
    elif after is not None:
        given["run_at"] = after
    if not isinstance(definition, TaskDefinition):
        database = options_of(task.backend).database
        if database is not None:
            given["database"] = database
    elif task.backend != definition._backend_alias:
        given |= _of_alias(definition, task.backend)
    if router.routers and definition._plan.database is None and given.get("database") is None:
        # Not where they would send this job: of a result, only the alias of its task and its id are known later.
        given["database"] = results.database_of(task.backend)
    return definition._plan_with(**given) if given else definition._plan


def _of_alias(definition: TaskDefinition[..., Any], alias: str) -> dict[str, object]:
    """Return what a row gets from the alias that it is enqueued by, where that is not the task's own."""
    options, conf = options_of(alias), get_conf()
    declared = options.declared(definition.name, mark_of(definition.task.func))
    hard = declared.get("timeout", conf.default_timeout_seconds)
    soft = declared.get("soft_timeout")
    return {
        "database": options.database,
        "max_attempts": declared.get("max_attempts", conf.default_max_attempts),
        "timeout": hard if soft is None else (soft, hard),
    }
