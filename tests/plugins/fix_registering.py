"""What every test of registering begins with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_pgjobs.registering import destination
from django_pgjobs.store import waking
from django_pgjobs.testing import isolated_registry


@pytest.fixture
def fresh_throttle() -> None:
    """Nobody was woken or warned before."""
    waking._notified.clear()
    destination._warned_sites.clear()


@pytest.fixture
def own_registry() -> Iterator[None]:
    """What a test declares is forgotten after it."""
    with isolated_registry():
        yield
