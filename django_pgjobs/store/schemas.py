"""Looks at many schemas of one database at once: which of them have something for a worker.

Everywhere else ``search_path`` decides on the schema. Here one statement is about several: its text is repeated for
each, with the schema's name, quoted, before each table.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

import psycopg
from psycopg import sql

from django_pgjobs.store import database, installation
from django_pgjobs.store.database import Database, Params, Rows

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

UNLED_SECONDS = 300.0
"""A schema in which no worker has led for so long is visited: its ended jobs are to be pruned, its figures counted."""

_TABLE = re.compile(r"\b(FROM|JOIN) (pgjobs_\w+)")
_PARAM = re.compile(r"%\((\w+)\)s")


closes_all: ContextVar[bool] = ContextVar("django_pgjobs_closes_all", default=False)
"""True in a call that closes the connections of its thread at its end: they may lead to the schema of a job."""


class NotServed(psycopg.ProgrammingError):
    """A schema is the copy of another one: its jobs belong there. The text says what to do."""


class Found(NamedTuple):
    """Something for a worker in a schema: seconds until its next job is due, if any; a duty; no leader for long."""

    schema: str
    due: float | None
    duty: bool
    unled: bool


class RunsTexts(Protocol):
    """A connection that also runs a text of the caller, with numbered parameters."""

    def fetch_text(self, text: str, values: Sequence[object]) -> Rows:
        """Run it and return its rows."""
        ...


class SchemaScan(NamedTuple):
    """One statement about some schemas, made once and prepared by the server at its first run."""

    schemas: tuple[str, ...]
    text: str
    names: tuple[str, ...]

    def ask(self, db: RunsTexts, params: dict[str, object], but: Container[str] = ()) -> list[Found]:
        """Return what these schemas have, ``but`` some. Raises psycopg's error if one of them cannot be looked at."""
        # As text: an empty list has another type than a full one, and would be another prepared statement.
        skipped = ",".join(str(at) for at, schema in enumerate(self.schemas) if schema in but)
        rows = db.fetch_text(self.text, [*(params[name] for name in self.names), f"{{{skipped}}}"])
        return [Found(self.schemas[at], due, duty, unled) for at, due, duty, unled in rows]


def scan_of(schemas: Sequence[str]) -> SchemaScan:
    """Return the statement about these schemas."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    text = _PARAM.sub(number, database.statement("scan_schema"))
    parts = []
    for at, schema in enumerate(schemas):
        quoted = quoted_name(schema)
        own = _TABLE.sub(lambda match, quoted=quoted: f"{match[1]} {quoted}.{match[2]}", text)  # type: ignore[misc]
        parts.append(
            f"SELECT {at}, has.due, has.duty, has.unled FROM ({own}) AS has (due, duty, unled)"  # noqa: S608
            f" WHERE {at} <> ALL (${len(names) + 1}::integer[])"  # decided before anything of it is read
        )
    return SchemaScan(tuple(schemas), "\nUNION ALL\n".join(parts), tuple(names))


def quoted_name(schema: str) -> str:
    """Return a schema's name as SQL takes any: in quotes."""
    return sql.Identifier(schema).as_string(None)


def enter(db: Database, schema: str) -> None:
    """Let the session find tables in this schema alone."""
    database.configure(db, {"search_path": quoted_name(schema)}, local=False)


def enter_first(db: Database, schema: str) -> None:
    """Let the session find tables in this schema, and only then on the path that it has."""
    db.fetch("enter_schema", {"schema": schema})


class SchemaDatabase(database.WrapperDatabase):
    """The same, where each statement finds tables in one schema alone.

    The session keeps its own path: a pooler refuses one as an option, and would hand on one that was set.
    """

    def __init__(self, wrapper: BaseDatabaseWrapper, schema: str) -> None:
        super().__init__(wrapper)
        self.path = database.configuring({"search_path": quoted_name(schema)}, local=True)

    def fetch(self, name: str, params: Params) -> Rows:
        """Run the statement and return its rows."""
        self.wrapper.ensure_connection()
        with self.wrapper.wrap_database_errors:
            return database.run_together(self.wrapper.connection, [("configure", self.path), (name, params)])[1]


def settle(db: Database, environment: str) -> None:
    """Make sure that the schema on the session's path may be served, as for a database. Raises ``NotServed``."""
    try:
        installation.settle(db, environment)
    except installation.NotAdopted as error:
        raise NotServed(str(error)) from error


def own_schema(db: Database) -> str:
    """Return the schema that this session's path leads to; empty if there is none."""
    return str(db.fetch("read_schema", {})[0][0] or "")


def remove_worker(db: Database, worker: UUID) -> bool:
    """Delete the heartbeat of a worker that leaves this schema for a while; false if it still has claims there."""
    return bool(db.fetch("remove_worker", {"id": worker}))


def is_unusable(error: BaseException) -> bool:
    """Return whether this error is about one schema: not there, not migrated, locked, a copy, or refused by rights."""
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return False
    return isinstance(error, psycopg.errors.ProgrammingError | psycopg.errors.InternalError) or (
        isinstance(error, psycopg.OperationalError) and getattr(error, "sqlstate", None) in ("55P03", "57014")
    )
