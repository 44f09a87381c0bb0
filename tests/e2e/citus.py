"""Nodes of Citus, which belong to whoever runs them: the environment names them, and each lends a schema.

``PGJOBS_CITUS_URLS`` is a list of URLs with blanks between them: the coordinator and its data nodes, in databases where
the extension is created and the role may create schemas. Without it, tests that need Citus are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NoReturn

import pytest

from tests.e2e.elsewhere import ask, manage

NODES = tuple(os.environ.get("PGJOBS_CITUS_URLS", "").split())
LOCAL = "-c citus.enable_ddl_propagation=off"


@dataclass(frozen=True)
class CitusNode:
    """A schema on a node, in the place of a server of our own where that is only used and never stopped."""

    url: str

    @property
    def pid(self) -> NoReturn:
        """Skip the test that would freeze it."""
        self.halt()

    def halt(self, *, immediate: bool = False) -> NoReturn:
        """Skip the test that would stop it."""
        pytest.skip("a node of Citus is not this suite's to stop")

    start = halt


def with_options(url: str, options: str) -> str:
    """Return the URL with these options of a session."""
    return f"{url}{'&' if '?' in url else '?'}options={options.replace(' ', '%20').replace('=', '%3D')}"


@contextmanager
def schema_on(url: str, name: str) -> Iterator[CitusNode]:
    """Lend a migrated schema on the node, whose tables stay there."""
    outside = with_options(url, LOCAL)
    ask(outside, f"CREATE SCHEMA {name}")
    try:
        node = CitusNode(with_options(url, f"{LOCAL} -c search_path={name}"))
        manage(node.url, "migrate", "-v0")
        yield node
    finally:
        ask(outside, f"DROP SCHEMA {name} CASCADE")


@contextmanager
def on_nodes() -> Iterator[list[CitusNode]]:
    """Lend one on each."""
    with ExitStack() as stack:
        yield [stack.enter_context(schema_on(url, f"pgjobs_test_{os.getpid()}")) for url in NODES]
