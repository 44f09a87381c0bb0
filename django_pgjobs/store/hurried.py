"""Django's connection for a read that must delay no one, such as a scrape of metrics."""

from __future__ import annotations

from contextlib import nullcontext

import psycopg
from django.db import connections

from django_pgjobs.store.database import DjangoDatabase, Params, Rows, configuring, rows_of, statement


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
