"""Resets a kept session of Django's: one message of several statements, without parameters."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from django_pgjobs.store import database


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """Settings of a session once it had been opened; ``checks``: the server watches for its client."""

    application_name: str
    time_zone: str
    role: str | None = None
    checks: bool = False


def resetting(connection: psycopg.Connection[object], opened: OpenedSession) -> bytes:
    """Return the message that resets the session, its values bound as literals."""
    texts = [database.statement("reset_session")]
    if opened.role:
        texts.append(database.statement("assume_role"))
    if opened.checks:
        texts.append(database.checking())
    values = {"application_name": opened.application_name, "time_zone": opened.time_zone, "role": opened.role}
    return psycopg.ClientCursor(connection).mogrify(";\n".join(texts), values).encode(connection.info.encoding)


def list_codeless_tables(db: database.Database, names: list[str]) -> dict[str, frozenset[str]]:
    """Return the columns of those of these tables that run no code of the project when they are read or updated."""
    rows = db.fetch("list_codeless_tables", {"names": names})
    return {name: frozenset(columns) for name, columns in rows}
