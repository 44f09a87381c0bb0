"""Registering: against a bare INSERT of the same row, and rows against COPY by the number of jobs.

``python -m benchmarks.registering`` on the database of DATABASE_URL. The numbers are medians of several rounds.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import django

ROUNDS = 7
SINGLES = 500


def main() -> None:
    """Measure and print."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    _singles()
    _many()


def _singles() -> None:
    from django.db import connection

    from benchmarks import jobs, tables

    def bare() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO pgjobs_job"
                " (name, queue, priority, max_attempts, timeout_seconds, payload, description, run_at)"
                " VALUES (%s, 'default', 0, 5, 1800, %s, '', statement_timestamp()) RETURNING id, run_at, created_at",
                ["benchmarks.jobs.noop", '{"args": [7], "kwargs": {}}'],
            )
            cursor.fetchone()

    tables.empty()
    both = [(_seconds(bare, SINGLES), _seconds(lambda: jobs.noop.register(7), SINGLES)) for _ in range(ROUNDS)]
    ours = statistics.median(register for _, register in both) / SINGLES
    plain = statistics.median(insert for insert, _ in both) / SINGLES
    ratio = statistics.median(insert / register for insert, register in both)
    sys.stdout.write(f"register(): {ours * 1e6:.0f} µs, bare INSERT {plain * 1e6:.0f} µs, rate ratio {ratio:.2f}\n")


def _many() -> None:
    from benchmarks import tables
    from django_pgjobs import store
    from django_pgjobs.store import registering

    for count in (10, 50, 100, 200, 500, 1000, 10_000):
        new = [store.NewJob("benchmarks.jobs.noop", '{"args": [7], "kwargs": {}}') for _ in range(count)]
        rounds = max(3, min(50, 20_000 // count))
        tables.empty()
        rows = _seconds(lambda new=new: registering._insert_jobs("default", new), rounds) / rounds  # type: ignore[misc]
        copy = _seconds(lambda new=new: registering._copy_jobs("default", new), rounds) / rounds  # type: ignore[misc]
        sys.stdout.write(f"{count:>6} jobs: rows {count / rows:>8,.0f}/s, COPY {count / copy:>8,.0f}/s\n")


def _seconds(act: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
