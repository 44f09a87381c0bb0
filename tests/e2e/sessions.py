"""Jobs that leave something on their session, and one that tells all that it finds there. Loaded with ``tests.e2e``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from django.db import connection, connections

from django_pgjobs import current_context, job
from django_pgjobs.models import Job

FOUND = {
    "settings": "SELECT coalesce(json_object_agg(name, setting), '{}') FROM pg_settings WHERE source = 'session'"
    " AND name <> 'TimeZone'",  # Django sets it only where the server's differs
    "zone": "SELECT current_setting('TimeZone')",
    "own setting": "SELECT coalesce(current_setting('app.tenant', true), '')",
    "role": "SELECT current_user::text || ' ' || session_user::text",
    "advisory locks": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    "channels": "SELECT count(*) FROM pg_listening_channels()",
    "temporary tables": "SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND pg_table_is_visible(oid)",
    "cursors": "SELECT count(*) FROM pg_cursors WHERE is_holdable",
    "prepared": "SELECT count(*) FROM pg_prepared_statements",
    "jobs": "SELECT count(*) > 0 FROM pgjobs_job",
}


@job(max_attempts=1)
def leaves_behind(how: str) -> int:
    LEFT[how]()
    return connection.connection.info.backend_pid  # type: ignore[no-any-return]


@job(max_attempts=1)
def sends(text: str) -> int:
    """Send a statement, as the ORM does; return the number of the process that serves the session."""
    with connection.cursor() as cursor:
        cursor.execute(text)
    return connection.connection.info.backend_pid  # type: ignore[no-any-return]


@job(max_attempts=1)
def loses_its_session() -> None:
    """The server ends it, and this job does not mind; nor does Django know, since it was asked beneath it."""
    connection.ensure_connection()
    raw = connection.connection
    with psycopg.connect(raw.info.dsn, password=raw.info.password, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [raw.info.backend_pid])
    with suppress(psycopg.OperationalError):
        raw.execute("SELECT 1")


@job(max_attempts=1)
def tells_its_session() -> dict[str, Any]:
    """What this job finds, and that what it writes remains."""
    connection.ensure_connection()
    found: dict[str, Any] = {"python": [str(connection.connection.read_only), len(connection.execute_wrappers)]}
    with connection.cursor() as cursor:
        for what, query in FOUND.items():
            cursor.execute(query)
            found[what] = cursor.fetchone()[0]
    found["written"] = Job.objects.filter(pk=current_context().id).update(description="written")
    return found


@job(max_attempts=1)
def remembers_after_begin(where: str) -> None:
    """Begins a transaction by SQL in a step or before it."""
    begin = _sql("BEGIN")
    if where == "before":
        begin()
    current_context().step.using(name="once")(begin if where == "in" else Job.objects.count)


def _sql(*texts: str) -> Callable[[], None]:
    def run() -> None:
        with connection.cursor() as cursor:
            for text in texts:
                cursor.execute(text)

    return run


def _beneath(text: str) -> Callable[[], None]:
    def run() -> None:
        connection.ensure_connection()
        connection.connection.cursor().execute(text)

    return run


def _reads_only() -> None:
    connection.ensure_connection()
    connection.connection.read_only = True


def _wraps() -> None:
    connection.ensure_connection()
    connection.execute_wrappers.append(lambda execute, *given: execute(*given))


LEFT: dict[str, Callable[[], None]] = {
    "own setting": _sql("SET app.tenant = 'other'"),
    "own setting by a function": _sql("SELECT set_config('app.tenant', 'other', false)"),
    "own setting in a block": _sql("DO $$ BEGIN PERFORM set_config('app.tenant', 'other', false); END $$"),
    "own setting beneath Django": _beneath("SET app.tenant = 'other'"),
    "search_path": _sql("SET search_path = nowhere"),
    "role": _sql("SET ROLE pg_monitor"),
    "session authorization": _sql("SET SESSION AUTHORIZATION pg_monitor"),
    "statement_timeout": _sql("SET statement_timeout = 1"),
    "lock_timeout": _sql("SET lock_timeout = 1"),
    "read only": _sql("SET default_transaction_read_only = on"),
    "isolation": _sql("SET default_transaction_isolation = 'serializable'"),
    "time zone": _sql("SET TIME ZONE 'Asia/Tokyo'"),
    "date style": _sql("SET DateStyle = 'German'"),
    "name": _sql("SET application_name = 'somebody else'"),
    "triggers off": _sql("SET session_replication_role = replica"),
    "client check": _sql("SET client_connection_check_interval = 0"),
    "lock": _sql("SELECT pg_advisory_lock(42)"),
    "shared lock": _sql("SELECT pg_advisory_lock_shared(43)"),
    "channel": _sql("LISTEN nowhere"),
    "temporary table": _sql("CREATE TEMP TABLE pgjobs_job (id bigint)"),
    "cursor": _sql("DECLARE left_open CURSOR WITH HOLD FOR SELECT generate_series(1, 9)"),
    "prepared": _sql("PREPARE nothing AS SELECT 1"),
    "transaction": _sql("BEGIN"),
    "transaction with a lock": _sql("BEGIN", "LOCK TABLE django_content_type"),
    "failed transaction": _sql("BEGIN", "SAVEPOINT s", "UPDATE pgjobs_job SET description = 'x' WHERE id = 0"),
    "read-only transactions": _reads_only,
    "execute wrapper": _wraps,
}


@job(max_attempts=1)
def leaves_in_sqlite() -> int:
    """Leaves a temporary table, a pragma and an open transaction; returns what the pragma was."""
    with connections["lite"].cursor() as cursor:
        cursor.execute("PRAGMA secure_delete")
        (before,) = cursor.fetchone()
        cursor.execute(f"PRAGMA secure_delete = {1 - before}")
        cursor.execute("CREATE TEMP TABLE left_behind (id int)")
        cursor.execute("BEGIN")
    return int(before)


@job(max_attempts=1)
def finds_in_sqlite() -> dict[str, int]:
    with connections["lite"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM sqlite_temp_master")
        (tables,) = cursor.fetchone()
        cursor.execute("PRAGMA secure_delete")
        return {"temporary tables": tables, "secure_delete": cursor.fetchone()[0]}
