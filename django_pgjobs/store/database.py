"""The connections that statements run on, Django's or a worker's own, their errors, settings and transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any, Protocol, cast

import psycopg
from django.db import DataError, connections, models, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgjobs import sql
from django_pgjobs.serialization.escapes import one_line

Params = Mapping[str, Any]

Rows = list[tuple[Any, ...]]

# The server's error codes that this package acts on, read from Django's errors or psycopg's

SERIALIZATION_FAILURE = "40001"
DEADLOCK = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
UNIQUE_VIOLATION = "23505"

ROWS_DATA = ("22", "23", "54", "XX")
"""Classes that a row's own data can cause (PostgreSQL manual, appendix A)."""

TRIGGERS = ("P0",)
"""The class of errors that a trigger raises."""

LINK_LOST = ("08", "57P")
"""Codes that a server or a pooler sends when it ends a connection, regardless of the statement."""

LOCKED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

NOT_ALLOWED = ("42",)
"""The class of a missing privilege."""

NOT_THERE = ("42P01", "42703", "3F000")
"""A table, a column or a schema does not exist."""

NOT_MIGRATED = "The tables of django-pgjobs are not there, or older than this code: run manage.py migrate"


def sqlstate_of(error: BaseException) -> str:
    """Return the server's code for this error; empty if it does not come from the server."""
    return getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None) or ""


def class_of(error: BaseException) -> str:
    """Return the class of the server's code, its first two characters; empty if the error has no code."""
    return sqlstate_of(error)[:2]


def is_not_migrated(error: BaseException) -> bool:
    """Return whether this error, Django's or psycopg's, means that a table, column or schema does not exist."""
    return sqlstate_of(error) in NOT_THERE


def is_answer(error: BaseException) -> bool:
    """Return whether the server has given a statement up, so that nothing of it was committed."""
    code = sqlstate_of(error)
    return bool(code) and not code.startswith(LINK_LOST)


def is_data_trouble(error: BaseException) -> bool:
    """Return whether a row's own data made a statement fail, in the server or before it was sent."""
    return isinstance(error, psycopg.DataError | UnicodeError) or class_of(error) in ROWS_DATA


def is_objection(error: BaseException) -> bool:
    """Return whether a DELETE may raise this: besides data errors, an objecting trigger or a missing right."""
    return is_data_trouble(error) or class_of(error) in (*TRIGGERS, *NOT_ALLOWED)


def refusal_of(error: BaseException) -> str:
    """Return in one line why the server refuses a row, without the details, which contain its values."""
    diag = getattr(error, "diag", None) or getattr(error.__cause__, "diag", None)
    return one_line(getattr(diag, "message_primary", None) or error)


# Statements


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


def run_together(connection: psycopg.Connection[object], statements: Sequence[tuple[str, Params]]) -> list[Rows]:
    """Run statements as one transaction, sent as one message; return the rows of each."""
    cursor = psycopg.ClientCursor(connection)
    # Where the message ends the server ends the transaction: its sender is not needed any more.
    cursor.execute("\n;\n".join(cursor.mogrify(statement(name), params) for name, params in statements).encode())
    found = [rows_of(cursor) if cursor.description else []]
    while cursor.nextset():
        found.append(rows_of(cursor) if cursor.description else [])
    return found


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


class HurriedDatabase(DjangoDatabase):
    """The same connection for a read that gives up after ``seconds`` and leaves nothing behind, however it ends.

    It travels as one message, within a transaction or savepoint that is rolled back; a connection that it had to open
    is closed. Query logs and execute wrappers do not see it. Errors are Django's.
    """

    def __init__(self, using: str, seconds: float) -> None:
        super().__init__(using)
        limit = f"{max(1, round(seconds * 1000))}ms"
        self.settings = {"lock_timeout": limit, "statement_timeout": limit}

    def fetch(self, name: str, params: Params) -> Rows:
        """Run the statement and return its rows."""
        wrapper = connections[self.using]
        opens = wrapper.connection is None
        wrapper.ensure_connection()
        try:
            with wrapper.wrap_database_errors:
                raw = wrapper.connection
                together = raw.pipeline() if psycopg.Pipeline.is_supported() else nullcontext()
                cursor = psycopg.Cursor(raw)
                with together, raw.transaction(force_rollback=True):
                    settings = configuring(self.settings, local=True)
                    psycopg.Cursor(raw).execute(statement("configure"), settings, prepare=False)
                    cursor.execute(statement(name), params, prepare=False)
                # Only now, after the pipeline, does the cursor know what came of it.
                return rows_of(cursor)
        finally:
            if opens:
                wrapper.close()


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


# Writes from requests and shells: they join the caller's transaction, if there is one, and keep its level


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
