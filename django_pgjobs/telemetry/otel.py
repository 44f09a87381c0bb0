"""Traces by OpenTelemetry: ``PGJOBS["MIDDLEWARE"] = ["django_pgjobs.telemetry.otel.tracing"]``.

``tracing``: a PRODUCER span for each registration, whose W3C context travels in the job's headers, and a CONSUMER span
for each attempt and callback, child of that span and linked to it. ``linking``: the same, but each attempt begins a
trace of its own that is only linked. ``duties``: a span for each turn of a maintenance duty.

The span of an attempt ends when the decision about it is known: after the commit of an atomic job, before the outcome
is stored. A killed attempt leaves none. Needs the extra ``otel``; the SDK and its exporters are the project's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured, MiddlewareNotUsed
from django.utils.decorators import sync_and_async_middleware

from django_pgjobs.execution.failed_attempts import failure_of
from django_pgjobs.serialization.failures import kind_of
from django_pgjobs.signals import attempt_ended
from django_pgjobs.telemetry.attempts import STEERING, failure_in
from django_pgjobs.telemetry.quietly import flush_when_leaving, quietly
from django_pgjobs.telemetry.texts import line, lines

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
except ImportError as error:
    raise ImproperlyConfigured(
        f"traces need OpenTelemetry's API ({error}): install django-pgjobs[otel], and an SDK to send them"
    ) from error

if TYPE_CHECKING:
    from django_pgjobs.context import JobContext
    from django_pgjobs.decisions import Decision, Failure
    from django_pgjobs.middleware import Registration

TOOL = "OpenTelemetry"
SYSTEM = "pgjobs"

HEADER_LIMIT = 8192
"""Characters of one propagated header: what the W3C allows for baggage. Longer ones are left out."""

_open: WeakKeyDictionary[JobContext, Any] = WeakKeyDictionary()
"""The spans of attempts whose decision is not known yet."""


def _tracer() -> Any:
    return _tracer_of(trace.get_tracer_provider())


@lru_cache(1)
def _tracer_of(provider: Any) -> object:
    return provider.get_tracer("django_pgjobs")  # an SDK takes microseconds for each


# Where jobs are registered


def _capture() -> dict[str, str]:
    carrier: dict[str, object] = {}
    with quietly(TOOL):
        propagate.inject(carrier)
    return _readable(carrier)


def _readable(carrier: Mapping[str, object]) -> dict[str, str]:
    """Return the values that are text of a sensible length: every writer of rows can choose headers."""
    return {
        key: value
        for key, value in carrier.items()
        if isinstance(value, str) and len(value) <= HEADER_LIMIT and "\0" not in value
    }


@contextmanager
def _registering(registration: Registration) -> Iterator[None]:
    span = trace.INVALID_SPAN
    with quietly(TOOL):
        span = _tracer().start_span(
            _registered_as(registration),
            kind=trace.SpanKind.PRODUCER,
            attributes={**_messaging("register", "send", registration.queue), **_named(registration.name)},
        )
    # An invalid span, made current, would cut jobs off the current trace.
    current = span if span.get_span_context().is_valid else trace.get_current_span()
    try:
        with trace.use_span(current, record_exception=False, set_status_on_exception=False):
            yield
    except BaseException as error:
        with quietly(TOOL):
            _mark_failed(span, kind_of(error))
        raise
    finally:
        with quietly(TOOL):
            _complete(span, registration)
            span.end()


def _complete(span: Any, registration: Registration) -> None:
    span.update_name(_registered_as(registration))
    span.set_attributes(
        {**_messaging("register", "send", registration.queue, registration.job), **_named(registration.name)}
    )
    if registration.job is None:
        span.set_attribute("messaging.batch.message_count", registration.count)
    else:
        span.set_attribute("pgjobs.is_new", registration.count > 0)


def _registered_as(registration: Registration) -> str:
    return f"register {line(registration.name)}" if registration.name else "register"


def _named(name: str) -> dict[str, object]:
    return {"pgjobs.name": line(name)} if name else {}


def _messaging(operation: str, kind: str, queue: str, job: int | None = None) -> dict[str, object]:
    """Return the attributes of the semantic conventions for messaging."""
    found: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if queue:
        found |= {"messaging.destination.name": line(queue), "pgjobs.queue": line(queue)}
    if job is not None:
        found |= {"messaging.message.id": str(job), "pgjobs.job": job}
    return found


# Where jobs run


def _begin(context: JobContext, *, follows: bool) -> tuple[Any, Any]:
    """Return the span of an attempt or callback, and the context in which its code runs."""
    carried = propagate.extract(_readable(context.headers), context=contexts.Context())
    origin = trace.get_current_span(carried).get_span_context()
    span = _tracer().start_span(
        f"{context.callback or 'attempt'} {line(context.name)}",
        context=carried if follows else contexts.Context(),
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(origin)] if origin.is_valid else [],
        attributes=_facts(context),
    )
    return span, trace.set_span_in_context(span, carried)


def _facts(context: JobContext) -> dict[str, object]:
    facts = {
        **_messaging(context.callback or "attempt", "process", context.queue, context.id),
        **_named(context.name),
        "pgjobs.attempt": context.attempt,
        "pgjobs.max_attempts": context.max_attempts,
        "pgjobs.claim": line(context.claim_id),
    }
    if context.cron_entry is not None:
        facts["pgjobs.cron"] = line(context.cron_entry)
    return facts


@contextmanager
def _span(context: JobContext, *, follows: bool) -> Iterator[None]:
    """Run the block in a new span. That of a callback ends here, that of an attempt in ``_end``."""
    span, token = trace.INVALID_SPAN, None
    with quietly(TOOL):
        span, inside = _begin(context, follows=follows)
        token = contexts.attach(inside)
    if not context.callback:
        _open[context] = span
    try:
        yield
    except BaseException as error:
        if context.callback:
            with quietly(TOOL):
                _record_error(span, error)
        raise
    finally:
        with quietly(TOOL):
            if token is not None:
                contexts.detach(token)
            if context.callback:
                span.end()


def _record_error(span: object, error: BaseException) -> None:
    if not issubclass(type(error), STEERING):
        _record(span, failure_of(error))


def _end(*, context: JobContext, decision: Decision, exception: BaseException | None, **_: object) -> None:
    """End the span of an attempt; a receiver of ``attempt_ended``."""
    span = _open.pop(context, None)
    if span is None:
        return
    with quietly(TOOL):
        try:
            span.set_attribute("pgjobs.outcome", decision.outcome)
            failure = failure_in(decision, exception)
            if failure is not None:
                _record(span, failure)
        finally:
            span.end()


def _record(span: Any, failure: Failure) -> None:
    span.add_event(
        "exception",
        {
            "exception.type": line(failure.kind),
            "exception.message": lines(failure.message),
            "exception.stacktrace": lines(failure.traceback),
        },
    )
    _mark_failed(span, failure.kind, failure.summary)


def _mark_failed(span: Any, kind: str, words: str = "") -> None:
    span.set_attribute("error.type", line(kind))
    span.set_status(trace.Status(trace.StatusCode.ERROR, line(words or kind)))


def _layer(run: Any, *, follows: bool) -> object:
    attempt_ended.connect(_end, dispatch_uid="django_pgjobs.telemetry.otel")
    flush_when_leaving(TOOL, _flush)
    if iscoroutinefunction(run):

        async def around_async(context: JobContext) -> object:
            with _span(context, follows=follows):
                return await run(context)

        return around_async

    def around(context: JobContext) -> object:
        with _span(context, follows=follows):
            return run(context)

    return around


def _flush() -> None:
    flush: Callable[[], object] | None = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is not None:  # the API's own provider has nothing to flush
        flush()


@sync_and_async_middleware
def tracing(run: object) -> object:
    """Continue the trace of the code that registered the job: a factory for ``PGJOBS["MIDDLEWARE"]``."""
    return _layer(run, follows=True)


@sync_and_async_middleware
def linking(run: object) -> object:
    """Begin a trace for each attempt, linked to the one that registered the job: a factory like ``tracing``."""
    return _layer(run, follows=False)


_each: Any
for _each in (tracing, linking):
    _each.capture = _capture
    _each.registering = _registering


# Duties


@sync_and_async_middleware
def duties(run: object) -> object:
    """Make a span of each turn of a maintenance duty, and nothing of jobs: a factory for ``PGJOBS["MIDDLEWARE"]``."""
    raise MiddlewareNotUsed


@contextmanager
def _duty(name: str) -> Iterator[None]:
    words = name.replace(" ", "_")
    span = _tracer().start_span(f"maintenance.{words}", attributes={"pgjobs.duty": words})
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield
    except BaseException as error:
        _mark_failed(span, kind_of(error))
        raise
    finally:
        span.end()


duties.duty = _duty  # type: ignore[attr-defined]
