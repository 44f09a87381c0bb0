"""Choose the database and the isolation level of writes from requests and shells.

They join the caller's transaction, if there is one, and keep its level.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import models, router, transaction

from django_pgjobs.store.database import is_read_only, on, read_committed


def written_at(row: models.Model) -> str:
    """Return the alias at which to steer a row: the one it was read from, or for a replica the router's write alias.

    Not always the router's: most routers know nothing of ``database=…`` at registering, and elsewhere another job has
    this job's id.
    """
    read, write = row._state.db, str(router.db_for_write(type(row), instance=row))
    if read is None or read == write or is_read_only(on(read)):
        return write
    return read


@contextmanager
def at_read_committed(using: str) -> Iterator[None]:
    """Open a transaction at READ COMMITTED, regardless of the role's default; inside the caller's, a savepoint.

    At a higher level, one row that a worker changes in the meantime would fail the whole batch; at SERIALIZABLE even a
    query that only reads may fail (40001).
    """
    ours = opens_transaction(using)
    with transaction.atomic(using=using):
        if ours:
            read_committed(on(using))
        yield


def opens_transaction(using: str) -> bool:
    """Return whether ``atomic`` would open a transaction here rather than join the caller's, which keeps its level."""
    connection = transaction.get_connection(using)
    return connection.get_autocommit() and not connection.in_atomic_block
