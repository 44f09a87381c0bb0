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
