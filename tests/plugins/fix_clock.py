"""The worker's own clock, in the hands of a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_pgjobs import clock

Time = Callable[[float], None]
"""Lets so many seconds pass."""


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The worker's own clock stands still; a test moves it on."""
    now = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes
