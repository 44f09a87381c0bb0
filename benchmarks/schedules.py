"""How the leader fares with very many schedules made at run time; prints times and what was fired (ADR-0027).

    python -m benchmarks.schedules [--entries 100000] [--tenants 5000] [--due 1000]

A new leader finds all of them unplanned, while others come due. Then it plans them in turns; then a quiet turn; then a
turn in which many are due at once. It uses ``maintenance.cron_firing.Firer`` on a worker's own connection.

Uses DATABASE_URL as tests do, makes a database of its own and drops it. Compare figures of one run only.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from typing import Any
from uuid import uuid4

from django.db import connection

from benchmarks.claim_orm import own_database
from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.maintenance.cron_rows import CronRows
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.store import statements as store
from django_pgjobs.worker.shared.connection import WorkerConnection

OPTIONS = (
    '{"queue": "default", "priority": 0, "max_attempts": 5, "timeout_seconds": 60, "description": "", "key": null,'
    ' "key_scope": "", "idempotency_key": null, "limit_key": null}'
)

SEED = """
INSERT INTO pgjobs_cron_entry (
    name, origin, job_name, declared_expression, declared_zone, declared_payload, declared_options, fingerprint
)
SELECT 'tenant:' || n %% %(tenants)s || ':' || n, 'row', 'bench.job',
    CASE WHEN n %% 4 = 0 THEN 'every ' || 30 + n %% 50 || ' minutes' ELSE n %% 60 || ' ' || n %% 24 || ' * * *' END,
    (ARRAY['Europe/Berlin', 'UTC', 'America/New_York', 'Asia/Tokyo'])[n %% 4 + 1],
    jsonb_build_object('args', jsonb_build_array(n), 'kwargs', '{}'::jsonb), %(options)s::jsonb, 'known'
FROM generate_series(1, %(entries)s) AS n
"""


def ask(text: str, params: Any = None) -> int:
    """Run a statement on Django's connection; return its first value, or the number of rows."""
    with connection.cursor() as cursor:
        cursor.execute(text, params)
        return int(cursor.fetchone()[0]) if cursor.description else cursor.rowcount


def turn(firer: Firer, db: store.Database) -> float:
    """Return the milliseconds of one turn."""
    began = time.perf_counter()
    firer(db)
    return (time.perf_counter() - began) * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--tenants", type=int, default=5_000)
    parser.add_argument("--due", type=int, default=1_000)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with own_database():
        ask(SEED, {"entries": options.entries, "tenants": options.tenants, "options": OPTIONS})
        ask("VACUUM ANALYZE pgjobs_cron_entry")
        db = WorkerConnection("default", "bench", statement_seconds=60)
        try:
            measure(db, options)
        finally:
            db.close()


def measure(db: WorkerConnection, options: argparse.Namespace) -> None:
    """Print a line for each situation."""
    due = (
        "UPDATE pgjobs_cron_entry SET next_fire_at = statement_timestamp() - interval '1 s', "
        "created_at = statement_timestamp() - interval '2 days', last_fire_at = NULL "
        "WHERE name IN (SELECT name FROM pgjobs_cron_entry ORDER BY md5(name) LIMIT %s)"
    )
    firer = Firer()
    unplanned = "SELECT count(*) FROM pgjobs_cron_entry WHERE next_fire_at IS NULL"
    turns: list[float] = []
    ask(due, [100])
    turns.append(turn(firer, db))
    fired = ask("SELECT count(*) FROM pgjobs_job")
    print(f"first turn of a new leader: {turns[0]:.0f} ms, fired {fired} of 100 that were due")
    began = time.perf_counter()
    cpu = time.process_time()
    while ask(unplanned):
        turns.append(turn(firer, db))
    seconds = time.perf_counter() - began
    print(
        f"planned all {options.entries:,} in {len(turns)} turns, {seconds:.0f} s of turns "
        f"({time.process_time() - cpu:.0f} s of the leader's CPU); turn: median "
        f"{statistics.median(turns):.0f} ms, longest {max(turns):.0f} ms"
    )
    quiet = [turn(firer, db) for _ in range(20)]
    print(f"quiet turn: median {statistics.median(quiet):.1f} ms, longest {max(quiet):.1f} ms")
    before = ask("SELECT count(*) FROM pgjobs_job")
    ask(due, [options.due])
    took = [turn(firer, db)]
    while ask("SELECT count(*) FROM pgjobs_job") < before + options.due and len(took) < 1000:
        took.append(turn(firer, db))
    print(f"{options.due:,} due at once: {len(took)} turns, {sum(took):.0f} ms in all, longest {max(took):.0f} ms")
    rows = CronRows(Leader(store.Author(uuid4(), "bench")))
    began = time.perf_counter()
    rows.tick(db)
    print(f"confirming the jobs of all schedules: {(time.perf_counter() - began) * 1000:.1f} ms")


if __name__ == "__main__":
    main()
