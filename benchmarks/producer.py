"""A process that registers, or inserts, when told so: ``WAY TIMES`` on stdin, the seconds on stdout."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import django


def main() -> None:
    """Obey until stdin ends."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    from benchmarks import jobs

    def register() -> None:
        jobs.noop.register(7)

    ways: dict[str, Callable[[], None]] = {"bare": bare_insert, "register": register}
    for order in sys.stdin:
        way, times = order.split()
        print(f"{seconds(ways[way], int(times)):.6f}", flush=True)


def bare_insert() -> None:
    """Insert the row that ``register()`` inserts, through Django's cursor."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgjobs_job"
            " (name, queue, priority, max_attempts, timeout_seconds, payload, description, run_at)"
            " VALUES (%s, 'default', 0, 5, 1800, %s, '', statement_timestamp()) RETURNING id, run_at, created_at",
            ["benchmarks.jobs.noop", '{"args": [7], "kwargs": {}}'],
        )
        cursor.fetchone()


def seconds(act: Callable[[], object], times: int) -> float:
    """Return how long ``times`` calls take."""
    began = time.perf_counter()
    for _ in range(times):
        act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
