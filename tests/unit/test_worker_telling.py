"""Receivers that are slower than jobs end cost signals, and no memory."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from django_pgjobs import events
from django_pgjobs.worker.telling import WAITING, Teller
from tests.plugins.fix_db import wait_until


def test_signals_are_dropped_while_receivers_are_too_slow_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    entered, gate = threading.Event(), threading.Event()

    def stored(what: str, fields: dict[str, Any]) -> None:
        entered.set()
        gate.wait(30)
        told.append(fields["job_id"])

    monkeypatch.setattr(events, "stored", stored)
    teller = Teller()
    with caplog.at_level(logging.WARNING):
        teller.tell([("finished", {"job_id": 0})])
        assert entered.wait(30)
        for number in range(1, WAITING + 4):
            teller.tell([("finished", {"job_id": number})])
        gate.set()
        wait_until(lambda: len(told) == WAITING + 1, 30, "all that was kept was told")
        teller.tell([("finished", {"job_id": 999})])
        teller.close(30)
    assert told == [*range(WAITING + 1), 999]
    assert [record.getMessage() for record in caplog.records] == [
        "receivers of signals are too slow, signals are dropped",
        "signals are told again dropped=3",
    ]
