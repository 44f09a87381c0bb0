"""Signals of tasks: when a task starts, in its own thread, and when its job has ended, after the durable write.

Django's own receivers, which write the log, are always connected. A signal is therefore only sent where another
receiver is connected, too, or where that logger would write the line; the line alone needs no row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from django_pgjobs.execution import events
from django_pgjobs.logs import log
from django_pgjobs.states import TASK_FRONT, Outcome
from django_pgjobs.tasks import families, results
from django_pgjobs.tasks.families import TaskResult, TaskResultStatus
from django_pgjobs.tasks.settings import our_aliases

if TYPE_CHECKING:
    from django.dispatch import Signal

    from django_pgjobs.context import JobContext

tasks_log = logging.getLogger(families.FAMILY)
"""The logger of Django's receivers."""

_STARTED, _LOG_STARTED = families.task_started, id(families.log_task_started)

LEVELS: Mapping[str, int] = {Outcome.SUCCEEDED: logging.INFO, Outcome.ABANDONED: logging.ERROR}
"""Outcome → the level of Django's line about it, if it is worth sending the signal for that line alone."""

_raised: list[tuple[int, BaseException]] = []
"""The latest exception of a task that ran in this process, which is no executor, and its job: at most one."""


def _has_other(signal: Signal, own: Callable[..., None]) -> bool:
    """Return whether a signal has a receiver besides Django's ``own``."""
    receivers = signal.receivers
    return len(receivers) > 1 or (len(receivers) == 1 and receivers[0][0][0] != id(own))


def others_want_enqueued() -> bool:
    """Return whether ``task_enqueued`` has a receiver besides Django's."""
    return _has_other(families.task_enqueued, families.log_task_enqueued)


def others_want_starts() -> bool:
    """Return whether ``task_started`` has a receiver besides Django's."""
    return _has_other(families.task_started, families.log_task_started)


def others_want_ends() -> bool:
    """Return whether ``task_finished`` has a receiver besides Django's."""
    return _has_other(families.task_finished, families.log_task_finished)


def anybody_wants_starts() -> bool:
    """Return whether ``task_started`` has a receiver, or its line would be written. Each start of a task asks."""
    receivers = _STARTED.receivers
    return len(receivers) > 1 or (
        len(receivers) == 1 and (receivers[0][0][0] != _LOG_STARTED or tasks_log.isEnabledFor(logging.INFO))
    )


def anybody_wants_ends(outcome: str) -> bool:
    """Return whether ``task_finished`` has a receiver, or its line about this outcome would be written."""
    if not our_aliases():
        return False
    # Not the ERROR line alone for a cancel: it may be mailed to ADMINS, for each of thousands that an operator cancels.
    return others_want_ends() or (outcome in LEVELS and tasks_log.isEnabledFor(LEVELS[outcome]))


def send_enqueued(sender: type[object], result: TaskResult) -> None:
    """Send ``task_enqueued``. The row is written, so a receiver has nothing to veto."""
    if others_want_enqueued() or tasks_log.isEnabledFor(logging.DEBUG):
        families.task_enqueued.send_robust(sender, task_result=result)


def send_started(job: JobContext) -> None:
    """Send ``task_started``, if it has a receiver. Raises nothing but interrupts."""
    result = _result_of_start(job)
    families.task_started.send_robust(_sender(result), task_result=result)


async def asend_started(job: JobContext) -> None:
    """``send_started`` for a task on an event loop: receivers run in a thread."""
    result = await sync_to_async(_result_of_start)(job)
    await families.task_started.asend_robust(_sender(result), task_result=result)


def _result_of_start(job: JobContext) -> TaskResult:
    if others_want_starts():
        try:
            return results.of_running(job)
        except Exception:
            log.exception("result of a starting task cannot be read job=%d", job.id)
    return results.of_facts(job.name, job.id, job.attempt, TaskResultStatus.RUNNING)


def note_raised(job: JobContext, error: BaseException) -> None:
    """Keep a task's live exception for the signal of its end, if the same process will send it."""
    if not job.executor:
        _raised[:] = [(job.id, error)]


def send_finished(
    *,
    sender: object,
    job_id: int,
    name: str,
    outcome: str,
    attempt: int,
    database: str,
    duration: float | None,
    by_worker: bool,
    **_: object,
) -> None:
    """Send ``task_finished`` for the end of a task's job: the listener of ``job_finished``."""
    # Not an exception that was retried: no attempt ended with a success, or with an operator's cancel.
    by_it = outcome != Outcome.SUCCEEDED and duration is not None
    error = next((error for of, error in _raised if by_it and of == job_id), None)
    _raised.clear()
    if getattr(sender, "_front", "") != TASK_FRONT or not anybody_wants_ends(outcome):
        return
    if not by_worker and not others_want_ends():
        return  # as for a cancel: an operator may abandon thousands
    result = _result_of_end(database, job_id, name, outcome, attempt)
    if error is None:
        families.task_finished.send_robust(_sender(result), task_result=result)
        return
    trace = error.__traceback__
    try:
        raise error
    except BaseException:  # where Django's receiver finds it, as in its own backends
        families.task_finished.send_robust(_sender(result), task_result=result)
    finally:
        error.__traceback__ = trace


def _result_of_end(database: str, job_id: int, name: str, outcome: str, attempt: int) -> TaskResult:
    status = TaskResultStatus.SUCCESSFUL if outcome == Outcome.SUCCEEDED else TaskResultStatus.FAILED
    if others_want_ends():
        try:
            if (found := results.of_ended(database, job_id)) is not None:
                return found
        except Exception:
            log.exception("result of a finished task cannot be read job=%d", job_id)
    return results.of_facts(name, job_id, attempt, status)


def _sender(result: TaskResult) -> type[object]:
    """Return the class of the backend that a task is of."""
    with suppress(Exception):  # its alias has left the settings
        return type(result.task.get_backend())
    return families.BaseTaskBackend


events.add_listener(send_finished, anybody_wants_ends)
