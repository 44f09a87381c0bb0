"""The supervisor's own connections: made by the project's engine, used below Django.

``DatabaseWrapper`` of the configured engine connects (so PostGIS, tenants, service files and short-lived passwords
work), with pooling removed; then statements go to psycopg itself, outside query logging, with server-side
parameters, prepared once. Plans are pinned: three natural statements turned quadratic on a table analysed while
empty. Behind a transaction pooler nothing of a session survives, so each statement goes as one transaction with
the same settings. Every transaction is READ COMMITTED, whatever the role's default.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
from django.db import DatabaseError as DjangoDatabaseError
from django.db import connections

from django_pgjobs import clock, store

PINS = {
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
}

CONNECT_SECONDS = 10

TROUBLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    DjangoDatabaseError,
)
"""What a loop survives: the server, or the way to it, is not there, or it has become a standby."""


class WorkerConnection:
    """One autocommit connection of a worker's thread; a ``store.Database``.

    ``statement_seconds`` bounds every statement. ``durable=False`` lets commits return before they are on disk,
    which is safe for the claim alone: its fence is unique, and an end that follows it follows it in the log too.
    Raises one of ``TROUBLE`` when the server cannot be reached.
    """

    def __init__(self, alias: str, role: str, *, statement_seconds: float, durable: bool = True) -> None:
        self.statements = 0
        self.connected_at = clock.monotonic()
        self._settings = {**PINS, "statement_timeout": f"{max(1, round(statement_seconds * 1000))}ms"}
        if not durable:
            self._settings["synchronous_commit"] = "off"
        self.connection = _connect(alias, role)
        self.pooled = False
        self.identity = store.read_identity(self)
        self.pooled = self.identity.backend_pid != self.connection.info.backend_pid
        if self.pooled:
            self.connection.prepare_threshold = None
            self.connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        else:
            settings = {**self._settings, "default_transaction_isolation": "read committed"}
            store.configure(self, settings, local=False)

    def fetch(self, name: str, params: store.Params) -> store.Rows:
        """Run a statement of ``sql/`` and return its rows."""
        if self.pooled:
            with self.connection.pipeline(), self.connection.transaction():
                self._execute("configure", store.configuring(self._settings, local=True))
                rows = self._execute(name, params)
        else:
            rows = self._execute(name, params)
        self.statements += 1
        return rows

    def _execute(self, name: str, params: store.Params) -> store.Rows:
        cursor = psycopg.Cursor(self.connection)
        cursor.execute(store.statement(name), params, binary=True)
        return cursor.fetchall() if cursor.description else []

    @property
    def gone(self) -> bool:
        """Whether it is closed, by us or by the server."""
        return self.connection.closed or self.connection.broken

    def close(self) -> None:
        """Close; never raises."""
        with suppress(psycopg.Error):
            self.connection.close()


def _connect(alias: str, role: str) -> psycopg.Connection[Any]:
    wrapper = connections.create_connection(alias)
    options = {key: value for key, value in wrapper.settings_dict["OPTIONS"].items() if key != "pool"}
    options["application_name"] = role[:63]
    # Without one, a server that accepts and never answers is waited for two minutes, while leases run out.
    options.setdefault("connect_timeout", CONNECT_SECONDS)
    wrapper.settings_dict = {**wrapper.settings_dict, "OPTIONS": options, "CONN_MAX_AGE": None}
    wrapper.connect()
    connection: psycopg.Connection[Any] = wrapper.connection
    if not connection.autocommit:
        connection.rollback()
        connection.autocommit = True
    connection.prepare_threshold = 0
    return connection
