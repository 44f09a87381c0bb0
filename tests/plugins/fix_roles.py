"""Roles of the server for tests: ``role()`` makes one that may log in and nothing else; all are dropped afterwards.

Roles belong to the whole server, so each has a name of its own, and what it was granted or has come to own in the test
database is taken back whatever becomes of the test. Ask for ``role`` before ``worker``: its processes shall end first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import connection, connections

from tests.plugins.fix_db import RawDatabase
from tests.plugins.fix_worker import database_url


@dataclass(frozen=True)
class Role:
    """A role that logs in. ``alias`` is a database of Django's that connects as this role."""

    name: str
    password: str
    opened: list[psycopg.Connection[Any]] = field(default_factory=list)

    @property
    def alias(self) -> str:
        return self.name

    @property
    def url(self) -> str:
        return database_url(USER=self.name, PASSWORD=self.password)

    def connect(self) -> RawDatabase:
        """Log in; the connection ends with the role."""
        self.opened.append(psycopg.connect(self.url, autocommit=True))
        return RawDatabase(self.opened[-1])


@pytest.fixture
def role(committed: None) -> Iterator[Callable[..., Role]]:
    """Make a role: ``role()``, or ``role("MAINTAIN ON pgjobs_job")`` with these grants."""
    made: list[Role] = []

    def make(*grants: str) -> Role:
        new = Role(f"pgjobs_test_{uuid4().hex[:12]}", uuid4().hex)
        made.append(new)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE ROLE {new.name} LOGIN PASSWORD '{new.password}'")
            for grant in grants:
                cursor.execute(f"GRANT {grant} TO {new.name}")
        known = connection.settings_dict
        connections.settings[new.alias] = {**known, "USER": new.name, "PASSWORD": new.password}
        return new

    try:
        yield make
    finally:
        for each in made:
            _drop(each)


def _drop(role: Role) -> None:
    if role.alias in [each.alias for each in connections.all(initialized_only=True)]:
        connections[role.alias].close()
        del connections[role.alias]
    connections.settings.pop(role.alias, None)
    for each in role.opened:
        each.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", [role.name])
        if cursor.rowcount:
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = %s", [role.name]
            )
            cursor.execute(f"REASSIGN OWNED BY {role.name} TO CURRENT_USER")
            cursor.execute(f"DROP OWNED BY {role.name}")
            cursor.execute(f"DROP ROLE {role.name}")
