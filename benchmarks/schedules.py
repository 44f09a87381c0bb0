"""How the leader fares with very many schedules made at run time; prints times and what was fired (ADR-0027).

    python -m benchmarks.schedules [--entries 100000] [--tenants 5000] [--due 1000] [--late 1000] [--seconds 20]

A new leader finds all of them unplanned, while others come due. Then it plans them in turns; then a quiet turn; then a
turn in which many are due at once. It uses ``maintenance.cron_firing.Firer`` on a worker's own connection.

At last many are late by a weekend and make up for a thousand fires each, in the thread that has the duties of a worker,
for some seconds: how many of them are made, how many of an innocent entry of every second, and for how long the term
was not renewed. And the overview opens beside 500 of them.

Uses DATABASE_URL as tests do, makes a database of its own and drops it. Compare figures of one run only.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from django.db import connection

from benchmarks.claim_orm import own_database
from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.maintenance.cron_rows import CronRows
from django_pgjobs.maintenance.duties import duties
from django_pgjobs.maintenance.leader import TERM_SECONDS, Leader
from django_pgjobs.store import statements as store
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.maintainer import TICK_SECONDS

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
    parser.add_argument("--late", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with own_database():
        ask(SEED, {"entries": options.entries, "tenants": options.tenants, "options": OPTIONS})
        ask("VACUUM ANALYZE pgjobs_cron_entry")
        db = WorkerConnection("default", "bench", statement_seconds=60)
        try:
            measure(db, options)
            catch_up(db, options.late, options.seconds)
        finally:
            db.close()
        overview()


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


LATE = """
INSERT INTO pgjobs_cron_entry (
    name, job_name, declared_expression, declared_zone, declared_payload, declared_options, misfire, declared_at,
    created_at, last_fire_at, next_fire_at
)
SELECT 'late:' || n, 'bench.job', (ARRAY['* * * * *', '*/2 * * * *', '* * * * * */30'])[n %% 3 + 1], 'Europe/Berlin',
    '{"args": [], "kwargs": {}}'::jsonb, %(options)s::jsonb, 'all(1000)', statement_timestamp(),
    statement_timestamp() - interval '9 days', statement_timestamp() - interval '60 hours',
    statement_timestamp() - interval '60 hours'
FROM generate_series(1, %(late)s) AS n
UNION ALL
SELECT 'innocent', 'bench.job', 'every 1 second', 'UTC', '{"args": [], "kwargs": {}}'::jsonb, %(options)s::jsonb,
    'once', statement_timestamp(), statement_timestamp() - interval '9 days',
    statement_timestamp() - interval '60 hours', statement_timestamp() - interval '60 hours'
"""


def catch_up(db: WorkerConnection, late: int, seconds: float) -> None:
    """Let a worker's maintenance thread catch up beside an entry of every second, and print what it made."""
    ask("DELETE FROM pgjobs_job")
    ask("DELETE FROM pgjobs_cron_entry")
    ask(LATE, {"late": late, "options": OPTIONS})
    ask("VACUUM ANALYZE pgjobs_cron_entry")
    leader = Leader(store.Author(uuid4(), "bench"))
    work = [duty for duty in duties(leader, lambda rescued: None, {}) if duty.name != "cron_missing"]
    began = renewed = time.monotonic()
    longest = 0.0
    while time.monotonic() < began + seconds:
        for duty in work:
            duty.tick(db)
            asked_at = leader.trusted_until - TERM_SECONDS
            if asked_at > renewed:
                longest, renewed = max(longest, asked_at - renewed), asked_at
        time.sleep(TICK_SECONDS)
    took = time.monotonic() - began
    made = ask("SELECT count(*) FROM pgjobs_job WHERE cron_entry <> 'innocent'")
    kept = ask("SELECT count(*) FROM pgjobs_job WHERE cron_entry = 'innocent'")
    print(
        f"{late:,} late by a weekend: {made:,} fires in {took:.0f} s, {made / took:,.0f} a second; every second: "
        f"{kept} fires, {kept / took:.2f} of them; term {leader.term}, renewed after {longest:.1f} s at most"
    )


SEEN = """
INSERT INTO pgjobs_cron_entry (
    name, job_name, declared_expression, declared_zone, declared_payload, declared_options, declared_at, next_fire_at
)
SELECT 'seen:' || n, 'bench.job',
    (ARRAY['* * * * *', '0 0 29 2 *', '0 7 * * mon', '0 0 1 1 fri#5', 'every 9 weeks', '*/5 * * * * 30'])[n %% 6 + 1],
    'America/New_York', '{"args": [], "kwargs": {}}'::jsonb, %s::jsonb, statement_timestamp(), statement_timestamp()
FROM generate_series(1, 500) AS n
"""


def overview() -> None:
    """Print how long the overview's part for schedules takes beside 500 of all kinds."""
    from django_pgjobs.admin.overview.crons import crons

    ask("DELETE FROM pgjobs_cron_entry")
    ask(SEEN, [OPTIONS])
    seen: Any = SimpleNamespace(
        using="default", db=store.on("default"), latest=SimpleNamespace(now=datetime.now(UTC)),
        page=lambda *_: "", pages=SimpleNamespace(job=lambda _: ""),
    )  # fmt: skip
    for kind, first in (("rare", "declared_expression LIKE '0 0%'"), ("frequent", "declared_expression LIKE '*%'")):
        ask(f"UPDATE pgjobs_cron_entry SET next_fire_at = CASE WHEN {first} THEN statement_timestamp() END")
        took: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            crons(seen)
            took.append((time.perf_counter() - began) * 1000)
        print(f"overview beside 500 schedules, {kind} ones first: {max(took):.0f} ms")


if __name__ == "__main__":
    main()
