"""What an executor does so that one job leaves nothing behind for the next.

Each job runs in a fresh ``contextvars`` context, which takes the active time zone, translation and urlconf with
it. Connections are kept for a while, since a new one per job would cost milliseconds, but one with a transaction
left open, or with autocommit off, is thrown away and reported.
"""

from __future__ import annotations

import logging
from typing import Any

from django.core.cache import close_caches
from django.db import connections, reset_queries
from django.db.backends.signals import connection_created

from django_pgjobs import store

log = logging.getLogger("django_pgjobs")

CHECK_INTERVAL = "500ms"


def prepare_connections(application_name: str, max_age_seconds: float) -> None:
    """Set up the connections this process will open: kept, named, and ended by the server when we are killed.

    ``application_name`` is unique to this process, so that the supervisor can end what it leaves behind.
    """
    for alias in connections.settings:
        settings: Any = connections.settings[alias]
        options = settings.setdefault("OPTIONS", {})
        if settings.get("ENGINE") and not options.get("pool") and settings.get("CONN_MAX_AGE") == 0:
            settings["CONN_MAX_AGE"] = max_age_seconds
    connection_created.connect(_name_connection(application_name), weak=False, dispatch_uid="django_pgjobs.hygiene")


class _Wrapped:
    """A connection that is just being made, as a ``store.Database``: it is not to be had by its alias yet."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def fetch(self, name: str, params: store.Params) -> store.Rows:
        """Run the statement and return its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(store.statement(name), params)
            return list(cursor.fetchall())


def _name_connection(application_name: str) -> Any:
    def receive(*, connection: Any, **_: Any) -> None:
        # Without the check a statement of a killed process goes on in its backend, and commits.
        if connection.vendor == "postgresql":
            settings = {"application_name": application_name, "client_connection_check_interval": CHECK_INTERVAL}
            store.configure(_Wrapped(connection), settings, local=False)

    return receive


def tidy(job: str) -> None:
    """Clean up after a job in its own thread; ``job`` names it for the report. Raises nothing."""
    try:
        reset_queries()
        close_caches()
        for connection in connections.all(initialized_only=True):
            if connection.connection is None:
                continue
            if connection.in_atomic_block or not connection.get_autocommit():
                log.error("job left a transaction open, rolled back: %s alias=%s", job, connection.alias)
                discard(connection)
            else:
                connection.close_if_unusable_or_obsolete()
    except Exception:
        log.exception("cannot tidy up after %s", job)
        discard_all()


def discard(connection: Any) -> None:
    """Close a connection and forget its wrapper: one inside a broken ``atomic()`` cannot be healed."""
    alias = connection.alias
    raw = connection.connection
    try:
        if raw is not None:
            raw.close()
    finally:
        del connections[alias]


def discard_all() -> None:
    """Discard every connection of this thread."""
    for connection in connections.all(initialized_only=True):
        discard(connection)


def close_all() -> None:
    """Close this thread's connections: it is about to end."""
    for connection in connections.all(initialized_only=True):
        connection.close()
