"""A server beside that of the suite, for tests that stop it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_pgjobs.embedded import EmbeddedServer
from tests.e2e.elsewhere import ask, manage

TABLES = (
    "pgjobs_job, pgjobs_claim, pgjobs_attempt, pgjobs_step, pgjobs_heartbeat, pgjobs_cron_entry, pgjobs_leader_term"
)


@pytest.fixture(scope="module")
def throwaway() -> Iterator[EmbeddedServer]:
    """A server of this module's own, migrated."""
    with EmbeddedServer(fsync=False) as server:
        manage(server.url, "migrate", "-v0")
        yield server


@pytest.fixture
def server(throwaway: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """That server, running and empty."""
    throwaway.start()
    ask(throwaway.url, f"TRUNCATE {TABLES} RESTART IDENTITY")
    yield throwaway
    throwaway.start()
