"""A process that registers or inserts on command: it reads ``WAY TIMES`` from stdin and writes seconds to stdout.

``delay:MICROSECONDS 1`` simulates a disk that flushes so slowly, from then on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import django
from django.test import override_settings


def main() -> None:
    """Run commands until stdin ends."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    django.setup()
    from benchmarks import jobs

    def register() -> None:
        jobs.noop.register(7)

    ways: dict[str, Callable[[], None]] = {
        "bare": bare_insert,
        "register": register,
        "silent": buy,
        "notifying": buy,
        "inside": partial(buy, notify=True),
    }
    if os.environ.get("PGJOBS_BENCH_TASKS"):
        from benchmarks import tasks

        ways["enqueue"] = partial(tasks.noop.enqueue, 7)
    for order in sys.stdin:
        way, times = order.split()
        if way.startswith("delay:"):
            delay_flushes(int(way.removeprefix("delay:")))
            print("0", flush=True)
            continue
        with override_settings(PGJOBS={"NOTIFY": False}) if way in ("silent", "inside") else nullcontext():
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


def buy(*, notify: bool = False) -> None:
    """Insert a business row and register a job in one transaction; with ``notify``, NOTIFY in it too."""
    from django.db import connection, transaction

    from benchmarks import jobs

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO bench_order (what) VALUES ('shoes')")
        jobs.noop.register(7)
        if notify:
            cursor.execute("SELECT pg_notify('pgjobs', '0:default')")


def delay_flushes(microseconds: int) -> None:
    """Delay every WAL flush of this connection by so much, as on a slow disk."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SET commit_siblings = 0")
        cursor.execute(f"SET commit_delay = {microseconds}")


def seconds(act: Callable[[], object], times: int) -> float:
    """Return how long ``times`` calls take."""
    began = time.perf_counter()
    for _ in range(times):
        act()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
