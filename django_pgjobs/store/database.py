"""The connections that statements run on, Django's or a worker's own, and their settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Protocol, cast

import psycopg
from django.db import DataError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgjobs import sql

Params = Mapping[str, Any]

Rows = list[tuple[Any, ...]]

NOT_THERE = ("42P01", "42703", "3F000")
"""SQLSTATEs: a table, a column or a schema does not exist."""

NOT_MIGRATED = "The tables of django-pgjobs are not there, or older than this code: run manage.py migrate"


def is_not_migrated(error: BaseException) -> bool:
    """Return whether this error, Django's or psycopg's, means that a table, column or schema does not exist."""
    return getattr(error.__cause__ or error, "sqlstate", None) in NOT_THERE


def statement(name: str) -> str:
    """Return the text of a statement, for a connection that runs it itself."""
    return sql.statement(name)


PINS = {
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
}
"""Settings under which the statements of workers keep the plans that their tests hold."""


def read_statements() -> None:
    """Read all statements now, so that an upgrade that replaces their files does not change a running process."""
    for name in sql.names():
        sql.statement(name)


def rows_of(cursor: Any) -> Rows:
    """Return the rows of the cursor's current result; ``cursor`` is Django's or psycopg's. See ``instants``."""
    try:
        return cast(Rows, cursor.fetchall())
    except (psycopg.DataError, DataError):
        from django_pgjobs.store.instants import read_again  # here for start-up time

        return read_again(cursor)


def array_of(values: Iterable[str | float | datetime | None]) -> str:
    """Return an array as its text, for a parameter that the statement casts.

    psycopg finds out the types of a list's items, which takes 10 µs for each list.
    """
    return f"{{{','.join(map(_item, values))}}}"


def _item(value: str | float | datetime | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        value = value.replace("\\", r"\\").replace('"', r"\"")
        return f'"{value}"'
    return f'"{value.isoformat()}"' if isinstance(value, datetime) else str(value)


class Database(Protocol):
    """A connection that runs statements of ``sql/``."""

    def fetch(self, name: str, params: Params) -> Rows:
        """Run the statement and return its rows."""
        ...


class Enclosing(Database, Protocol):
    """A connection that also opens transactions for several statements."""

    def transaction(self) -> AbstractContextManager[object]:
        """Open a transaction, or a savepoint in the caller's, for the statements of a block."""
        ...


class Transacting(Database, Protocol):
    """A connection that also runs several statements as one transaction."""

    def fetch_together(self, statements: Sequence[tuple[str, Params]]) -> list[Rows]:
        """Run the statements in one READ COMMITTED transaction, each with a snapshot of its own; return their rows.

        They travel as one message, so that no network failure leaves the transaction open half-way.
        """
        ...


class Picking(Database, Protocol):
    """A connection on which Django's ORM can pick and lock rows for statements that follow in its transaction."""

    def orm(self) -> AbstractContextManager[str]:
        """Open a transaction and yield the alias by which the ORM works on this very connection."""
        ...


def _fetch(wrapper: BaseDatabaseWrapper, name: str, params: Params) -> Rows:
    with wrapper.cursor() as cursor:
        cursor.execute(sql.statement(name), params)
        # Not ``description``: it makes an object per column, which takes a sixth of a registration's time.
        return rows_of(cursor) if cursor.pgresult.nfields else []


class WrapperDatabase:
    """A connection of Django's that no alias leads to: it is still being opened, or it is the caller's own."""

    def __init__(self, wrapper: BaseDatabaseWrapper) -> None:
        self.wrapper = wrapper

    def fetch(self, name: str, params: Params) -> Rows:
        """Run the statement and return its rows."""
        return _fetch(self.wrapper, name, params)


class DjangoDatabase:
    """Django's connection of an alias, inside the caller's open transaction, if any."""

    def __init__(self, using: str) -> None:
        self.using = using

    def fetch(self, name: str, params: Params) -> Rows:
        """Run the statement and return its rows."""
        return _fetch(connections[self.using], name, params)

    def transaction(self) -> AbstractContextManager[object]:
        """Open a transaction, or a savepoint in the caller's, for the statements of a block."""
        return transaction.atomic(using=self.using)

    @contextmanager
    def orm(self) -> Iterator[str]:
        """Open a transaction, or a savepoint in the caller's; yield the alias."""
        with transaction.atomic(using=self.using):
            yield self.using


class UnseenDatabase(DjangoDatabase):
    """The same connection beneath Django's cursor: its statements skip query logs and execute wrappers.

    For statements sent only now and then, which a project's tests must not count. Errors are Django's all the same.
    """

    def fetch(self, name: str, params: Params) -> Rows:
        """Run the statement and return its rows."""
        connection = connections[self.using]
        connection.ensure_connection()
        with connection.wrap_database_errors:
            return list(connection.connection.execute(sql.statement(name), params).fetchall())


def beneath(using: str) -> UnseenDatabase:
    """Return Django's connection ``using`` for statements that query counts leave out."""
    return UnseenDatabase(using)


def on(using: str) -> DjangoDatabase:
    """Return Django's connection ``using`` as a ``Database``."""
    return DjangoDatabase(using)


def is_read_only(db: Database) -> bool:
    """Return whether this connection cannot write, as on a replica."""
    return bool(db.fetch("is_read_only", {})[0][0])


def set_lock_timeout(db: Database, timeout: str) -> str:
    """Bound the lock waits of the open transaction; return the previous setting."""
    return str(db.fetch("lock_timeout", {"timeout": timeout})[0][0])


def read_committed(db: Database) -> None:
    """Set the transaction just opened to READ COMMITTED: each statement sees what is committed when it starts."""
    db.fetch("read_committed", {})


def configuring(settings: Mapping[str, str], *, local: bool) -> Params:
    """Return the parameters of ``configure``, for a connection that sends it together with another statement."""
    return {"names": list(settings), "values": list(settings.values()), "local": local}


def configure(db: Database, settings: Mapping[str, str], *, local: bool) -> None:
    """Set parameters of the session, or with ``local`` of the open transaction only."""
    db.fetch("configure", configuring(settings, local=local))


def checking() -> str:
    """Return the statement that has the server notice soon that the client of a running statement has gone."""
    return sql.statement("check_client")


def check_client(wrapper: BaseDatabaseWrapper) -> None:
    """Run it on a new connection of Django's."""
    with wrapper.cursor() as cursor:
        cursor.execute(checking())
