"""A claimer without a thread or a server, and what it tells the main thread."""

from __future__ import annotations

from uuid import UUID

import pytest

from django_pgjobs.store import claiming
from django_pgjobs.worker.threads.claim_options import ClaimOptions
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.frontier import Frontier
from tests.unit.claimer_fakes import DB
from tests.unit.worker_fakes import Heard


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def claimer(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Claimer:
    """It knows queues a and b at one priority."""
    options = ClaimOptions(
        UUID(int=1), lease_seconds=30, allowance_seconds=5, grace_seconds=30, poll_seconds=5.0, notify=True
    )
    claimer = Claimer(lambda: DB, heard, Frontier(), options)
    monkeypatch.setattr(claiming, "list_pairs", lambda db: [("a", 0), ("b", 0)])
    monkeypatch.setattr(claiming, "next_due", lambda db, pairs: None)
    return claimer
