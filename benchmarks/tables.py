"""Fill, empty and describe the tables."""

from __future__ import annotations

from typing import Any

from django.db import OperationalError, connection, connections, transaction
from psycopg.errors import DeadlockDetected

from benchmarks import jobs

PAYLOAD = '{"args": [], "kwargs": {"text": "' + "x" * 116 + '"}}'
"""150 bytes of JSON."""

FULLER = 48
"""Fill factor in per cent: it gives 820 bytes for a finished job; ADR-0019 found 832."""

CLEAR_TRIES = 10


def empty(alias: str = "default") -> None:
    """Empty our tables."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "TRUNCATE pgjobs_job, pgjobs_claim, pgjobs_attempt, pgjobs_heartbeat, pgjobs_gate, pgjobs_link, "
            "pgjobs_memo, pgjobs_event, pgjobs_minute, pgjobs_total, pgjobs_depth, pgjobs_notice"
        )


def clear_jobs() -> None:
    """Empty the tables of jobs while a worker runs; its statements may lock them in another order."""
    for tries_left in range(CLEAR_TRIES - 1, -1, -1):
        try:
            with connection.cursor() as cursor:
                cursor.execute("TRUNCATE pgjobs_job, pgjobs_claim, pgjobs_attempt")
        except OperationalError as error:
            if not (isinstance(error.__cause__, DeadlockDetected) and tries_left):
                raise
        else:
            return


def fill(count: int) -> None:
    """Register ``count`` no-op jobs in an empty table, then VACUUM ANALYZE it."""
    empty()
    register(count)
    vacuum()


def register(count: int) -> None:
    """Register ``count`` no-op jobs that become visible by one commit."""
    with transaction.atomic():
        jobs.noop.register_many([(number,) for number in range(count)])


def enqueue(count: int) -> None:
    """Enqueue ``count`` no-op tasks that become visible by one commit; ``TASKS`` must name our backend."""
    from benchmarks import tasks
    from django_pgjobs.tasks import enqueue_many

    with transaction.atomic():
        enqueue_many(tasks.noop, [((number,), {}) for number in range(count)])


def seed(count: int, *, alias: str = "default", kind: str = "ready", queues: int = 1) -> None:
    """Insert so many jobs with 150 bytes of payload on the server, evenly in queues, by one statement.

    They are ``ready``, ``future`` (a day ahead) or ``finished`` (an hour ago).

    Pages of finished jobs have no room for a new one, as after real claims and ends, which write longer versions than
    were inserted. Otherwise each small job that is registered would land on a page of its own, long out of cache.
    """
    if not count:
        return
    run_at = {
        "ready": "statement_timestamp() - make_interval(secs => 3600 - n * 0.0001)",
        "future": "statement_timestamp() + interval '1 day' + make_interval(secs => n * 0.001)",
        "finished": "statement_timestamp() - interval '2 hours' + make_interval(secs => n * 0.0001)",
    }[kind]
    columns, values = "", ""
    if kind == "finished":
        columns = ", attempt, claim_id, claimed_at, finished_at, duration_seconds, outcome, result"
        values = (
            ", 1, gen_random_uuid(), statement_timestamp() - interval '1 hour',"
            " statement_timestamp() - interval '1 hour' + make_interval(secs => n * 0.0001), 0.001, 'succeeded', '7'"
        )
    with transaction.atomic(alias), connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT option_value FROM pg_class, pg_options_to_table(reloptions)"
            " WHERE oid = 'pgjobs_job'::regclass AND option_name = 'fillfactor'"
        )
        (usual,) = cursor.fetchone()
        cursor.execute(f"ALTER TABLE pgjobs_job SET (fillfactor = {FULLER if kind == 'finished' else usual})")
        cursor.execute(
            f"INSERT INTO pgjobs_job (name, payload, timeout_seconds, queue, run_at{columns})"
            " SELECT 'benchmarks.jobs.carry', %s::jsonb, 1800,"
            " CASE %s WHEN 1 THEN 'default' ELSE 'queue' || n %% %s END,"
            f" {run_at}{values} FROM generate_series(1, %s) AS n",
            [PAYLOAD, queues, queues, count],
        )
        cursor.execute(f"ALTER TABLE pgjobs_job SET (fillfactor = {usual})")


def vacuum(alias: str = "default", *, freeze: bool = False) -> None:
    """VACUUM ANALYZE the table of jobs; with ``freeze``, freeze its rows, like rows written long ago.

    From PostgreSQL 18 on each VACUUM freezes some pages that it could skip, so a fresh history would be written once
    more, in full pages, during another measurement.
    """
    with connections[alias].cursor() as cursor:
        cursor.execute(f"VACUUM (ANALYZE, FREEZE {freeze}) pgjobs_job")


def value(statement: str, *params: float | str) -> Any:
    """Return the one value of a query."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params or None)
        return cursor.fetchone()[0]


def wal_bytes() -> int:
    """Return how many bytes of WAL the server has written since it was initialised."""
    return int(value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))


def finished() -> int:
    """Return how many jobs have ended, by the index."""
    return int(value("SELECT count(*) FROM pgjobs_job WHERE outcome = 'succeeded' AND finished_at IS NOT NULL"))


def unfinished() -> bool:
    """Return whether a job has not ended.

    Checks the youngest first: under an open snapshot, the search has to walk over all ended jobs.
    """
    return bool(
        value("SELECT coalesce((SELECT finished_at IS NULL FROM pgjobs_job ORDER BY id DESC LIMIT 1), false)")
    ) or bool(value("SELECT EXISTS (SELECT FROM pgjobs_job WHERE finished_at IS NULL AND hold IS NULL)"))


def span() -> tuple[float, float]:
    """Return when the first job was claimed and when the last ended, as seconds of the server's clock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM min(claimed_at))::float8, extract(epoch FROM max(finished_at))::float8"
            " FROM pgjobs_job"
        )
        first, last = cursor.fetchone()
        return float(first), float(last)


def ends_of_tenths() -> list[float]:
    """Return the instants at which each tenth of the jobs was complete, as seconds of the server's clock."""
    shares = [n / 10 for n in range(1, 11)]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT percentile_disc(%s::float8[]) WITHIN GROUP (ORDER BY extract(epoch FROM finished_at)::float8)"
            " FROM pgjobs_job WHERE finished_at IS NOT NULL",
            [shares],
        )
        return [float(end) for end in cursor.fetchone()[0]]


def shape() -> dict[str, float]:
    """Return sizes, dead tuples and the share of HOT updates of the table of jobs."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()"
            if connection.pg_version >= 150000  # type: ignore[attr-defined]
            else "SELECT pg_stat_clear_snapshot()"
        )
        cursor.execute(
            "SELECT pg_relation_size(relid) / 1024.0 ^ 2, pg_indexes_size(relid) / 1024.0 ^ 2, n_dead_tup::float8,"
            " n_live_tup::float8, n_tup_upd::float8, n_tup_hot_upd::float8"
            " FROM pg_stat_user_tables WHERE relname = 'pgjobs_job'"
        )
        names = ("table_mb", "indexes_mb", "dead", "live", "updates", "hot_updates")
        return {name: round(float(number), 1) for name, number in zip(names, cursor.fetchone(), strict=True)}
