"""What one module of tests has connected, the next does not find."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.dispatch import Signal

from django_pgjobs import signals

OURS = [signal for signal in vars(signals).values() if isinstance(signal, Signal)]


@pytest.fixture(autouse=True, scope="module")
def no_receivers_left() -> Iterator[None]:
    """Disconnect receivers, those too that are gone but still listed: with a receiver, jobs run in another way."""
    kept = [list(signal.receivers) for signal in OURS]
    yield
    for signal, receivers in zip(OURS, kept, strict=True):
        signal.receivers = receivers
        signal.sender_receivers_cache.clear()
