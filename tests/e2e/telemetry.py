"""Libraries that keep what they were given until their process ends, set up as a project would; and what hinders them.

``PGJOBS_TEST_LEAVING`` names, separated by commas, what ``AppConfig.ready()`` sets up where jobs run.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sentry_sdk.transport import Transport

from django_pgjobs import signals
from django_pgjobs.worker.executor import lifecycle
from tests.e2e import stage

NEVER_SECONDS = 3600.0


class LateTransport(Transport):
    """Delivers to the stage when it is flushed, not before."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.kept: list[Any] = []

    def capture_envelope(self, envelope: Any) -> None:
        if event := envelope.get_event():
            self.kept.append(event)

    def flush(self, timeout: float, callback: Any = None) -> None:
        while self.kept:
            event = self.kept.pop(0)
            errors = event.get("exception", {}).get("values", [])
            stage.here().note("sentry", errors[-1]["value"] if errors else event.get("message", "a log line"))


class NotingExporter(InMemorySpanExporter):
    """Tells at its end which spans have arrived."""

    def shutdown(self) -> None:
        for span in self.get_finished_spans():
            stage.here().note("span", span.name)
        super().shutdown()


def _sentry() -> None:
    sentry_sdk.init(dsn="http://key@localhost/1", transport=LateTransport)


def _opentelemetry() -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(NotingExporter(), schedule_delay_millis=NEVER_SECONDS * 1000))
    trace.set_tracer_provider(provider)


def _hang(**_: object) -> None:
    stage.here().note("hangs")
    threading.Event().wait()


def _leave(**_: object) -> None:
    raise SystemExit("a receiver that leaves")


def _started(sender: object, database: str, threads: int, async_slots: int, **_: object) -> None:
    stage.here().note("executor_started", sender, database, threads, async_slots)


def _stopping(sender: object, reason: str, **_: object) -> None:
    stage.here().note("executor_stopping", sender, reason)


def _signals() -> None:
    signals.executor_started.connect(_started)
    signals.executor_stopping.connect(_stopping)
    atexit.register(lambda: stage.here().note("atexit"))


def _receivers(receiver: Callable[..., None]) -> Callable[[], None]:
    def connect() -> None:
        signals.executor_started.connect(receiver)
        signals.executor_stopping.connect(receiver)

    return connect


class _StuckHandler(logging.Handler):
    """Hangs where it is closed, with its lock held, as one does whose other end is gone."""

    def emit(self, record: logging.LogRecord) -> None: ...

    def close(self) -> None:
        _hang()


def _stuck_logging() -> None:
    logging.getLogger("django_pgjobs").addHandler(_StuckHandler())


def _callbacks(callback: Callable[[], None]) -> Callable[[], None]:
    def register() -> None:
        atexit.register(callback)

    return register


def _short() -> None:
    lifecycle.EXIT_SECONDS, lifecycle.STARTED_SECONDS = 2.0, 1.0


WAYS: dict[str, Callable[[], None]] = {
    "sentry": _sentry,
    "opentelemetry": _opentelemetry,
    "signals": _signals,
    "receivers hang": _receivers(_hang),
    "receivers leave": _receivers(_leave),
    "logging hangs": _stuck_logging,
    "callbacks hang": _callbacks(_hang),
    "callbacks raise": _callbacks(_leave),
    "short": _short,
}


LIBRARIES = ("sentry", "opentelemetry")
"""What starts threads, and is therefore set up in each executor, as the documentation says."""

_told = False


def set_up_as_told() -> None:
    ways = os.environ["PGJOBS_TEST_LEAVING"].split(",")
    if {"executor", "--inline"} & set(sys.argv):
        for way in ways:
            WAYS[way]()
        return
    os.register_at_fork(after_in_child=lambda: _set_up_in_template(ways))
    if "short" in ways:
        _short()  # its supervisor reckons with it


def _set_up_in_template(ways: list[str]) -> None:
    """In the worker's first fork: its forks are executors."""
    global _told
    if _told:
        return
    _told = True
    for way in ways:
        if way in LIBRARIES:
            signals.executor_started.connect(lambda way=way, **_: WAYS[way](), weak=False)
        else:
            WAYS[way]()
