"""``NextDue``: the remembered instant of the next job is never sooner than the job."""

from __future__ import annotations

from typing import Any

import pytest

from django_pgjobs import clock
from django_pgjobs.store import claiming
from django_pgjobs.store.database import on
from django_pgjobs.worker.threads.frontier import Frontier
from django_pgjobs.worker.threads.ready_hints import NextDue
from tests.plugins.fix_clock import Time


def test_a_slow_question_is_no_reason_to_wake_up_too_soon(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """A22: the claim would find nothing, and the next question, a moment later, nothing that is still to come."""
    due_at = clock.monotonic() + 10.5

    def next_due(db: Any, pairs: object) -> float:
        time(0.2)  # on its way to the server
        seconds = due_at - clock.monotonic()
        time(0.1)
        return seconds

    monkeypatch.setattr(claiming, "next_due", next_due)
    frontiers = [Frontier(), Frontier()]
    for frontier in frontiers:
        frontier.replace([("default", 0)])
    asked, db = NextDue(), on("default")
    asked.seconds(db, frontiers, 1)
    time(0.5)
    remembered = asked.seconds(db, frontiers, 1)
    assert remembered is not None
    assert clock.monotonic() + remembered >= due_at
