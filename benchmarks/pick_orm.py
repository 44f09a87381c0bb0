"""Pick and mark rows on a path that is not hot, by the ORM and by one statement; print times (ADR-0007).

It times ``maintenance.cron_firing.MarkMissing`` on a worker's own connection: ``orm`` is the real code, ``raw`` one
statement that picks, locks and writes. Both run with nothing to mark, the usual case, and with fifty entries.

    python -m benchmarks.pick_orm [--rounds 5] [--seconds 1]

Uses DATABASE_URL as tests do, makes a database of its own and drops it. Compare figures of one run only.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable

from django.db import connection

from benchmarks.claim_orm import own_database
from django_pgjobs.maintenance.cron_firing import MISSING_SECONDS, MarkMissing
from django_pgjobs.worker.shared.connection import WorkerConnection

RAW = f"""
WITH old AS MATERIALIZED (
    SELECT e.name
    FROM pgjobs_cron_entry AS e
    WHERE e.missing_since IS NULL AND e.declared_at < statement_timestamp() - interval '{MISSING_SECONDS} s'
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgjobs_cron_entry AS e
SET missing_since = statement_timestamp()
WHERE e.name = ANY (ARRAY (SELECT name FROM old))
RETURNING e.name, e.job_name
"""


def seed(entries: int) -> None:
    """Refill the table with entries that were declared long ago."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgjobs_cron_entry")
        cursor.execute(
            "INSERT INTO pgjobs_cron_entry (name, job_name, declared_expression, declared_zone, declared_payload,"
            " declared_options, declared_at)"
            " SELECT 'entry ' || n, 'bench.job', '@daily', 'UTC', '{}', '{}', '2001-01-01'"
            " FROM generate_series(1, %s) AS n",
            [entries],
        )


def timed(way: Callable[[], object], entries: int, seconds: float) -> float:
    """Return the median of a turn in milliseconds."""
    turns: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(turns) < 3:
        seed(entries)
        began = time.perf_counter()
        way()
        turns.append(time.perf_counter() - began)
    return statistics.median(turns) * 1000


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    with own_database():
        db = WorkerConnection("default", "benchmark", statement_seconds=60.0)
        mark = MarkMissing()
        ways: dict[str, Callable[[], object]] = {
            "orm": lambda: mark(db),
            "raw": lambda: db.connection.execute(RAW).fetchall(),
        }
        figures: dict[tuple[str, int], list[float]] = {}
        logging.disable()
        for _ in range(options.rounds):
            for entries in (0, 50):
                for name, way in ways.items():
                    figures.setdefault((name, entries), []).append(timed(way, entries, options.seconds))
        db.close()
        for (name, entries), took in sorted(figures.items()):
            middle = statistics.median(took)
            spread = (max(took) - min(took)) / middle * 50
            print(f"{name:<4} {entries:>3} entries: {middle:6.2f} ms (± {spread:.0f} %)")


if __name__ == "__main__":
    main()
