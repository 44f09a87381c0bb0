"""Traces, by the real SDK with an exporter in memory: registrations, attempts, callbacks and duties."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from django.db import DatabaseError, connection, transaction
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from django_pgjobs import Backoff, Cancel, JobContext, Snooze, job
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.maintenance.duties import TimedDuty
from django_pgjobs.models import Job
from django_pgjobs.telemetry import otel, quietly
from django_pgjobs.testing import replay, run_jobs
from tests.db.otel_ground import Spans, follows, is_linked

pytestmark = pytest.mark.usefixtures("committed")

SECRET = "5eCr3t-0f-the-c4ller"
HOSTILE = "a\nname=forged \u202e\x1b[31m\x7f" + "x" * 10_000_000

NOW = Backoff(0)
OUTSIDE = trace.SpanContext(7, 8, is_remote=False, trace_flags=trace.TraceFlags(1))

told: list[Any] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    told.clear()
    quietly._complained.clear()


@pytest.fixture
def spans(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Spans:
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": ["django_pgjobs.telemetry.otel.tracing"]}
    return Spans(monkeypatch)


@job(name="otel.plain", takes_context=True, backoff=NOW, max_attempts=3)
def plain(context: JobContext, how: str = "", again: int = 0) -> str:
    told.append((trace.get_current_span().get_span_context().span_id, baggage.get_baggage("tenant")))
    with trace.get_tracer("tests").start_as_current_span("work"):
        if how and context.attempt > again:
            HOWS[how]()
    if context.attempt <= again:
        raise LookupError("not yet")
    return SECRET


@plain.on_success
def pleased(context: JobContext, how: str = "", again: int = 0) -> None:
    if how == "callback fails":
        raise LookupError("pleased too early")


@plain.on_abandon
def sorry(context: JobContext, how: str = "", again: int = 0) -> None: ...


@plain.on_cancel
def dropped(context: JobContext, how: str = "", again: int = 0) -> None: ...


@job(name="otel.aplain", backoff=NOW, max_attempts=3)
async def aplain(how: str = "") -> None:
    await asyncio.sleep(0)
    told.append(trace.get_current_span().get_span_context().span_id)
    await plain.aregister()
    if how:
        HOWS[how]()


@job(name="otel.parent")
def parent(secret: str = "") -> None:
    plain.register(again=1)
    plain.register_many([(), ()])


@job(name="otel.atomic", atomic=True, max_attempts=1)
def atomically(how: str = "") -> None:
    if how:
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        transaction.set_rollback(True)


def _raises(error: BaseException) -> Any:
    def fail() -> Any:
        raise error

    return fail


class Hostile(Exception):
    def __str__(self) -> str:
        return HOSTILE + "\0"


HOWS: dict[str, Any] = {
    "fails": _raises(LookupError("no such thing")),
    "snoozes": _raises(Snooze(60)),
    "cancels": _raises(Cancel("enough")),
    "hostile": _raises(Hostile()),
    "callback fails": lambda: None,
}


# A job's trace


def test_a_registration_and_its_attempt_are_one_trace(spans: Spans) -> None:
    with trace.get_tracer("tests").start_as_current_span("request") as request:
        registered = plain.using(queue="mail").register()
    run_jobs()
    assert spans.names() == ["request", "register otel.plain", "attempt otel.plain", "work", "on_success otel.plain"]
    _, register, attempt, work, callback = spans.all()
    assert register.parent.span_id == request.get_span_context().span_id
    assert follows(attempt, register)
    assert is_linked(attempt, register)
    assert follows(work, attempt)
    assert follows(callback, register)
    assert is_linked(callback, register)
    assert told[0][0] == attempt.context.span_id
    assert (register.kind, attempt.kind, callback.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CONSUMER)
    common = {
        "messaging.system": "pgjobs",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(registered.pk),
        "pgjobs.job": registered.pk,
        "pgjobs.name": "otel.plain",
        "pgjobs.queue": "mail",
    }
    assert register.attributes == {
        **common,
        "messaging.operation.name": "register",
        "messaging.operation.type": "send",
        "pgjobs.is_new": True,
    }
    ran = {"messaging.operation.type": "process", "pgjobs.attempt": 1, "pgjobs.max_attempts": 3}
    claim = attempt.attributes["pgjobs.claim"]
    assert attempt.attributes == {
        **common, **ran, "messaging.operation.name": "attempt", "pgjobs.claim": claim, "pgjobs.outcome": "succeeded",
    }  # fmt: skip
    assert callback.attributes == {
        **common, **ran, "messaging.operation.name": "on_success", "pgjobs.claim": callback.attributes["pgjobs.claim"],
    }  # fmt: skip
    assert len(claim) == 36
    assert {span.status.status_code for span in spans.all()} == {StatusCode.UNSET}


def test_every_retry_follows_the_same_registration(spans: Spans) -> None:
    plain.register(again=2)
    run_jobs()
    register = spans.one("register otel.plain")
    attempts = [span for span in spans.all() if span.name == "attempt otel.plain"]
    assert [span.attributes["pgjobs.outcome"] for span in attempts] == ["retried", "retried", "succeeded"]
    assert [span.attributes["pgjobs.attempt"] for span in attempts] == [1, 2, 3]
    assert all(follows(span, register) and is_linked(span, register) for span in attempts)
    failed = attempts[0]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "LookupError: not yet"
    assert failed.attributes["error.type"] == "LookupError"
    (event,) = failed.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "LookupError"
    assert event.attributes["exception.message"] == "not yet"
    assert event.attributes["exception.stacktrace"].startswith("Traceback")
    assert attempts[2].status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("definition", [parent, aplain], ids=["sync", "async"])
def test_jobs_that_a_job_registers_continue_its_trace(spans: Spans, definition: Any) -> None:
    definition.register()
    run_jobs()
    own = spans.one(f"attempt {definition.name}")
    registrations = [span for span in spans.all() if span.name == "register otel.plain"]
    assert len(registrations) == (2 if definition is parent else 1)
    assert all(follows(span, own) for span in registrations)
    children = [span for span in spans.all() if span.name == "attempt otel.plain"]
    assert children
    assert all(any(follows(child, span) for span in registrations) for child in children)
    assert len({span.context.trace_id for span in spans.all()}) == 1


def test_many_registrations_are_one_span(spans: Spans) -> None:
    plain.register_many([(), (), ()])
    (span,) = spans.all()
    assert span.name == "register otel.plain"
    assert span.attributes["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in span.attributes
    run_jobs()
    assert sum(follows(attempt, span) for attempt in spans.all() if attempt.name == "attempt otel.plain") == 3


def test_baggage_travels_to_the_job(spans: Spans) -> None:
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        plain.register()
    finally:
        context.detach(token)
    run_jobs()
    assert told[0][1] == "acme"


def test_linked_jobs_begin_traces_of_their_own(spans: Spans, settings: Any) -> None:
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": ["django_pgjobs.telemetry.otel.linking"]}
    plain.register(again=1)
    run_jobs()
    register = spans.one("register otel.plain")
    attempts = [span for span in spans.all() if span.name == "attempt otel.plain"]
    assert [span.parent for span in attempts] == [None, None]
    assert len({span.context.trace_id for span in [register, *attempts]}) == 3
    assert all(is_linked(span, register) for span in attempts)


# How attempts end


@pytest.mark.parametrize(
    ("how", "outcome", "callback"), [("snoozes", "snoozed", ""), ("cancels", "cancelled", "on_cancel otel.plain")]
)
def test_steering_is_no_error(spans: Spans, how: str, outcome: str, callback: str) -> None:
    plain.register(how)
    run_jobs()
    attempt = spans.one("attempt otel.plain")
    assert attempt.attributes["pgjobs.outcome"] == outcome
    assert (attempt.status.status_code, attempt.events) == (StatusCode.UNSET, ())
    assert not callback or callback in spans.names()


@pytest.mark.parametrize("definition", [plain, aplain], ids=["sync", "async"])
def test_the_last_failure_abandons(spans: Spans, definition: Any) -> None:
    definition.using(max_attempts=1).register("fails")
    run_jobs()
    attempt = spans.one(f"attempt {definition.name}")
    assert attempt.attributes["pgjobs.outcome"] == "abandoned"
    assert attempt.attributes["error.type"] == "LookupError"
    assert attempt.status.status_code is StatusCode.ERROR


def test_what_fails_behind_the_body_is_in_the_span(spans: Spans) -> None:
    """An atomic job whose transaction cannot be committed has failed, though every layer saw it succeed."""
    atomically.register("rolls back")
    run_jobs()
    attempt = spans.one("attempt otel.atomic")
    assert attempt.attributes["pgjobs.outcome"] == "abandoned"
    assert attempt.attributes["error.type"] == "django_pgjobs.exceptions.RolledBack"


def test_an_error_in_a_callback_is_in_its_span(spans: Spans) -> None:
    plain.register("callback fails")
    run_jobs()
    callback = spans.one("on_success otel.plain")
    assert callback.attributes["error.type"] == "LookupError"
    assert callback.events[0].attributes["exception.message"] == "pleased too early"
    assert callback.status.status_code is StatusCode.ERROR


def test_a_replay_leaves_nothing_behind(spans: Spans) -> None:
    plain.register()
    run_jobs()
    replay(Job.objects.get())
    gc.collect()
    assert len(otel._open) == 0


# What must never be there, and what must never break


def test_arguments_and_results_are_in_no_span(spans: Spans) -> None:
    """Nor what the database says of a row that it refuses."""
    parent.register(SECRET)
    with pytest.raises(InvalidJob):
        plain.register(object())  # type: ignore[arg-type]
    run_jobs()
    assert not [span.name for span in spans.all() if SECRET in span.to_json()]
    refused = [span for span in spans.all() if span.attributes.get("error.type")]
    assert [(span.status.description, span.events) for span in refused if span.kind is SpanKind.PRODUCER] == [
        ("django_pgjobs.exceptions.InvalidJob", ())
    ]


def test_hostile_errors_are_bounded_and_escaped(spans: Spans) -> None:
    plain.using(max_attempts=1).register("hostile")
    run_jobs()
    attempt = spans.one("attempt otel.plain")
    text = attempt.to_json()
    assert len(text) < 100_000
    for mark in ("\u202e", "\\u202e", "\\u001b[", "\\u0000", "\\u007f"):
        assert mark not in text.replace("\\\\", "")
    assert "\n" not in attempt.status.description


def test_hostile_names_and_queues_are_bounded_and_escaped(spans: Spans) -> None:
    with otel._registering(otel_registration(HOSTILE)):
        pass
    (span,) = spans.all()
    assert len(span.name) <= 210
    assert "\n" not in span.name
    assert "\u202e" not in span.name
    assert span.attributes["pgjobs.queue"] == span.attributes["messaging.destination.name"]
    assert len(span.attributes["pgjobs.queue"]) <= 200


def otel_registration(text: str) -> Any:
    from django_pgjobs.middleware import Registration

    return Registration(text, text)


@pytest.mark.parametrize(
    "header",
    [
        "", "x" * 100_000, "00-zz-zz-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", 7, None, ["00-a"], {"a": 1},
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "\u202e\n", 1.5, True,
    ],
)  # fmt: skip
def test_a_broken_header_is_ignored(spans: Spans, header: Any) -> None:
    """Anybody who may write rows may write headers; the job runs, in a trace of its own."""
    registered = plain.register()
    Job.objects.filter(pk=registered.pk).update(
        headers={"traceparent": header, "tracestate": header, "baggage": header}
    )
    run_jobs()
    attempt = spans.one("attempt otel.plain")
    assert (attempt.parent, attempt.links) == (None, ())
    assert Job.objects.get(pk=registered.pk).outcome == "succeeded"
    assert told[0][1] is None
    assert not quietly._complained


def test_a_propagator_that_writes_nonsense_loses_it(spans: Spans) -> None:
    class Nonsense:
        fields: set[str] = set()

        def inject(self, carrier: Any, *args: Any, **kwargs: Any) -> None:
            carrier.update({"nul": "a\0b", "long": "x" * 9000, "object": object(), "good": "one"})

    before = propagate.get_global_textmap()
    propagate.set_global_textmap(cast("Any", Nonsense()))
    try:
        assert plain.register().headers == {"good": "one"}
    finally:
        propagate.set_global_textmap(before)


class Breaking(Sampler):
    def should_sample(self, parent_context: Any, trace_id: int, name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "work":
            return ALWAYS_ON.should_sample(parent_context, trace_id, name, *args, **kwargs)
        raise RuntimeError("a sampler's bug")

    def get_description(self) -> str:
        return "breaks"


def test_an_sdk_that_raises_costs_one_log_line_and_no_job(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    spans.provider.sampler = Breaking()
    registered = [plain.register(), aplain.register()]
    run_jobs()
    assert set(Job.objects.filter(pk__in=[each.pk for each in registered]).values_list("outcome", flat=True)) == {
        "succeeded"
    }
    with trace.use_span(trace.NonRecordingSpan(OUTSIDE)):
        assert (plain.register().headers or {})["traceparent"] == f"00-{7:032x}-{8:016x}-01", "it is passed on"
    lines = [message for message in caplog.messages if "OpenTelemetry" in message]
    assert lines == ["OpenTelemetry failed, jobs continue without it"]


def test_a_trace_that_is_not_sampled_is_passed_on(spans: Spans) -> None:
    spans.provider.sampler = ALWAYS_OFF
    registered = plain.register()
    run_jobs()
    assert spans.all() == []
    assert not int((registered.headers or {})["traceparent"][-2:], 16) & trace.TraceFlags.SAMPLED


def test_without_an_sdk_a_trace_passes_through(settings: Any) -> None:
    """The API alone: a trace that another library carries reaches the job, and nothing else happens."""
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": ["django_pgjobs.telemetry.otel.tracing"]}
    with trace.use_span(trace.NonRecordingSpan(OUTSIDE)):
        registered = plain.register()
    assert (registered.headers or {})["traceparent"] == f"00-{7:032x}-{8:016x}-01"
    run_jobs()
    assert Job.objects.get().outcome == "succeeded"
    assert plain.register().headers is None


# Duties


@contextmanager
def with_duties(settings: Any) -> Iterator[None]:
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": ["django_pgjobs.telemetry.otel.duties"]}
    yield


def test_duties_have_spans_where_they_are_wanted(spans: Spans, settings: Any) -> None:
    """W54: and jobs have none by the same path."""
    TimedDuty("rescue", lambda db: None, 60.0).tick(None)
    assert spans.names() == [], "tracing makes none of them"
    with with_duties(settings):
        TimedDuty("claims in doubt", lambda db: None, 60.0).tick(None)
        plain.register()
        run_jobs()
    ours = [span for span in spans.all() if span.name.startswith(("register", "attempt"))]
    assert ours == []
    span = spans.one("maintenance.claims_in_doubt")
    assert (span.parent, span.attributes) == (None, {"pgjobs.duty": "claims_in_doubt"})


def test_a_duty_that_fails_has_the_kind_of_its_error_and_no_row(spans: Spans, settings: Any) -> None:
    def fail(db: Any) -> None:
        raise DatabaseError(f"Failing row contains ({SECRET})")

    with with_duties(settings), pytest.raises(DatabaseError):
        TimedDuty("rescue", fail, 60.0).tick(None)
    span = spans.one("maintenance.rescue")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "django.db.utils.DatabaseError"
    assert SECRET not in span.to_json()
