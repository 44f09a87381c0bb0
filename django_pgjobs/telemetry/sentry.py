"""Reports to Sentry: ``PGJOBS["MIDDLEWARE"] = ["django_pgjobs.telemetry.sentry.reporting"]``.

Each job has an isolation scope of its own. The exception of a failed attempt is reported when the decision about the
attempt is known: as a warning if the job is retried, else as an error. Jobs of cron entries check in (``checkins``).
Events of a job carry no values of variables and no parameters of queries, since those are its arguments; other reports
of the process to Sentry stay as they are. Needs the extra ``sentry``; the project calls ``sentry_sdk.init``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.utils.decorators import sync_and_async_middleware

from django_pgjobs import decisions as decide
from django_pgjobs import logs
from django_pgjobs.conf import get_conf
from django_pgjobs.serialization.failures import of_the_job
from django_pgjobs.signals import attempt_ended
from django_pgjobs.telemetry import texts
from django_pgjobs.telemetry.attempts import STEERING, failure_in, settled
from django_pgjobs.telemetry.quietly import flush_when_leaving, quietly
from django_pgjobs.telemetry.texts import line

try:
    import sentry_sdk
    from sentry_sdk.integrations.dedupe import DedupeIntegration
    from sentry_sdk.scope import add_global_event_processor, use_isolation_scope
    from sentry_sdk.utils import current_stacktrace, event_from_exception
except ImportError as error:
    raise ImproperlyConfigured(f"reports need Sentry's SDK ({error}): install django-pgjobs[sentry]") from error

from django_pgjobs.telemetry import checkins

if TYPE_CHECKING:
    from django_pgjobs.context import JobContext
    from django_pgjobs.decisions import Decision

TOOL = "Sentry"

FLUSH_SECONDS = 1.0

OUR_LINES = ("job abandoned", "attempt failed", "callback failed")
"""Beginnings of log lines whose exception is reported here, with more facts than Sentry's ``logging`` handler has."""

_scopes: WeakKeyDictionary[JobContext, Any] = WeakKeyDictionary()
"""The scopes of attempts whose decision is not known yet."""


@sync_and_async_middleware
def reporting(run: Any) -> object:
    """Report failed attempts and cron entries to Sentry: a factory for ``PGJOBS["MIDDLEWARE"]``."""
    _connect()
    if iscoroutinefunction(run):

        async def around_async(context: JobContext) -> object:
            with _reported(context):
                return await run(context)

        return around_async

    def around(context: JobContext) -> object:
        with _reported(context):
            return run(context)

    return around


@cache
def _connect() -> None:
    add_global_event_processor(_dress)
    attempt_ended.connect(_end, dispatch_uid="django_pgjobs.telemetry.sentry")
    flush_when_leaving(TOOL, lambda: sentry_sdk.flush(timeout=FLUSH_SECONDS))


@contextmanager
def _reported(context: JobContext) -> Iterator[None]:
    """Run the block in a scope of the job's own."""
    scope = None
    with quietly(TOOL):
        scope = _scope_of(context)
    if scope is None:
        yield
        return
    if context.callback:
        with use_isolation_scope(scope):
            try:
                yield
            except BaseException as error:
                with quietly(TOOL):
                    _capture_from_callback(error)
                raise
        return
    _scopes[context] = scope
    with use_isolation_scope(scope):
        with quietly(TOOL):
            checkins.begin(context)
        yield


def _scope_of(context: JobContext) -> object:
    scope = sentry_sdk.get_isolation_scope().fork()
    scope.clear()
    for key, value in _tags(context).items():
        scope.set_tag(key, value)
    scope.set_transaction_name(line(context.name), source="task")
    scope.add_event_processor(_strip)  # threads that the job starts take it along
    return scope


def _tags(context: JobContext) -> dict[str, str]:
    tags = {
        "pgjobs.name": context.name,
        "pgjobs.job": context.id,
        "pgjobs.attempt": f"{context.attempt}/{context.max_attempts}",
        "pgjobs.claim": context.claim_id,
        "pgjobs.queue": context.queue,
        "pgjobs.worker": context.executor,
        "pgjobs.release": get_conf().release,
        "pgjobs.callback": context.callback,
        "pgjobs.cron": context.cron_entry,
    }
    return {key: line(value) for key, value in tags.items() if value not in (None, "")}


# What is reported


def _end(*, context: JobContext, decision: Decision, exception: BaseException | None, **_: object) -> None:
    """Report an attempt whose decision is known; a receiver of ``attempt_ended``."""
    with quietly(TOOL):
        scope = _scopes.pop(context, None)
        if scope is None:  # its layer was not reached
            scope = _scope_of(context)
        scope.set_tag("pgjobs.outcome", decision.outcome)
        with use_isolation_scope(scope):
            if exception is not None and failure_in(decision, exception) is not None:
                _capture(exception, "warning" if isinstance(settled(decision), decide.Retried) else "error")
            checkins.end(context, decision)


def _capture_from_callback(error: BaseException) -> None:
    if not issubclass(type(error), STEERING):
        _capture(error, "error")


def _capture(error: BaseException, level: str) -> None:
    if texts.is_known(error):
        return  # the job has reported it itself
    event, hint = event_from_exception(
        (type(error), error, of_the_job(error)),
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": "pgjobs", "handled": False},
    )
    event["level"] = level
    # Sentry's handler of ``logging`` may have got it first: that event was dropped, and this one is to stay.
    DedupeIntegration.reset_last_seen()
    sentry_sdk.capture_event(event, hint=hint)


# What events of jobs carry


def _dress(event: Any, hint: Any) -> object:
    """Return an event without what a job keeps to itself; drop what ``_end`` reports. Other events pass unchanged."""
    job = logs.running.get(None)
    if job is None or event.get("type") is not None:
        return event
    if _is_ours((hint or {}).get("log_record")):
        return None
    return _strip(event, hint)


def _is_ours(record: Any) -> bool:
    return record is not None and record.name == "django_pgjobs" and str(record.msg).startswith(OUR_LINES)


def _strip(event: Any, hint: Any) -> object:
    if event.get("type") is not None:
        return event
    texts.remember((hint or {}).get("exc_info"))
    texts.strip(event)
    if sentry_sdk.get_client().options["attach_stacktrace"] and not {"exception", "stacktrace", "threads"} & set(event):
        # Else the SDK adds the stack later, with the values of its variables.
        stack = current_stacktrace(include_local_variables=False)
        stack["frames"] = [frame for frame in stack["frames"] if frame.get("module") != __name__]
        event["threads"] = {"values": [{"stacktrace": stack, "crashed": False, "current": True}]}
    return event
