"""What code connects for good, tests connect for themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_pgjobs import signals

FOR_GOOD = (signals.attempt_ended, signals.executor_stopping)


@pytest.fixture(autouse=True, scope="module")
def no_receivers_left() -> Iterator[None]:
    """Disconnect what middleware has connected: a process that has receivers runs plain jobs in another way."""
    kept = [list(signal.receivers) for signal in FOR_GOOD]
    yield
    for signal, receivers in zip(FOR_GOOD, kept, strict=True):
        signal.receivers = receivers
        signal.sender_receivers_cache.clear()
