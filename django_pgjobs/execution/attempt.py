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
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured

from django_pgjobs import clock, middleware
from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.context import JobContext, activate, deactivate
from django_pgjobs.decisions import Decision, Failure
from django_pgjobs.definition.next_step import Next
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import (
    AttemptsExhausted,
    DeadlinePassed,
    InvalidJob,
    UnknownJob,
    UnreadablePayload,
    UnstorableResult,
)
from django_pgjobs.execution import events
from django_pgjobs.execution.failed_attempts import (
    TOO_LATE,
    besides_suspension,
    failed,
    failure_of,
)
from django_pgjobs.execution.idempotency import arecalled, recalled
from django_pgjobs.execution.prepared import (
    UNGUARDED,
    Definition,
    Guard,
    MemoryOpener,
    Prepared,
    Recall,
    ReporterOf,
    RunControl,
    Transaction,
)
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.failures import OUR_FILES, Account, clean, kind_of, text_of
from django_pgjobs.serialization.payload import (
    PLAIN,
    Unstored,
    check_has_run,
    decode_result,
    encode_result,
    unstored,
)
from django_pgjobs.states import EXPIRED, ON_CANCEL, ON_SUCCESS, Cause
from django_pgjobs.store.claiming import ClaimedJob

OUR_FILES.update((__file__, middleware.__file__))

NOTHING = decide.Succeeded()
NOT_STARTED = "The job's deadline had passed before the attempt could start, so it did not run."
NOT_DECLARED = (
    "Worker code knows no job of this name; workers import jobs.py of each app and the modules of MODULES, and find "
    "tasks if TASKS names PgJobsBackend."
)
HIDDEN_LAYER = (
    'PGJOBS["MIDDLEWARE"]: a layer returned a coroutine that is never awaited, so the job in it has not run: mark its '
    "factory with Django's async_only_middleware or sync_and_async_middleware, and hide no async layer in a plain one."
)

History = Callable[[int], Failure | None]
"""Takes a job's id, returns how its latest attempt failed; None if the history has no attempt."""


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
    extras, is_body = job.extras, job.ending is None
    if (extras is not None or job.attempt > job.max_attempts) and is_body:
        decision = _before_its_start(job)
        if decision is not None:
            return decision
    try:
        args, kwargs = definition._load(job.payload or "")
        prepared = Prepared(definition, job, args, kwargs, control, guard, reporter_of)
        if job.headers:
            prepared.headers = decode_result(job.headers)
        if extras is not None:
            prepared.recall = recall
        if not is_body and job.error and job.kind != ON_SUCCESS:
            prepared.error = _ended_by(job.id, job.error, history)
    except UnreadablePayload as error:
        return _unreadable(job, definition, error)
    if definition.atomic or definition._is_built_in:
        prepared.transaction = transaction
    prepared.memories = memories
    return prepared


def _ended_by(job_id: int, summary: str, history: History | None) -> Failure:
    """Return the error that ``summary``, stored with the job, sums up; only that line if the history has no more.

    The latest attempt in the history may have ended in another way, such as a release. Raises nothing.
    """
    failure = None
    try:
        failure = None if history is None else history(job_id)
    except Exception as error:
        words = one_line(text_of(error))
        log.warning("history cannot be read, a callback gets one line of its error job=%d: %s", job_id, words)
    return failure if failure is not None and failure.summary == summary else Failure("", summary)


def _before_its_start(job: ClaimedJob) -> Decision | None:
    """Return the decision about a job that must not start any more."""
    if job.attempt > job.max_attempts:
        log.error("job abandoned %s: no attempt was left before it started", events.facts(job))
        return decide.Abandoned("attempts exhausted", failure_of(AttemptsExhausted()), cause=None)
    now = clock.monotonic()
    if job.expires is not None and now >= job.expires:
        return decide.Cancelled(EXPIRED)
    if job.until is not None and now >= job.until:
        log.error("job abandoned %s: its deadline had passed before it started", events.facts(job))
        return decide.Abandoned(TOO_LATE, failure_of(DeadlinePassed(NOT_STARTED)), Cause.TIMEOUT)
    return None


def _unreadable(job: ClaimedJob, definition: Definition, error: UnreadablePayload) -> Decision:
    if job.kind != ON_CANCEL:
        events.parked(job, f"{error} It resumes when a worker has code that accepts its arguments.")
        return decide.Parked(clean(str(error)), definition._fingerprint)
    # A cancelled job is never parked: its worker would mark it for this callback again and again.
    log.error("callback cannot run, the job ends without it callback=%s %s: %s", job.kind, events.facts(job), error)
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
        if prepared.memory is not None:
            prepared.memory.close_walks(besides_suspension(error))
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
        if prepared.memory is not None:
            await sync_to_async(prepared.memory.close_walks)(besides_suspension(error))
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


def _call(prepared: Prepared) -> object:
    """Call the body inside the middleware; without any, as in most projects, call it directly."""
    definition = prepared.definition
    if get_conf().middleware:
        around = middleware.lenient if definition._is_built_in else middleware.chain
        return _of_layers(prepared.guard.call(around(_body(prepared)), prepared.context))
    if definition.takes_context:
        value = prepared.guard.call(definition.func, prepared.context, *prepared.args, **prepared.kwargs)
    else:
        value = prepared.guard.call(definition.func, *prepared.args, **prepared.kwargs)
    if value is not None and _is_awaitable(value):  # a plain decorator hides that the function is async
        return prepared.guard.call(value_of, value)
    return value


def _of_layers(value: object) -> object:
    """Return what the outermost layer returned. Raises ``ImproperlyConfigured`` if that is never awaited."""
    if not _is_awaitable(value):
        return value
    if inspect.iscoroutine(value):
        value.close()
    raise ImproperlyConfigured(HIDDEN_LAYER)


def _body(prepared: Prepared) -> Callable[[JobContext], object]:
    definition, args, kwargs = prepared.definition, prepared.args, prepared.kwargs
    if definition.takes_context:
        return lambda context: value_of(definition.func(context, *args, **kwargs), keep=definition.is_async)
    return lambda _context: value_of(definition.func(*args, **kwargs), keep=definition.is_async)


def _is_awaitable(value: object) -> bool:
    """Return whether a value can be awaited. Asks its type alone: a job's value may raise at any other question."""
    return type(value) not in PLAIN and inspect.getattr_static(type(value), "__await__", None) is not None


def value_of(value: object, *, keep: bool = False) -> object:
    """Return what a body returned, or what that comes to if it is awaitable; with ``keep`` the caller awaits it."""
    return async_to_sync(awaited)(value) if not keep and _is_awaitable(value) else value


async def _acall(prepared: Prepared) -> object:
    return _of_layers(await prepared.guard.acall(middleware.async_chain(_abody(prepared)), prepared.context))


def _abody(prepared: Prepared) -> Callable[[JobContext], Awaitable[object]]:
    call = _body(prepared)

    async def body(context: JobContext) -> object:
        return await awaited(call(context))

    return body


def _callback(prepared: Prepared) -> Decision:
    """Run ``on_success``, ``on_abandon`` or ``on_cancel``. An error in it is logged and does not change the outcome."""
    job, definition, context = prepared.job, prepared.definition, prepared.context
    func: Callable[..., object] | None = getattr(definition, f"_{job.kind}_func")
    if func is None:
        return decide.Succeeded()
    token = activate(prepared)
    try:
        _of_layers(prepared.guard.call(middleware.chain(_call_back(func, prepared)), context))
    except BaseException as error:
        info, trace = Account(error).for_log()
        words = f"{kind_of(error)}: {text_of(error)}{trace}"
        log.error("callback failed callback=%s %s: %s", job.kind, events.facts(context), words, exc_info=info)
    finally:
        deactivate(token)
    return decide.Succeeded()


def _call_back(func: Callable[..., object], prepared: Prepared) -> Callable[[JobContext], None]:
    def call(context: JobContext) -> None:
        answer = func(context, *prepared.args, **prepared.kwargs)
        if inspect.isawaitable(answer):
            async_to_sync(awaited)(answer)
        else:
            check_has_run("The callback", answer)

    return call


async def awaited(value: Any) -> object:
    """Return what a value comes to in the end: what an ``async def`` function returns may have to be awaited again."""
    while _is_awaitable(value):
        value = await value
    return value


def _success(prepared: Prepared, value: object) -> decide.Succeeded | decide.Stepped:
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
        return decide.Succeeded(encode_result(value, get_conf().bounds.result_bytes))
    except UnstorableResult as error:
        if prepared.definition.strict_results:
            raise
        events.result_dropped(prepared.job.name, prepared.job.id, str(error))
        return decide.Succeeded(unstored(str(error)))


async def _asuccess(prepared: Prepared, value: object) -> decide.Succeeded | decide.Stepped:
    if prepared.memory is not None:
        prepared.memory.check_not_swallowed()
    if type(value) is Next:  # the keys of limits are the project's code, and may ask the database
        return await sync_to_async(_next)(value)
    return _success(prepared, value)


def _next(value: Next) -> decide.Stepped:
    try:
        return decide.Stepped(value.step.name, value.step._stored())
    except InvalidJob as error:
        raise UnstorableResult(f"The next step cannot be stored: {error}") from error
