"""What traces and reports share: bounded texts, errors of tools, flushes with a bound, packages that are missing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.dispatch import Signal

from django_pgjobs import Abandon, Cancel, checks
from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Failure
from django_pgjobs.exceptions import CancelRequested, DeadlinePassed, SoftDeadlinePassed, WorkerStopping
from django_pgjobs.telemetry import quietly as room
from django_pgjobs.telemetry.attempts import failure_in
from django_pgjobs.telemetry.quietly import flush_when_leaving, quietly
from django_pgjobs.telemetry.texts import LINE_LIMIT, line, lines
from tests.plugins.fix_db import patience

FAILURE = Failure("LookupError", "no such thing")


@pytest.fixture(autouse=True)
def leaving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Signal]:
    """A signal of its own, so that no flush outlives its test."""
    signal = Signal()
    monkeypatch.setattr(room, "executor_stopping", signal)
    room._complained.clear()
    yield signal
    room._complained.clear()


# Packages


@pytest.mark.parametrize(
    ("path", "package", "extra"),
    [
        ("django_pgjobs.telemetry.otel.tracing", "opentelemetry", "django-pgjobs[otel]"),
        ("django_pgjobs.telemetry.otel.duties", "opentelemetry", "django-pgjobs[otel]"),
        ("django_pgjobs.telemetry.sentry.reporting", "sentry_sdk", "django-pgjobs[sentry]"),
    ],
)
def test_a_missing_package_is_a_check_error_that_names_the_extra(
    settings: Any, monkeypatch: pytest.MonkeyPatch, path: str, package: str, extra: str
) -> None:
    """``runjobs`` refuses to start with it, and no job is the first to notice."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, path.rpartition(".")[0], raising=False)
    settings.PGJOBS = {"MIDDLEWARE": [path]}
    (error,) = checks.check_middleware()
    assert error.id == "pgjobs.E011"
    assert extra in error.msg


@pytest.mark.parametrize("path", ["otel.tracing", "otel.linking", "otel.duties", "sentry.reporting"])
def test_every_path_leads_to_a_factory(settings: Any, path: str) -> None:
    settings.PGJOBS = {"MIDDLEWARE": [f"django_pgjobs.telemetry.{path}"]}
    assert list(checks.check_middleware()) == []


def test_importing_them_connects_and_starts_nothing() -> None:
    """Only a factory that is called does: a web process that merely registers has no receivers and no threads."""
    script = (
        "import threading, django\n"
        "from django.conf import settings\n"
        "settings.configure()\n"
        "from django_pgjobs import signals\n"
        "import django_pgjobs.telemetry.otel, django_pgjobs.telemetry.sentry\n"
        "from sentry_sdk import scope\n"
        "assert threading.active_count() == 1\n"
        "assert not signals.attempt_ended.receivers and not signals.executor_stopping.receivers\n"
        "assert not scope.global_event_processors\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=patience(60))


# Texts


@pytest.mark.parametrize("text", ["a\nb", "\u202eabc", "\x1b[31m", "nul\0", "\ud800", "\u2028", "x" * 10_000_000, ""])
def test_texts_are_one_bounded_line_that_shows_what_it_is(text: str) -> None:
    shown = line(text)
    assert len(shown) <= LINE_LIMIT
    assert shown.isprintable()
    shown.encode()


def test_texts_of_several_lines_keep_their_beginning_and_their_end() -> None:
    shown = lines("first\n" + "\u202e" * 1_000_000 + "\nlast")
    assert shown.startswith("first\n")
    assert shown.endswith("\nlast")
    assert "\u202e" not in shown
    assert len(shown) < 50_000


# Words of decisions


@pytest.mark.parametrize(
    ("decision", "error", "outcome", "reported"),
    [
        (decide.Succeeded(), None, "succeeded", False),
        (decide.Committed(), None, "succeeded", False),
        (decide.Stepped("pack", "{}"), None, "stepped", False),
        (decide.Retried(1.0, FAILURE), LookupError(), "retried", True),
        (decide.Retried(1.0, FAILURE), DeadlinePassed(), "retried", True),
        (decide.Abandoned("", FAILURE), LookupError(), "abandoned", True),
        (decide.Abandoned("", FAILURE), Abandon("no use"), "abandoned", False),
        (decide.InDoubt(decide.Retried(1.0, FAILURE)), LookupError(), "retried", True),
        (decide.Cancelled("", FAILURE), LookupError(), "cancelled", False),
        (decide.Cancelled(), CancelRequested(), "cancelled", False),
        (decide.Cancelled(), Cancel(), "cancelled", False),
        (decide.Released("", FAILURE), WorkerStopping(), "released", False),
        (decide.Snoozed(5), None, "snoozed", False),
        (decide.Lost(), None, "lost", False),
    ],
)
def test_what_a_decision_is_called_and_whether_it_is_a_failure(
    decision: Any, error: BaseException | None, outcome: str, reported: bool
) -> None:
    assert decision.outcome == outcome
    assert failure_in(decision, error) == (FAILURE if reported else None)


# Tools that fail


def test_an_error_of_a_tool_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with quietly("Tool"):
            raise LookupError
    assert caplog.messages == ["Tool failed, jobs continue without it"]


@pytest.mark.parametrize("interrupt", [SoftDeadlinePassed, CancelRequested])
def test_an_interrupt_of_the_job_is_not_taken_for_an_error_of_the_tool(interrupt: type[BaseException]) -> None:
    with pytest.raises(interrupt), quietly("Tool"):
        raise interrupt


# Flushes


def test_a_tool_is_flushed_when_an_executor_leaves_once_however_often_it_asks(leaving: Signal) -> None:
    flushed: list[str] = []
    for _ in range(2):
        flush_when_leaving("Tool", lambda: flushed.append("tool"))
    flush_when_leaving("Other", lambda: flushed.append("other"))
    leaving.send(None, reason="drained")
    assert flushed == ["tool", "other"]


def test_a_flush_that_hangs_is_left_behind_and_the_next_has_its_turn(
    leaving: Signal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(room, "FLUSH_SECONDS", {"drained": 0.05})
    never, flushed = threading.Event(), threading.Event()
    flush_when_leaving("Tool", never.wait)
    flush_when_leaving("Other", flushed.set)
    leaving.send(None, reason="drained")
    never.set()
    assert flushed.is_set()
    assert caplog.messages == ["Tool could not be flushed, executor leaves without seconds=0.1"]


def test_a_flush_that_raises_is_logged(leaving: Signal, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ConnectionError

    flush_when_leaving("Tool", fail)
    leaving.send(None, reason="orphaned")
    assert caplog.messages == ["Tool failed, jobs continue without it"]


def test_two_flushes_fit_into_the_time_of_receivers() -> None:
    from django_pgjobs.worker.executor import lifecycle

    drained = lifecycle.EXIT_SECONDS * lifecycle.RECEIVERS_SHARE
    orphaned = lifecycle.ORPHANED_SECONDS * lifecycle.RECEIVERS_SHARE
    assert 2 * room.FLUSH_SECONDS[lifecycle.DRAINED] < drained
    assert 2 * room.FLUSH_SECONDS[lifecycle.ORPHANED] < orphaned
