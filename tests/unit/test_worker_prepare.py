"""How often a job's progress travels to its supervisor."""

from __future__ import annotations

from typing import Any, cast

import pytest

from django_pgjobs import clock
from django_pgjobs.worker.executor.prepare import PROGRESS_SECONDS, reporter
from django_pgjobs.worker.shared import channel


class End:
    def __init__(self) -> None:
        self.sent: list[float] = []

    def send(self, message: Any) -> None:
        self.sent.append(message[2]["n"])


def test_the_total_is_told_at_once_and_not_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has reported its total in a loop has kept its neighbours from starting."""
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    end = End()
    report = reporter(cast(channel.ExecutorEnd, end), 1)
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
