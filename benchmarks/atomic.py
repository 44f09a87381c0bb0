"""What an atomic end costs beside a batched one, and beside an ``atomic()`` block of the job's own (ADR-0028).

Each turn inserts rows of one table, one transaction a row, and ends as many claimed jobs:

* ``block``          the insert in ``transaction.atomic()``, and nothing else
* ``end``            the same with ``end_atomic`` as its last statement
* ``keyed``, ``marked``   with ``end_atomic_keyed``, and with ``mark_atomic``
* ``batched``        the jobs alone, ended by ``finalise_success_fast``, 500 a statement

CPU time of this process and of its server process, which hardly depends on other load, and wall time, in turns. The
server must be on this machine, Linux.

    python benchmarks/atomic.py [--jobs 1000] [--rounds 7] [--no-disk]

``--no-disk`` sets synchronous_commit off, so that no COMMIT waits for the disk. Uses DATABASE_URL as tests do, makes a
database of its own and drops it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from django.db import connection, transaction  # noqa: E402
from django.test.utils import setup_databases, teardown_databases  # noqa: E402

from django_pgjobs.store import statements as store  # noqa: E402

AUTHOR = store.Author(UUID(int=1))
PAYLOAD = '{"args": [1], "kwargs": {}}'
BATCH = 500


def _block(ends: list[store.End], last: Callable[[store.End], object]) -> None:
    for end in ends:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO bench_effect (note) VALUES ('x')")
            assert last(end)


def _marked(end: store.End) -> bool:
    end.outcome = "succeeded"
    return store.mark_atomic(DB, end, allowance_seconds=10.0)


def _batched(ends: list[store.End]) -> None:
    for start in range(0, len(ends), BATCH):
        store.finalise_success_fast(DB, ends[start : start + BATCH], AUTHOR)


DB = store.on("default")
WAYS: dict[str, Callable[[list[store.End]], None]] = {
    "block": lambda ends: _block(ends, lambda _: True),
    "end": lambda ends: _block(ends, lambda end: store.end_atomic(DB, end)),
    "keyed": lambda ends: _block(ends, lambda end: store.end_atomic_keyed(DB, end)),
    "marked": lambda ends: _block(ends, _marked),
    "batched": _batched,
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-disk", action="store_true")
    asked = parser.parse_args()
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE bench_effect (id bigserial PRIMARY KEY, note text)")
            cursor.execute(f"SET synchronous_commit = {'off' if asked.no_disk else 'on'}")
        _compare(asked.jobs, asked.rounds)
    finally:
        teardown_databases(databases, verbosity=0)


def _compare(jobs: int, rounds: int) -> None:
    took: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for _ in range(rounds):
        for name, way in WAYS.items():
            took[name].append(_measured(way, jobs))
    for name, each in took.items():
        ours, servers, wall = (statistics.median(column) for column in zip(*each, strict=True))
        least, most = min(sum(costs[:2]) for costs in each), max(sum(costs[:2]) for costs in each)
        print(
            f"{name:8} {ours + servers:6.1f} µs of CPU a job ({least:.1f} to {most:.1f}): "
            f"here {ours:.1f}, in the server {servers:.1f}; wall {wall:.0f}"
        )


def _server_ns() -> int:
    assert connection.connection is not None
    pid = connection.connection.info.backend_pid
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0])


def _measured(way: Callable[[list[store.End]], None], jobs: int) -> tuple[float, float, float]:
    """Return the µs a job: of CPU here, of CPU in the server, on the wall."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgjobs_job, pgjobs_claim, bench_effect")
        store.register_jobs("default", [store.NewJobs(store.NewJob("bench.job", PAYLOAD), [PAYLOAD] * jobs)])
        cursor.execute("VACUUM (ANALYZE) pgjobs_job")
    claim_id = uuid4()
    pairs = [store.Pair("default", 0, "-infinity", 0)]  # type: ignore[arg-type]
    claimed = store.claim_jobs(
        DB, pairs, claim_id=claim_id, worker=AUTHOR.worker, limit=jobs,
        lease_seconds=600, allowance_seconds=5, grace_seconds=10,
    )  # fmt: skip
    ends = [store.End(job.id, str(claim_id), 0.001, result="7") for job in claimed]
    ours, servers, wall = time.process_time_ns(), _server_ns(), time.perf_counter_ns()
    way(ends)
    return (
        (time.process_time_ns() - ours) / jobs / 1e3,
        (_server_ns() - servers) / jobs / 1e3,
        (time.perf_counter_ns() - wall) / jobs / 1e3,
    )


if __name__ == "__main__":
    main()
