"""In which database, and at which level, something is written from a request or a shell.

The caller's transaction is joined where there is one; its level is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import models, router, transaction

from django_pgjobs.store.database import is_read_only, on, read_committed


def written_at(row: models.Model) -> str:
    """Return the alias where a row is steered: the one it was read from, or of a replica where the router writes.

    Not simply the latter: of a job that was registered with ``database=…`` most routers know nothing, and another job
    has its id elsewhere.
    """
    read, write = row._state.db, str(router.db_for_write(type(row), instance=row))
    if read is None or read == write or is_read_only(on(read)):
        return write
    return read


@contextmanager
def at_read_committed(using: str) -> Iterator[None]:
    """Open a transaction at READ COMMITTED, whatever the role's default; inside of the caller's, a savepoint.

    At a higher level one row that a worker has changed meanwhile would fail the whole batch, and at serializable even
    a query that only reads may fail (40001).
    """
    ours = opens_transaction(using)
    with transaction.atomic(using=using):
        if ours:
            read_committed(on(using))
        yield


def opens_transaction(using: str) -> bool:
    """Whether ``atomic`` opens a transaction here; the level of one that is the caller's is the caller's."""
    connection = transaction.get_connection(using)
    return connection.get_autocommit() and not connection.in_atomic_block
