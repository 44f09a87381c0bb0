"""Filling and emptying the tables, and saying what they look like."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction

from benchmarks import jobs


def empty() -> None:
    """Empty our tables."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgjobs_job, pgjobs_claim, pgjobs_attempt, pgjobs_heartbeat")


def fill(count: int) -> None:
    """Register ``count`` no-op jobs in an empty table, then VACUUM ANALYZE it."""
    empty()
    with transaction.atomic():
        jobs.noop.register_many([(number,) for number in range(count)])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE pgjobs_job")


def value(statement: str) -> Any:
    """Return the one value of a query."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]


def wal_bytes() -> int:
    """Return how much WAL the server has written since it was made."""
    return int(value("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"))
