"""One worker for many schemas: its first round, memory, connections, CPU time, and pickup at some paces.

``python -m benchmarks.tenants [--schemas N] [--paces A,B] [--seconds S] [--targets]``

It makes a database with a schema for each tenant, and waits until a worker has led in each and all sleep. Then jobs are
registered in random schemas, at random instants, so many a second. The clock of a pickup starts when ``register()`` has
returned and ends at the first line of the job. Memory is the proportional set size of all processes of the worker; CPU
time is that per job, by process and by connection. With ``--targets`` it ends with status 1 if a figure misses its
target. Linux only: it reads ``/proc``.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks import stamps
from benchmarks.figures import Figure, at_most, percentile, shown, table
from benchmarks.profile import _process_clock

DATABASE = "pgjobs_bench_tenants"
MOST_MEGABYTES, MOST_CONNECTIONS, MOST_MILLISECONDS = 150, 8, 50
ROUND_SECONDS = 300.0
SLEEP_SECONDS = 30.0


def names() -> list[str]:
    """Return the names of the schemas: ``PGJOBS["SCHEMAS"]`` of the worker and of the producer."""
    return [f"tenant_{number:03}" for number in range(int(os.environ["PGJOBS_BENCH_SCHEMAS"]))]


def main() -> None:
    """Make the schemas, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--paces", default="5,10")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--targets", action="store_true")
    options = parser.parse_args()
    from benchmarks.server import Server

    server = Server(os.environ["DATABASE_URL"])
    os.environ |= {
        "DATABASE_URL": server.make(DATABASE),
        "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
        "PGJOBS_BENCH_SCHEMAS": str(options.schemas),
    }
    try:
        found = list(_measured(options))
    finally:
        server.drop(DATABASE)
    rows = [(each.text, shown(each.value, each.unit), f"{each.reach or ''} {each.verdict}") for each in found]
    sys.stdout.write(f"{table(rows)}\n")
    if options.targets and any(each.verdict == "missed" for each in found):
        sys.exit(1)


def _measured(options: argparse.Namespace) -> Iterator[Figure]:
    import django

    django.setup()
    from django.db import connections

    from benchmarks import workers

    _make(names())
    with workers.stamp_file() as path:
        sizes = {"processes": options.processes, "threads": options.threads}
        began = time.monotonic()
        with workers.working(**sizes, stamps=path, empty=False) as worker:
            workers.wait_until(worker, _all_have_slept, ROUND_SECONDS, "has not led everywhere", pause=0.5)
            yield Figure("round", "start → all were led once, and sleep", time.monotonic() - began, "s")
            seen, first = _Seen(worker.process.pid), 0
            seen.look()
            for pace in map(float, options.paces.split(",")):
                before, count = seen.clocks(), max(1, int(pace * options.seconds))
                waits = _picked_up(path, first, count, pace, seen.look)
                first += count
                workers.wait_until(worker, _all_sleep, SLEEP_SECONDS, "sleeps in no schema", pause=0.5)
                yield from _pickup(pace, waits)
                spent = {name: clock - before.get(name, 0.0) for name, clock in seen.clocks().items()}
                for name, seconds in sorted(spent.items(), key=lambda item: -item[1])[:6]:
                    words = f"CPU time per job at {pace:g}/s, {name}"
                    yield Figure(f"{pace:g} {name}", words, seconds / count * 1000, "ms")
            yield Figure("memory", "the worker's PSS, the most seen", seen.megabytes, "MB", at_most(MOST_MEGABYTES))
            words = "the worker's connections, the most seen"
            yield Figure("connections", words, seen.connections, "", at_most(MOST_CONNECTIONS))
            connections.close_all()


def _pickup(pace: float, waits: list[float]) -> Iterator[Figure]:
    for share in (0.5, 0.9, 0.99, 1.0):
        name = f"p{share * 100:g}"
        reach = at_most(MOST_MILLISECONDS) if share == 0.99 else None
        yield Figure(f"{pace:g} {name}", f"pickup at {pace:g}/s, {name}", percentile(waits, share), "ms", reach)


def _make(schemas: list[str]) -> None:
    """Migrate each schema: by the text of our migrations, as running them one by one takes minutes."""
    from django.core.management import call_command
    from django.db import connection
    from django.db.migrations.loader import MigrationLoader

    text = StringIO()
    for app, name in sorted(MigrationLoader(connection).disk_migrations):
        if app == "pgjobs":
            call_command("sqlmigrate", app, name, stdout=text, no_color=True)
    for schema in schemas:
        with _in_schema(schema, "CREATE SCHEMA {}") as cursor:
            cursor.execute(text.getvalue())


@contextmanager
def _in_schema(schema: str, before: str = "") -> Iterator[Any]:
    from django.db import connection

    with connection.cursor() as cursor:
        if before:
            cursor.execute(before.format(schema))
        cursor.execute(f"SET search_path TO {schema}")
        yield cursor


def _counted(tables: str) -> Iterator[int]:
    """Yield how many rows each schema has of one of these tables."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(f"SELECT count(*) FROM {name}.{tables}" for name in names()))
        yield from (count for (count,) in cursor)


def _all_sleep() -> bool:
    return not any(_counted("pgjobs_heartbeat"))


def _all_have_slept() -> bool:
    return all(_counted("pgjobs_leader_term")) and _all_sleep()


def _picked_up(path: str, first: int, count: int, pace: float, look: Callable[[], object]) -> list[float]:
    """Register jobs, and return the milliseconds until each has started."""
    from benchmarks import jobs, workers

    chance, returned, schemas = random.Random(first), {}, names()
    at = stamps.now()
    for number in range(first, first + count):
        at += chance.expovariate(pace)
        time.sleep(max(0.0, at - stamps.now()))
        with _in_schema(chance.choice(schemas)):
            jobs.note.register(number)
            returned[number] = stamps.now()
        if number % 50 == 0:
            look()
    until = stamps.now() + SLEEP_SECONDS
    while (missing := returned.keys() - stamps.read(path).keys()) and stamps.now() < until:
        time.sleep(0.1)
    if missing:
        raise workers.BenchmarkError(f"{len(missing)} jobs did not start")
    started = stamps.read(path)
    return [(started[number] - returned[number]) * 1000 for number in returned]


class _Seen:
    """The most that was seen of a worker's memory and connections."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.megabytes = self.connections = 0.0

    def look(self) -> None:
        """Look now."""
        self.megabytes = max(self.megabytes, sum(map(_pss, self._processes())) / 1024)
        self.connections = max(self.connections, len(_backends()))

    def clocks(self) -> dict[str, float]:
        """CPU seconds so far, of the worker's processes and of its connections."""
        supervisor, *others = self._processes()
        found = {"supervisor": _process_clock(supervisor), "executors": sum(map(_process_clock, others))}
        return found | {f"server {role}": _process_clock(pid) for role, pid in _backends()}

    def _processes(self) -> list[int]:
        found = [self.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, task.read_text().split())
        return found


def _pss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _backends() -> list[tuple[str, int]]:
    from benchmarks.profile import _server_processes

    return _server_processes()


if __name__ == "__main__":
    main()
