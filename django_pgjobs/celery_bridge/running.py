"""Run a job of a task by Celery's own tracer, and turn what that says into the end of the attempt.

Retries with the same arguments stay in the row, as an attempt that failed. A retry that changes them, and
``replace``, is the row's next step.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery import _state, signals, states
from celery.app.task import Context
from celery.app.trace import trace_task
from celery.exceptions import Retry, SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery.utils.time import maybe_make_aware
from kombu.exceptions import EncodeError

from django_pgjobs import Next, Snooze, current_context
from django_pgjobs.celery_bridge import messages
from django_pgjobs.celery_bridge.calls import CeleryCall, CeleryRun, running
from django_pgjobs.decisions import Failure
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import (
    Abandon,
    AttemptFailed,
    Cancel,
    DeadlinePassed,
    MemoryExceeded,
    Release,
    SoftDeadlinePassed,
)
from django_pgjobs.models import Attempt
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.serialization.payload import Unstored
from django_pgjobs.states import EXPIRED, Cause

if TYPE_CHECKING:
    from django_pgjobs import JobContext

OUR_FILES.add(__file__)

KEPT = "celery_state"
"""Key of a result that has another state than success, which the task set before it raised ``Ignore``."""

REPLACED = "Replaced by new task"
"""Celery's words for the end of a task by ``replace``."""

TERMINATED = "terminated"
"""The reason of a cancel by ``revoke(terminate=True)``."""

POLLING = "celery.chord_unlock"
"""Asks again and again whether a chord's header has ended; that is no failure to keep in the history."""

# ``except SoftTimeLimitExceeded`` must catch what our worker raises at the soft limit.
SoftDeadlinePassed.__bases__ = (SoftTimeLimitExceeded,)
SoftDeadlinePassed.__str__ = Exception.__str__  # type: ignore[method-assign]  # plain jobs keep their words

_runs = 0
_counting = threading.Lock()


class HardLimitPassed(Abandon):
    """The task ran longer than its ``time_limit``: Celery does not run it again."""


class ProcessLost(Abandon):
    """The task's process died, or took too much memory: Celery runs it again only if ``outlives_death`` says so."""


def run(app: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one attempt of a task: the body of its job."""
    this = CeleryRun.of(current_context(), args, kwargs)
    if messages.FAILED in this.message:
        raise app.backend.exception_to_python(this.message[messages.FAILED])
    if this.context.attempt > 1 or this.message.get("retries"):
        _check_not_final(app, this)
    else:
        this.lifted = _has_expired(app, this)
    task = app.tasks[this.name]
    given = messages.unpacked([this.args, this.kwargs])
    token = running.set(this)
    try:
        with _current(app), _no_joins():
            traced = trace_task(task, this.id, *given, _request(this), app=app)
    except DeadlinePassed as error:
        raise HardLimitPassed(str(error)) from None
    except MemoryExceeded as error:
        if outlives_death(task):
            raise
        raise ProcessLost(str(error)) from None
    finally:
        running.reset(token)
    return _ended(app, this, traced)


def _check_not_final(app: Any, this: CeleryRun) -> None:
    """Refuse to run a task again that has expired, or whose limit or dead process ended it; not if an operator asks.

    Raises ``Cancel``, ``HardLimitPassed`` or ``ProcessLost``.
    """
    context, task = this.context, app.tasks[this.name]
    if context.attempt > 1 and context.remaining_attempts >= registry.get(this.name).max_attempts:
        this.lifted = True  # an operator has retried it, which gives all attempts again
        return
    if _has_expired(app, this):
        raise Cancel(EXPIRED)
    if context.attempt == 1:
        return
    # A death whose guilt was in doubt is written under the number of this attempt.
    past = Attempt.objects.using(context.database).filter(job_id=context.id, number__lt=context.attempt).order_by("-id")
    cause, kind, message = past.values_list("cause", "exception", "message").first() or ("", "", "")
    if cause == Cause.TIMEOUT:
        raise HardLimitPassed(message)
    if (cause == Cause.CRASHED or kind in OVER_MEMORY) and not outlives_death(task):
        raise ProcessLost(message)


def _has_expired(app: Any, this: CeleryRun) -> bool:
    """Return whether the call has expired, by the clocks of caller and worker, as with Celery.

    The row's own expiry is over with the first start.
    """
    if not (until := this.message.get("expires")):
        return False
    return bool(maybe_make_aware(datetime.fromisoformat(until), app.timezone) < datetime.now(UTC))


def outlives_death(task: Any) -> bool:
    """Return whether a task runs again whose process has died."""
    # Only Celery 5.7 has the first.
    return bool(getattr(task, "retry_on_worker_lost", None) or (task.acks_late and task.reject_on_worker_lost))


def _ended(app: Any, this: CeleryRun, traced: Any) -> Any:
    state = states.SUCCESS if traced.info is None else traced.info.state
    found = traced.retval if traced.info is None else traced.info.retval
    continued = this.again.pop() if this.again and state in (states.RETRY, states.IGNORED) else None
    for call in this.again:  # by retry(throw=False): the task has ended otherwise
        call.register()
    if state == states.SUCCESS:
        if isinstance(found, ExceptionInfo):  # of the tracer itself
            raise found.exception
        return None if _ignores(app.tasks[this.name], this.message) else _storable(app, found)
    if state == states.RETRY and continued is not None:
        return _retried(this, continued, found)
    if state == states.IGNORED:
        if continued is not None:
            return Next(continued.bound(), delay=continued.seconds or None)
        if REPLACED in map(str, found.args):  # by a chain, whose last member gets the id
            return {KEPT: [states.PENDING, None]}
        return None if this.kept is None else {KEPT: [this.kept[0], messages.packed(this.kept[1])]}
    if state == states.REJECTED:
        raise Release() if found.requeue else found
    raise found


def _storable(app: Any, result: Any) -> Any:
    """Return a result as it is stored; a mark for one that no JSON holds, as the task has succeeded by now."""
    try:
        return messages.packed(app.backend.prepare_value(result))
    except EncodeError as error:
        return Unstored(str(error))


def _retried(this: CeleryRun, call: CeleryCall, retry: Retry) -> Any:
    delay = call.seconds
    if call.definition.name == POLLING:
        raise Snooze(delay)
    if not this.is_itself(call):
        return Next(call.bound(), delay=delay or None)
    retry.pgjobs_delay = delay
    raise retry from (retry.exc if isinstance(retry.exc, BaseException) else None)


def delay_of(error: BaseException, attempt: int) -> float:
    """Return the seconds to wait after a retry in place."""
    return float(getattr(error, "pgjobs_delay", 0.0))


# The request


def _request(this: CeleryRun) -> dict[str, Any]:
    context, message = this.context, messages.unpacked(this.message)
    priority = message.pop("priority", 0)
    if this.lifted:
        message.pop("expires", None)
    return {
        "root_id": this.id,
        "timelimit": [None, None],
        **message,
        "id": this.id,
        "task": this.name,
        "correlation_id": this.id,
        "retries": (message.get("retries") or 0) + max(context.attempt - 1, 0),
        "hostname": context.executor or socket.gethostname(),
        "is_eager": False,
        "delivery_info": {
            "exchange": "",
            "routing_key": context.queue,
            "priority": priority,
            "redelivered": False,
        },
    }


def _ignores(task: Any, message: messages.Message) -> bool:
    given = message.get("ignore_result")
    return bool(task.ignore_result if given is None else given)


@contextmanager
def _current(app: Any) -> Iterator[None]:
    """Make this app the current one of the thread: signatures that come out of messages belong to it."""
    before = _state._tls.current_app
    _state._set_current_app(app)
    try:
        yield
    finally:
        _state._set_current_app(before)


@contextmanager
def _no_joins() -> Iterator[None]:
    """Refuse to wait for other tasks while one runs in this process, as Celery's worker does."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(more: int) -> None:
    global _runs
    with _counting:
        _runs += more
        _state._set_task_join_will_block(_runs > 0)


# Callbacks of the engine


def revoked(app: Any, context: JobContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tell the receivers of ``task_revoked`` that a job was cancelled or has expired."""
    this = CeleryRun.of(context, args, kwargs)
    request = _context_of(this)
    job = messages.job_of(request.id)
    reason = job.cancel_reason if job is not None else ""
    signals.task_revoked.send(
        sender=app.tasks[context.name], request=request, terminated=reason == TERMINATED, signum=None,
        expired=reason == EXPIRED,
    )  # fmt: skip
    with _within(app, this):
        app.backend.mark_as_revoked(request.id, reason, request=request, store_result=False)


def abandoned(app: Any, context: JobContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call the errbacks of a task that could not end itself: its process died, or its time was over."""
    error, this = context.error, CeleryRun.of(context, args, kwargs)
    if error is None or (error.kind and error.kind not in OURS) or messages.FAILED in this.message:
        return  # the tracer has told of it
    if not error.kind and _tracer_notified(this.context, error.message):
        return
    request = _context_of(this)
    exc = OURS.get(error.kind, WorkerLostError)(error.message)  # without a kind if it is not of the latest attempt
    try:
        raise exc
    except Exception:
        einfo = ExceptionInfo()  # it needs a traceback
    with _within(app, this):
        app.backend.mark_as_failure(request.id, exc, request=request)
    signals.task_failure.send(
        sender=app.tasks[context.name], task_id=request.id, exception=exc, args=request.args, kwargs=request.kwargs,
        traceback=None, einfo=einfo,
    )  # fmt: skip


def _tracer_notified(context: JobContext, summary: str) -> bool:
    """Return whether this sums up an error of the task, though the latest attempt ended otherwise.

    It does if a process died in a callback. An operator's reason to give the job up sums up no attempt.
    """
    past = Attempt.objects.using(context.database).filter(job_id=context.id).exclude(exception="")
    return any(
        kind not in OURS and Failure(kind, message, tuple(map(tuple, chain))).summary == summary
        for kind, message, chain in past.values_list("exception", "message", "chain")
    )


def _context_of(this: CeleryRun) -> Context:
    args, kwargs = messages.unpacked([this.args, this.kwargs])
    return Context(_request(this), args=args, kwargs=kwargs, called_directly=False)


@contextmanager
def _within(app: Any, this: CeleryRun) -> Iterator[None]:
    """Let calls and results in the block be those of this task, as in its run."""
    token = running.set(this)
    _state._task_stack.push(app.tasks[this.name])
    try:
        with _current(app):
            yield
        for call in this.again:
            call.register()
    finally:
        _state._task_stack.pop()
        running.reset(token)


def _kinds(ours: type[BaseException], theirs: type[Exception]) -> dict[str, type[Exception]]:
    found = {f"{ours.__module__}.{ours.__name__}": theirs}
    for kind in ours.__subclasses__():
        found |= _kinds(kind, theirs)
    return found


OVER_MEMORY = _kinds(MemoryExceeded, WorkerLostError)

OURS = (
    _kinds(AttemptFailed, WorkerLostError)
    | OVER_MEMORY
    | _kinds(ProcessLost, WorkerLostError)
    | _kinds(DeadlinePassed, TimeLimitExceeded)
    | _kinds(HardLimitPassed, TimeLimitExceeded)
)
"""Kinds of failures that happen to a task, not in it, and what Celery calls them."""
