"""Jobs as results of tasks: the row, its attempts and its claim → ``TaskResult``; pure, but for the reading itself.

Its errors: one for each failed attempt, and one for an end that no attempt explains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from django_pgjobs.context import JobContext, running_alias
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import Abandon, AttemptFailed, Cancel, UnknownJob, UnreadablePayload, UnstorableResult
from django_pgjobs.inspection.results import ReadResult, read_result, read_results
from django_pgjobs.registering.destination import writable_alias
from django_pgjobs.serialization.failures import full_path
from django_pgjobs.serialization.headers import task_header
from django_pgjobs.serialization.payload import decode_payload, decode_result
from django_pgjobs.states import TASK_HEADER, Outcome
from django_pgjobs.tasks import families
from django_pgjobs.tasks.families import DEFAULT_ALIAS, TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from django_pgjobs.tasks.plain import normalize_json
from django_pgjobs.tasks.settings import options_of

if TYPE_CHECKING:
    from django_pgjobs.definition.policy import JobPolicy
    from django_pgjobs.inspection.results import ReadAttempt, ReadResult
    from django_pgjobs.models import Job
    from django_pgjobs.tasks.families import Task


LONGEST_ID = 19
"""Digits of the largest id."""


def parsed_id(result_id: object) -> int:
    """Return the job that an id of a result stands for, without a query. Raises ``TaskResultDoesNotExist``."""
    if isinstance(result_id, str) and result_id.isascii() and result_id.isdigit() and len(result_id) <= LONGEST_ID:
        number = int(result_id)
        if 0 < number < 2**63 and str(number) == result_id:
            return number
    raise TaskResultDoesNotExist(f"{result_id!r} is not the id of a result")


def found(alias: str, result_id: str) -> TaskResult:
    """Return the result of this id, from where jobs of ``alias`` are written. Raises ``TaskResultDoesNotExist``."""
    job_id = parsed_id(result_id)
    read = read_result(database_of(alias), job_id)
    if read is None:
        raise TaskResultDoesNotExist(f"There is no job {job_id}, or none any more")
    return result_of_read(read, alias)


def of_job(job: Job) -> TaskResult:
    """Return the result of a job, from the database that it was read from. Raises ``TaskResultDoesNotExist``."""
    stored: int | None = job.pk
    read = None if stored is None else read_result(writable_alias(job._state.db), stored)
    if read is None:
        raise TaskResultDoesNotExist(f"There is no job {job.pk}, or none any more")
    return result_of_read(read, DEFAULT_ALIAS)


def of_jobs(alias: str, ids: Sequence[int], asked: str) -> list[TaskResult]:
    """Return the results of those of these jobs that are there, in their order."""
    read = read_results(alias, ids)
    return [result_of_read(read[job_id], asked) for job_id in ids if job_id in read]


def database_of(alias: str) -> str:
    """Return the database that jobs of an alias of ``TASKS`` are written to."""
    return writable_alias(options_of(alias).database)


def of_new_job(job: Job, task: Task, backend: str, args: Any, kwargs: Any) -> TaskResult:
    """Return the result of a job that has just been stored."""
    return TaskResult(
        task=with_instant(task, job.created_at),
        id=str(job.pk),
        status=TaskResultStatus.READY,
        enqueued_at=in_zone(job.created_at),
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=list(args),
        kwargs=kwargs,
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def of_running(context: JobContext) -> TaskResult:
    """Return the result of the task that runs in this thread, as its row has it."""
    alias = running_alias()
    read = None if alias is None else read_result(alias, context.id)
    if read is None:
        return of_facts(context.name, context.id, context.attempt, TaskResultStatus.RUNNING)
    return result_of_read(read, DEFAULT_ALIAS)


def of_ended(database: str, job_id: int) -> TaskResult | None:
    """Return the result of a task's job that has ended, as its row has it; None if its row is gone."""
    read = read_result(database, job_id)
    return None if read is None else result_of_read(read, DEFAULT_ALIAS)


def result_of_read(read: ReadResult, asked: str) -> TaskResult:
    """Return the result of a job. Raises ``TaskResultDoesNotExist`` if this code does not know its name.

    ``asked``: the alias that was asked, which is that of a job that no task's alias has registered.
    """
    try:
        definition = registry.resolve(read.name)
    except UnknownJob as error:
        raise TaskResultDoesNotExist(f"Job {read.id} is not a task that this code knows: {error}") from error
    args, kwargs = _arguments(read.payload)
    task = _task(definition, read, asked)
    made: TaskResult = TaskResult(
        task=task,
        id=str(read.id),
        status=status_of(read),
        enqueued_at=in_zone(read.created_at),
        started_at=in_zone(read.started_at),
        last_attempted_at=in_zone(read.last_attempted_at),
        finished_at=in_zone(read.finished_at),
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=errors_of(read),
        worker_ids=["" if worker is None else str(worker) for worker in read.workers],
    )
    if read.outcome == Outcome.SUCCEEDED and read.result is not None:
        object.__setattr__(made, "_return_value", decode_result(read.result))
    return made


def status_of(read: ReadResult) -> TaskResultStatus:
    """Return the status of a job; an end that is neither success nor failure counts as a failure."""
    if read.outcome is None:
        return TaskResultStatus.RUNNING if read.is_running else TaskResultStatus.READY
    return TaskResultStatus.SUCCESSFUL if read.outcome == Outcome.SUCCEEDED else TaskResultStatus.FAILED


def _arguments(payload: str) -> tuple[list[object], dict[str, object]]:
    """Return the arguments; those that no JSON can show, of a ``@job``, in their stored form."""
    try:
        args, kwargs = decode_payload(payload)
        normalize_json([args, kwargs])
    except (UnreadablePayload, TypeError, ValueError):
        stored = json.loads(payload)
        return stored.get("args", []), stored.get("kwargs", {})
    return args, kwargs


# The task of a row

KEPT: Mapping[str, Any] = {"backend": str, "delay": (int, float), "run_after": str}
"""Key that ``header_of`` stores → its types."""


def header_of(task: Task, own: Task | None) -> dict[str, object] | None:
    """Return what the row of a job keeps of ``task``, which the task at its path, ``own``, does not say."""
    kept: dict[str, object] = {}
    if own is None or task.backend != own.backend:
        kept["backend"] = task.backend
    after: Any = task.run_after
    if isinstance(after, timedelta):
        kept["delay"] = after.total_seconds()
    elif after is not None:
        kept["run_after"] = after.isoformat()
    return {TASK_HEADER: kept} if kept else None


def _task(definition: JobPolicy, read: ReadResult, asked: str) -> Task:
    kept = _kept(read.headers)
    own: Task | None = getattr(definition, "task", None)
    values = {
        "backend": kept.get("backend", asked if own is None else own.backend),
        "queue_name": read.queue,
        "priority": read.priority,
        "run_after": _run_after(kept, read.created_at),
    }
    if own is not None:
        return families.changed(own, values)
    return families.made(families.Task, {"func": definition.func, "takes_context": definition.takes_context, **values})


def _kept(text: str | None) -> Mapping[str, object]:
    """Return what ``header_of`` has stored; nothing, if something else stands there."""
    given = task_header(text) or {}
    return {name: value for name, value in given.items() if isinstance(value, KEPT.get(name, ()))}


def _run_after(kept: Mapping[str, Any], created_at: datetime) -> datetime | None:
    with suppress(ValueError, OverflowError):  # not what ``header_of`` has stored
        if "delay" in kept:
            return in_zone(created_at + timedelta(seconds=kept["delay"]))
        if "run_after" in kept:
            return in_zone(datetime.fromisoformat(kept["run_after"]))
    return None


def with_instant(task: Task, created_at: datetime) -> Task:
    """Return ``task`` with the instant that a ``timedelta`` in it comes to."""
    after: Any = task.run_after
    return families.changed(task, {"run_after": in_zone(created_at + after)}) if isinstance(after, timedelta) else task


def in_zone(instant: datetime | None) -> datetime | None:
    """Return an instant as this project has them: aware, or naive in local time where ``USE_TZ`` is off."""
    if instant is None or timezone.is_aware(instant) == settings.USE_TZ:
        return instant
    return timezone.make_aware(instant) if settings.USE_TZ else timezone.make_naive(instant)


# Without a row


def of_facts(name: str, job_id: int, attempt: int, status: TaskResultStatus) -> TaskResult:
    """Return a result of what is known of a job without its row: for the log, and for a job that bypassed the queue."""
    definition = registry.get(name)
    own: Task | None = getattr(definition, "task", None)
    task = own or families.made(families.Task, {"func": definition.func, "takes_context": definition.takes_context})
    return TaskResult(
        task=task,
        id=str(job_id),
        status=status,
        enqueued_at=None,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=[],
        kwargs={},
        backend=task.backend,
        errors=[],
        worker_ids=[""] * attempt,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PgTaskError(TaskError):
    """A ``TaskError`` that also finds the class of an exception that is defined inside another class."""

    @property
    def exception_class(self) -> type[BaseException]:
        """The class of the exception. Raises ``ImportError`` if no module has it, ``ValueError`` if it is none."""
        found = _at(self.exception_class_path)
        if not isinstance(found, type) or not issubclass(found, BaseException):
            raise ValueError(f"{self.exception_class_path!r} does not reference a valid exception.")
        return found


def _at(path: str) -> object:
    """Return what stands at a dotted path, be it inside a class, which ``import_string`` does not look into."""
    try:
        return import_string(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        names = [name]
        while module:
            try:
                found: Any = import_module(module)
            except ModuleNotFoundError:
                module, _, name = module.rpartition(".")
                names.insert(0, name)
                continue
            for each in names:
                found = getattr(found, each, None)
            if found is None:
                raise
            return found
        raise


def path_of(kind: type[BaseException]) -> str:
    """Return the full dotted path of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def errors_of(read: ReadResult) -> list[TaskError]:
    """Return an error for each charged attempt that failed, the oldest first; at least one if the task failed."""
    errors = [_of_attempt(failure) for failure in read.failures]
    if read.outcome == Outcome.CANCELLED:
        by, reason = read.cancel_by, read.cancel_reason
        errors.append(_error(path_of(Cancel), f"Cancelled{f' by {by}' if by else ''}{f': {reason}' if reason else ''}"))
    elif read.is_abandoned_by_hand:
        errors.append(_error(path_of(Abandon), read.error))
    elif read.outcome == Outcome.ABANDONED and not errors:
        errors.append(_error(path_of(AttemptFailed), read.error))
    return errors


def _of_attempt(failure: ReadAttempt) -> TaskError:
    kind, message = failure.exception or path_of(AttemptFailed), failure.message
    if kind == path_of(UnstorableResult) and len(failure.chain) > 1:
        # The attempt did its work, and returned what is no JSON: why, is what people look for.
        kind, message = failure.chain[1]
    return _error(kind, failure.traceback or f"{kind}: {message or failure.cause}")


def _error(kind: str, traceback: str) -> TaskError:
    path = full_path(kind)
    if "<locals>" in path:
        # Nothing outside of its function can reach the class; the traceback names it.
        path = path_of(AttemptFailed)
    return PgTaskError(exception_class_path=path, traceback=traceback)
