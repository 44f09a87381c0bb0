"""A server beside that of the suite, for tests that stop it, and the nodes of Citus that the environment names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_pgjobs.embedded import EmbeddedServer
from tests.e2e.citus import NODES, CitusNode, on_nodes
from tests.e2e.elsewhere import ask, migrated
from tests.e2e.schemas_ground import start, tables, tenants  # noqa: F401 (fixtures)
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


@pytest.fixture(scope="module")
def citus_nodes() -> Iterator[list[CitusNode]]:
    """A migrated schema of this module's own on each node, the coordinator's first."""
    if not NODES:
        pytest.skip("PGJOBS_CITUS_URLS names no nodes of Citus")
    with on_nodes() as nodes:
        yield nodes


@pytest.fixture
def nodes(citus_nodes: list[CitusNode]) -> list[CitusNode]:
    """These schemas, empty."""
    for node in citus_nodes:
        ask(node.url, f"TRUNCATE {', '.join(TABLES)} RESTART IDENTITY")
    return citus_nodes
