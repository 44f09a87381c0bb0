"""Run one attempt of one job: load, call, catch, decide.

Knows nothing of pipes, processes or SQL: it takes a ``ClaimedJob`` and returns a ``Decision``, which the caller writes.
Every ``BaseException`` of the body ends here, so one bad job never harms its neighbours. A job's body, middleware,
signal receivers, backoff and retry rules run here and nowhere else.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from threading import get_ident
from typing import Any, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured

from django_pgjobs import clock, middleware
from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.context import JobContext, activate, deactivate
from django_pgjobs.decisions import Decision
from django_pgjobs.definition.next_step import Next
from django_pgjobs.definition.registry import registry
from django_pgjobs.ends.callbacks import BODY as BODY
from django_pgjobs.ends.callbacks import ON_ABANDON as ON_ABANDON
from django_pgjobs.ends.callbacks import ON_CANCEL as ON_CANCEL
from django_pgjobs.ends.callbacks import ON_SUCCESS as ON_SUCCESS
from django_pgjobs.exceptions import (
    Abandon,
    AttemptsExhausted,
    Cancel,
    CancelRequested,
    DeadlinePassed,
    Interrupt,
    InvalidJob,
    JobControl,
    JobSuspended,
    MembersFailed,
    OtherArguments,
    Snooze,
    StepFailed,
    UnknownJob,
    UnreadablePayload,
    UnstorableResult,
    WaitTimedOut,
    WorkerStopping,
)
from django_pgjobs.execution import events
from django_pgjobs.execution.ended_by import History, ended_by
from django_pgjobs.execution.idempotency import Recall, arecalled, recalled
from django_pgjobs.execution.prepared import UNGUARDED as UNGUARDED
from django_pgjobs.execution.prepared import Definition, Guard, MemoryOpener, ReporterOf, Transaction
from django_pgjobs.execution.prepared import Prepared as Prepared
from django_pgjobs.execution.prepared import RunControl as RunControl
from django_pgjobs.execution.retries import (
    NO_ATTEMPTS,
    NOT_RETRIED,
    RELEASE_REASON,
    TOO_LATE,
    by_default_backoff,
    failure_of,
    kept,
    retry,
)
from django_pgjobs.serialization.failures import OUR_FILES, Account, clean, kind_of, text_of
from django_pgjobs.serialization.payload import (
    PLAIN,
    Unstored,
    check_has_run,
    decode_result,
    encode_result,
    unstored,
)
from django_pgjobs.states import EXPIRED, Cause
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.values.backoff import LONGEST_SECONDS

OUR_FILES.update((__file__, middleware.__file__))

NOTHING = decide.Succeeded()
ASLEEP = "The job's deadline would pass while it sleeps."
NOT_STARTED = "The job's deadline had passed before the attempt could start, so it did not run."
NOT_DECLARED = (
    "Worker code knows no job of this name; workers import jobs.py of each app, and find tasks if TASKS names "
    "PgJobsBackend."
)
HIDDEN_LAYER = (
    'PGJOBS["MIDDLEWARE"]: a layer returned a coroutine that is never awaited, so the job in it has not run: mark its '
    "factory with Django's async_only_middleware or sync_and_async_middleware, and hide no async layer in a plain one."
)

REMEMBERED = (StepFailed, WaitTimedOut, MembersFailed)
"""Exceptions that a job raises each time that it runs, since it remembers them."""

_CAUSES: dict[type[Interrupt] | None, Cause] = {
    CancelRequested: Cause.CANCELLED,
    DeadlinePassed: Cause.TIMEOUT,
    WorkerStopping: Cause.RELEASED,
}
"""The exception an attempt was interrupted with → why it did not succeed, regardless of what it raised in the end."""


def prepare(
    job: ClaimedJob,
    reporter_of: ReporterOf,
    control: RunControl,
    guard: Guard = UNGUARDED,
    recall: Recall | None = None,
    history: History | None = None,
    transaction: Transaction | None = None,
    memories: MemoryOpener | None = None,
) -> Prepared | Decision:
    """Find the definition and load the payload. A job that this code cannot run is parked, never failed."""
    try:
        definition = registry.resolve(job.name)
    except UnknownJob as error:
        words = "" if registry.why_unknown(job.name) else f" {NOT_DECLARED}"
        events.parked(job, f"{error}{words}")
        return decide.Parked(str(error))
    is_body, extras = job.ending is None, job.extras
    if is_body and (extras is not None or job.attempt > job.max_attempts):
        decision = _before_its_start(job)
        if decision is not None:
            return decision
    try:
        args, kwargs = definition.load(job.payload or "")
        prepared = Prepared(definition, job, args, kwargs, control, guard, reporter_of)
        if job.headers:
            prepared.headers = decode_result(job.headers)
        if extras is not None:
            prepared.recall = recall
        if not is_body and job.error and job.kind != ON_SUCCESS:
            prepared.error = ended_by(job.id, job.error, history)
    except UnreadablePayload as error:
        return _unreadable(job, definition, error)
    if definition.atomic or definition.is_built_in:
        prepared.transaction = transaction
    prepared.memories = memories
    return prepared


def _before_its_start(job: ClaimedJob) -> Decision | None:
    """Return the decision about a job that must not start any more."""
    if job.attempt > job.max_attempts:
        events.log.error("job abandoned %s: no attempt was left before it started", events.facts(job))
        return decide.Abandoned("attempts exhausted", failure_of(AttemptsExhausted()), cause=None)
    now = clock.monotonic()
    if job.expires is not None and now >= job.expires:
        return decide.Cancelled(EXPIRED)
    if job.until is not None and now >= job.until:
        events.log.error("job abandoned %s: its deadline had passed before it started", events.facts(job))
        return decide.Abandoned(TOO_LATE, failure_of(DeadlinePassed(NOT_STARTED)), Cause.TIMEOUT)
    return None


def _unreadable(job: ClaimedJob, definition: Definition, error: UnreadablePayload) -> Decision:
    if job.kind != ON_CANCEL:
        events.parked(job, f"{error} It resumes when a worker has code that accepts its arguments.")
        return decide.Parked(clean(str(error)), definition.fingerprint)
    # A cancelled job is never parked: its worker would mark it for this callback again and again.
    events.log.error(
        "callback cannot run, the job ends without it callback=%s %s: %s", job.kind, events.facts(job), error
    )
    return decide.Succeeded()


def run(prepared: Prepared) -> Decision:
    """Run a synchronous job, or its callback, in this thread and return the decision. Raises nothing."""
    job = prepared.job
    if job.ending is not None:
        return _callback(prepared)
    token = activate(prepared)
    prepared.lane = get_ident()
    decision: Decision
    try:
        events.started(prepared)
        found = None if job.extras is None else recalled(prepared)
        if found is not None:
            decision = prepared.decision = found
        elif prepared.definition.atomic:
            decision = prepared.decision = _run_atomically(prepared)
        else:
            decision = prepared.decision = _success(prepared, _call(prepared))
    except BaseException as error:
        decision = prepared.decision = failed(prepared, error)
        events.ended(prepared, decision, error)
    else:
        events.ended(prepared, decision, None)
    finally:
        deactivate(token)
    return decision


async def arun(prepared: Prepared) -> Decision:
    """Run an ``async def`` job, or its callback, in this task and return the decision. Raises nothing."""
    if prepared.job.ending is not None:
        return await sync_to_async(_callback)(prepared)
    token = activate(prepared)
    prepared.lane = asyncio.current_task()
    decision: Decision
    try:
        events.started(prepared)
        found = None if prepared.job.extras is None else await arecalled(prepared)
        decision = prepared.decision = await _asuccess(prepared, await _acall(prepared)) if found is None else found
    except BaseException as error:
        decision = prepared.decision = failed(prepared, error)
        events.ended(prepared, decision, error)
    else:
        events.ended(prepared, decision, None)
    finally:
        deactivate(token)
    return decision


def run_here(prepared: Prepared) -> Decision:
    """Run a job in this thread, an ``async def`` one on an event loop of its own."""
    if prepared.definition.is_async and prepared.job.ending is None:
        return async_to_sync(arun)(prepared)
    return run(prepared)


def _run_atomically(prepared: Prepared) -> Decision:
    if prepared.transaction is None:
        raise RuntimeError(f"job {prepared.job.name!r} is atomic, and there is no database here to end it in")
    return prepared.transaction.run(prepared, _succeed)


def _succeed(prepared: Prepared) -> decide.Succeeded | decide.Stepped:
    return _success(prepared, _call(prepared))


def _call(prepared: Prepared) -> Any:
    """Call the body inside the middleware; without any, as in most projects, call it directly."""
    definition = prepared.definition
    if get_conf().middleware:
        around = middleware.lenient if definition.is_built_in else middleware.chain
        return _of_layers(prepared.guard.call(around(_body(prepared)), prepared.context))
    if definition.takes_context:
        value = prepared.guard.call(definition.func, prepared.context, *prepared.args, **prepared.kwargs)
    else:
        value = prepared.guard.call(definition.func, *prepared.args, **prepared.kwargs)
    if value is not None and _is_awaitable(value):  # a plain decorator hides that the function is async
        return prepared.guard.call(value_of, value)
    return value


def _of_layers(value: Any) -> Any:
    """Return what the outermost layer returned. Raises ``ImproperlyConfigured`` if that is never awaited."""
    if not _is_awaitable(value):
        return value
    if inspect.iscoroutine(value):
        value.close()
    raise ImproperlyConfigured(HIDDEN_LAYER)


def _body(prepared: Prepared) -> Callable[[JobContext], Any]:
    definition, args, kwargs = prepared.definition, prepared.args, prepared.kwargs
    if definition.takes_context:
        return lambda context: value_of(definition.func(context, *args, **kwargs), keep=definition.is_async)
    return lambda _context: value_of(definition.func(*args, **kwargs), keep=definition.is_async)


def _is_awaitable(value: object) -> bool:
    """Return whether a value can be awaited. Asks its type alone: a job's value may raise at any other question."""
    return type(value) not in PLAIN and inspect.getattr_static(type(value), "__await__", None) is not None


def value_of(value: Any, *, keep: bool = False) -> Any:
    """Return what a body returned, or what that comes to if it is awaitable; with ``keep`` the caller awaits it."""
    return async_to_sync(awaited)(value) if not keep and _is_awaitable(value) else value


async def _acall(prepared: Prepared) -> Any:
    return _of_layers(await prepared.guard.acall(middleware.async_chain(_abody(prepared)), prepared.context))


def _abody(prepared: Prepared) -> Callable[[JobContext], Awaitable[Any]]:
    call = _body(prepared)

    async def body(context: JobContext) -> Any:
        return await awaited(call(context))

    return body


def _callback(prepared: Prepared) -> Decision:
    """Run ``on_success``, ``on_abandon`` or ``on_cancel``. An error in it is logged and does not change the outcome."""
    job, definition, context = prepared.job, prepared.definition, prepared.context
    func: Callable[..., Any] | None = getattr(definition, f"{job.kind}_func")
    if func is None:
        return decide.Succeeded()
    token = activate(prepared)
    try:
        _of_layers(prepared.guard.call(middleware.chain(_call_back(func, prepared)), context))
    except BaseException as error:
        info, trace = Account(error).for_log()
        words = f"{kind_of(error)}: {text_of(error)}{trace}"
        events.log.error("callback failed callback=%s %s: %s", job.kind, events.facts(context), words, exc_info=info)
    finally:
        deactivate(token)
    return decide.Succeeded()


def _call_back(func: Callable[..., Any], prepared: Prepared) -> Callable[[JobContext], None]:
    def call(context: JobContext) -> None:
        answer = func(context, *prepared.args, **prepared.kwargs)
        if inspect.isawaitable(answer):
            async_to_sync(awaited)(answer)
        else:
            check_has_run("The callback", answer)

    return call


async def awaited(value: Any) -> Any:
    """Return what a value comes to in the end: what an ``async def`` function returns may have to be awaited again."""
    while _is_awaitable(value):
        value = await value
    return value


def _success(prepared: Prepared, value: Any) -> decide.Succeeded | decide.Stepped:
    if prepared.memory is not None:
        prepared.memory.check_not_swallowed()
    if value is None:
        return NOTHING
    if type(value) is Next:
        return _next(value)
    check_has_run("The job", value)
    if not prepared.definition.store_result:
        return NOTHING
    try:
        if type(value) is Unstored:  # by a front that knows better what can be stored
            raise UnstorableResult(value.why)
        return decide.Succeeded(encode_result(value, get_conf().result_limit_bytes))
    except UnstorableResult as error:
        if prepared.definition.strict_results:
            raise
        events.result_dropped(prepared.job.name, prepared.job.id, str(error))
        return decide.Succeeded(unstored(str(error)))


async def _asuccess(prepared: Prepared, value: Any) -> decide.Succeeded | decide.Stepped:
    if prepared.memory is not None:
        prepared.memory.check_not_swallowed()
    if type(value) is Next:  # the keys of limits are the project's code, and may ask the database
        return await sync_to_async(_next)(value)
    return _success(prepared, value)


def _next(value: Next) -> decide.Stepped:
    try:
        return decide.Stepped(value.step.name, value.step.stored())
    except InvalidJob as error:
        raise UnstorableResult(f"The next step cannot be stored: {error}") from error


def failed(prepared: Prepared, error: BaseException) -> Decision:
    """Log the failed attempt and return the decision about it. Raises nothing."""
    if prepared.memory is not None and prepared.memory.claim_lost:
        return decide.Lost()
    account = Account(error)
    try:
        decision = _decision(prepared, account)
    except BaseException:
        events.log.exception("decision about a failure failed, the default backoff applies job=%d", prepared.job.id)
        decision = by_default_backoff(prepared.job, kept(account), Cause.FAILED, prepared.job.until)
    try:
        _log_failure(prepared, decision, account)
    except BaseException:
        events.log.exception("failure cannot be logged job=%d", prepared.job.id)
    return decide.InDoubt(decision) if prepared.in_doubt else decision


def _decision(prepared: Prepared, account: Account) -> decide.Unwritten:
    """Return what the job asked for by raising ``Cancel``, ``Snooze`` or ``Abandon``, or else retry or give up."""
    # Use type(), never isinstance(), which reads the exception's own __class__.
    context, error, kind = prepared.context, account.error, type(account.error)
    if issubclass(kind, Cancel):
        return decide.Cancelled(text_of(error))
    if context.cancelled:
        if issubclass(kind, JobControl) or besides_suspension(error) is None:
            return decide.Cancelled()
        return decide.Cancelled("", kept(account), _CAUSES.get(prepared.control.interrupt, Cause.FAILED))
    if prepared.memory is not None and besides_suspension(error) is None:
        suspension: decide.Suspended | None = prepared.memory.decision()
        if suspension is not None:
            return _suspension(prepared, suspension)
    if issubclass(kind, Snooze):
        return decide.Snoozed(min(error.seconds, LONGEST_SECONDS))  # type: ignore[attr-defined]
    if issubclass(kind, (Abandon, UnstorableResult, OtherArguments, *REMEMBERED)):
        return decide.Abandoned(text_of(error), kept(account))
    if prepared.control.interrupt is WorkerStopping:
        return decide.Released(RELEASE_REASON, kept(account))
    if prepared.control.interrupt is DeadlinePassed:
        # As after a kill, where no exception reaches the retry rules: both ways to end a late job decide alike.
        return by_default_backoff(prepared.job, kept(account), Cause.TIMEOUT, prepared.job.until)
    if context.attempt >= context.max_attempts:
        return decide.Abandoned(NO_ATTEMPTS, kept(account))
    delay = prepared.definition.retry_delay(error, context.attempt)
    if delay is None:
        return decide.Abandoned(NOT_RETRIED, kept(account))
    return retry(delay, kept(account), Cause.FAILED, prepared.job.until)


def besides_suspension(error: BaseException) -> BaseException | None:
    """Return what left the body besides the suspension of the job; a ``TaskGroup`` wraps what its tasks raise."""
    kind = type(error)
    if issubclass(kind, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        besides: BaseException | None = BaseExceptionGroup.split(group, JobSuspended)[1]
        return besides
    return None if issubclass(kind, JobSuspended) else error


def _suspension(prepared: Prepared, suspension: decide.Suspended) -> decide.Unwritten:
    """Return the suspension; or give the job up, if it would sleep past its deadline, which no event can prevent."""
    until, waits = prepared.job.until, suspension.all
    if until is None or any(wait.event is not None or clock.monotonic() + wait.seconds < until for wait in waits):
        return suspension
    return decide.Abandoned(TOO_LATE, suspension.failure or failure_of(DeadlinePassed(ASLEEP)), Cause.TIMEOUT)


def _log_failure(prepared: Prepared, decision: decide.Unwritten, account: Account) -> None:
    """Log a failed attempt where its live exception is: WARNING if the job is retried, ERROR if it is abandoned."""
    about, words = events.facts(prepared.context), account.message
    match decision:
        case decide.Retried(seconds=seconds):
            info, trace = account.for_log()
            events.log.warning("attempt failed, retry in %.1f s %s: %s%s", seconds, about, words, trace, exc_info=info)
        case decide.Abandoned():
            info, trace = account.for_log()
            events.log.error("job abandoned %s: %s%s", about, words, trace, exc_info=info)
        case _:
            events.log.info("attempt ended %s: %s: %s", about, account.kind, words)
