"""What receivers do, or raise, keeps no other signal from being told."""

from __future__ import annotations

from typing import Any

import pytest

from django_pgjobs.execution import events
from django_pgjobs.worker.executor.signal_sender import SignalSender


def test_a_batch_is_confirmed_once_all_of_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []

    def stored(what: str, fields: dict[str, Any]) -> None:
        happened.append(fields["job_id"])
        if fields["job_id"] == 2:
            raise SystemExit

    monkeypatch.setattr(events, "stored", stored)
    sender = SignalSender(lambda number: happened.append(f"told {number}"))
    sender.notify(7, [("finished", {"job_id": 1}), ("finished", {"job_id": 2})])
    sender.notify(8, [("finished", {"job_id": 3})])
    sender.close(30)
    assert happened == [1, 2, "told 7", 3, "told 8"]
