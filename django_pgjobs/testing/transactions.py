"""Savepoints around jobs that run inside a test's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction


@contextmanager
def savepoint(using: str) -> Iterator[None]:
    """Open a savepoint that a job's ``atomic(durable=True)`` does not mistake for an outer transaction."""
    blocks: Any = connections[using].atomic_blocks
    block: Any = transaction.atomic(using=using)
    block._from_testcase = not blocks or blocks[-1]._from_testcase
    with block:
        yield


@contextmanager
def rolled_back(using: str) -> Iterator[None]:
    """Open such a savepoint, and undo in the end what was written in it."""
    with savepoint(using):
        try:
            yield
        finally:
            transaction.set_rollback(True, using=using)
