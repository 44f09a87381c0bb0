"""Spans and reports as a project's executors send them, kept in a file: nothing arrives before somebody flushes.

``PGJOBS_TEST_TRACING`` is ``file``; ``hangs`` for a collector that does not answer; ``raises`` for an exporter's bug.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import sentry_sdk
from django.http import HttpRequest, HttpResponse
from django.urls import path
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.transport import Transport

from django_pgjobs import Backoff, JobContext, job
from tests.e2e import stage

NEVER_MILLIS = 3_600_000


def write(kind: str, facts: dict[str, Any]) -> None:
    """Append one line in one write, so that lines of several processes never mix."""
    fd = os.open(stage.here().path / kind, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{json.dumps(facts)}\n".encode())
    finally:
        os.close(fd)


def facts_of(span: Any) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace": span.context.trace_id,
        "id": span.context.span_id,
        "parent": None if span.parent is None else span.parent.span_id,
        "links": [link.context.span_id for link in span.links],
        "start": span.start_time,
        "attributes": dict(span.attributes),
    }


class FileExporter(SpanExporter):
    def __init__(self, how: str) -> None:
        self.how = how

    def export(self, spans: Sequence[Any]) -> Any:
        if self.how == "hangs":
            threading.Event().wait()
        if self.how == "raises":
            raise RuntimeError("a bug of the exporter")
        for span in spans:
            write("spans", facts_of(span))
        return SpanExportResult.SUCCESS


class FileTransport(Transport):
    """Delivers when it is flushed, not before; the SDK's own callback at exit comes too late."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.kept: list[Any] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.kept.append(envelope)

    def flush(self, timeout: float, callback: Any = None) -> None:
        while self.kept:
            for item in self.kept.pop(0).items:
                write("events", json.loads(item.get_bytes()))


def set_up() -> None:
    in_executor = "executor" in sys.argv
    provider = TracerProvider(shutdown_on_exit=not in_executor)
    how = os.environ["PGJOBS_TEST_TRACING"]
    provider.add_span_processor(BatchSpanProcessor(FileExporter(how), schedule_delay_millis=NEVER_MILLIS))
    trace.set_tracer_provider(provider)
    if in_executor:
        sentry_sdk.init(dsn="http://key@localhost/1", transport=FileTransport, default_integrations=False)


@job(takes_context=True, max_attempts=2, backoff=Backoff(0))
def ordered(context: JobContext, key: str) -> None:
    """Fails at first; then has a child job pack the order."""
    if context.attempt == 1:
        raise LookupError("the first attempt")
    packed.register(key)


@job
async def packed(key: str) -> None:
    stage.here().note("packed", key)


def order(request: HttpRequest) -> HttpResponse:
    """A view as an instrumented one is: it continues the trace of the browser, and registers a job."""
    inside = propagate.extract({name.lower(): value for name, value in request.headers.items()})
    with trace.get_tracer("shop").start_as_current_span("POST /order", context=inside):
        return HttpResponse(str(ordered.register("one").pk))


urlpatterns = [path("order", order)]
