"""Fixtures of several unit tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from django_pgjobs.worker.executor import cleanup
from tests.unit.executor_pool_ground import failed, mortal, pool  # noqa: F401 (fixtures)
from tests.unit.finaliser_ground import finaliser, heard, server  # noqa: F401 (fixtures)
from tests.unit.job_room import Room


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.setattr(cleanup, "discard_all", lambda: None)
    room = Room()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # else the threads would take turns of 5 ms, and nothing would meet
    yield room
    sys.setswitchinterval(before)
    room.work.put(None)
