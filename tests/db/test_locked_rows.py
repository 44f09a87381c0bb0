"""A worker that leaves when it is idle waits for due rows that are locked, and not for ever."""

from __future__ import annotations

import logging

import pytest

from django_pgjobs import clock
from django_pgjobs.worker.threads.locked_rows import LOCKED_SECONDS, LockedRows
from tests.plugins.fix_db import RawDatabase, claim, register

pytestmark = pytest.mark.usefixtures("committed")

PAIRS = [("default", 0), ("default", 1)]


def test_it_waits_for_each_row_so_long_and_then_says_so(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    rows = LockedRows()
    assert not rows.wait(raw, PAIRS)
    first, second = register(2)
    register(1, delay_seconds=3600)
    assert rows.wait(raw, PAIRS)
    now[0] += LOCKED_SECONDS - 1
    assert rows.wait(raw, PAIRS)
    assert not rows.wait(raw, [("other", 0)])
    assert rows.wait(raw, PAIRS)
    now[0] += LOCKED_SECONDS - 1
    assert claim(raw, 1).ids == [first]
    assert rows.wait(raw, PAIRS), "another row"
    now[0] += LOCKED_SECONDS
    with caplog.at_level(logging.WARNING, "django_pgjobs"):
        assert not rows.wait(raw, PAIRS)
    assert [record.getMessage() for record in caplog.records] == [
        f"worker leaves a job that is due, another session has locked its row job={second}"
    ]
    claim(raw, 1)
    assert not rows.wait(raw, PAIRS)
