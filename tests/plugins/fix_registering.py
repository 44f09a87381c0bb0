"""What every test of registering begins with."""

from __future__ import annotations

import pytest

from django_pgjobs.registering import destination
from django_pgjobs.store import waking


@pytest.fixture
def fresh_throttle() -> None:
    """Nobody was woken or warned before."""
    waking._notified.clear()
    destination._warned_sites.clear()
