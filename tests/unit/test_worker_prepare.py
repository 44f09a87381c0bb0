"""How often a job's progress travels to its supervisor, and what an attempt comes to that fails in our code."""

from __future__ import annotations

from typing import Any, cast

import pytest

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.execution.failed_attempts import NO_ATTEMPTS, TOO_LATE
from django_pgjobs.worker.executor.prepare import PROGRESS_SECONDS, failed_outside, reporter
from django_pgjobs.worker.shared import channel
from tests.unit.test_worker_executor import sent


class End:
    def __init__(self) -> None:
        self.sent: list[float] = []

    def send(self, message: Any) -> None:
        self.sent.append(message.progress["n"])


def test_the_total_is_notified_at_once_and_not_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has reported its total in a loop has kept its neighbours from starting."""
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    end = End()
    report = reporter(cast(channel.ExecutorEnd, end), sent(1))
    for n in range(1000):
        report(n, 3, "")
    assert end.sent == [0, 3]
    for n in (1, 3, 2, 3):
        report(n, 3, "")
    assert end.sent == [0, 3]
    now[0] += PROGRESS_SECONDS
    for n in (1, 3, 4):
        report(n, 3, "")
    assert end.sent == [0, 3, 1, 3]


def test_a_failure_around_a_job_is_told_and_retried_while_attempts_are_left(caplog: pytest.LogCaptureFixture) -> None:
    """A callback always: its starts are counted by its claims."""
    error = RuntimeError("no room")
    first = failed_outside(sent(1).job, error)
    last = failed_outside(sent(2, attempt=3).job, error)
    callback = failed_outside(sent(3, attempt=3, ending="abandoned").job, error)
    assert [type(each) for each in (first, last, callback)] == [decide.Retried, decide.Abandoned, decide.Retried]
    assert isinstance(first, decide.Retried)
    assert (first.failure.kind, first.failure.message) == ("RuntimeError", "no room")
    assert [(record.levelname, record.getMessage()) for record in caplog.records][:1] == [
        ("ERROR", "executor failed around name=executor.unknown job=10: RuntimeError: no room")
    ]


def test_an_attempt_that_our_code_failed_in_is_retried_while_attempts_are_left() -> None:
    """*attempt 2 of 1* is what nobody shall see."""
    error = RuntimeError("its thread ended")
    again = failed_outside(sent(1, attempt=1, max_attempts=2).job, error)
    assert isinstance(again, decide.Retried)
    assert (again.cause, again.failure.summary) == ("failed", "RuntimeError: its thread ended")
    last = failed_outside(sent(1, attempt=2, max_attempts=2).job, error)
    assert isinstance(last, decide.Abandoned)
    assert (last.reason, last.cause) == (NO_ATTEMPTS, "failed")
    late = failed_outside(sent(1, attempt=1, max_attempts=2, extras={"until": clock.monotonic()}).job, error)
    assert isinstance(late, decide.Abandoned)
    assert late.reason == TOO_LATE
