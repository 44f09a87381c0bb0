"""A server beside that of the suite, for tests that stop it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_pgjobs.embedded import EmbeddedServer
from tests.e2e.elsewhere import ask, migrated
from tests.plugins.fix_db import TABLES


@pytest.fixture(scope="module")
def throwaway() -> Iterator[EmbeddedServer]:
    """A server of this module's own, migrated."""
    with migrated() as server:
        yield server


@pytest.fixture
def server(throwaway: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """That server, running and empty."""
    throwaway.start()
    ask(throwaway.url, f"TRUNCATE {', '.join(TABLES)} RESTART IDENTITY")
    yield throwaway
    throwaway.start()
