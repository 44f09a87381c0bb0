"""How a claim finds jobs of one colour behind many of the other: by a list of names, or by a column (ADR-0022).

The jobs of one name wait behind ``--jobs`` of another. Timed, in turns:

* ``any``       a claim that takes jobs of any kind
* ``names``     sql/claim_jobs.sql: it gets the names that run on the loop, and skips them
* ``names, on`` the same from where the previous claim ended, as a worker continues
* ``column``    the same statement with a boolean column, and an index that has it before run_at
* ``trailing``  the same with that column at the end of today's index
* ``register``  100 rows inserted, with today's index and with two of them: the price of a second one for producers

    python benchmarks/claim_colours.py [--jobs 100000] [--rounds 20]

Uses DATABASE_URL as tests do, makes a database of its own and drops it. Compare figures of one run only.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django
import psycopg

django.setup()

from django.db import connection  # noqa: E402
from django.test.utils import setup_databases, teardown_databases  # noqa: E402

from django_pgjobs.models import Claim, Job  # noqa: E402
from django_pgjobs.store import statements as store  # noqa: E402
from django_pgjobs.worker.shared.connection import WorkerConnection  # noqa: E402

BEGINNING = datetime(1, 1, 1, tzinfo=UTC), 0
BY_NAME = "AND (j.ending IS NULL AND j.name IN (SELECT unnest(%(async_names)s::text[]))) = line.is_async"
BY_COLUMN = "AND j.is_async = line.is_async"
NAMES = [f"some.other.job_{number}" for number in range(100)] + ["behind.these"]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        _compare(asked.jobs, asked.rounds)
    finally:
        teardown_databases(databases, verbosity=0)


def _compare(jobs: int, rounds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgjobs_job ADD COLUMN is_async boolean NOT NULL DEFAULT false")
        _register(jobs, "behind.these")
        cursor.execute("UPDATE pgjobs_job SET is_async = true")
        _register(rounds * 5 * 5, "wanted")
        cursor.execute("VACUUM (ANALYZE) pgjobs_job")
    db = WorkerConnection("default", "bench", statement_seconds=60.0, durable=False)
    try:
        _claims(db, jobs, rounds)
    finally:
        db.close()
    _registrations(rounds)


def _claims(db: WorkerConnection, jobs: int, rounds: int) -> None:
    last = Job.objects.filter(name="behind.these").order_by("-run_at", "-id").values_list("run_at", "id")[0]
    took = {"any": _timed(rounds, lambda: _claim(db, BEGINNING, ()))}
    took["names"] = _timed(rounds, lambda: _claim(db, BEGINNING, NAMES))
    took["names, on"] = _timed(rounds, lambda: _claim(db, last, NAMES))
    plain = store.statement("claim_jobs")
    by_column = plain.replace(BY_NAME, BY_COLUMN)
    assert by_column != plain
    with connection.cursor() as cursor:
        for way, columns in (
            ("column", "queue, priority, is_async, run_at, id"),
            ("trailing", "queue, priority, run_at, id, is_async"),
        ):
            cursor.execute(f"CREATE INDEX colour ON pgjobs_job ({columns}) WHERE finished_at IS NULL AND hold IS NULL")
            cursor.execute("ALTER INDEX pgjobs_job_claim_order RENAME TO hidden")
            cursor.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'hidden'::regclass")
            cursor.execute("VACUUM (ANALYZE) pgjobs_job")
            cursor.execute("SELECT pg_relation_size('colour'), pg_relation_size('hidden')")
            size = "{} bytes, today's index {}".format(*cursor.fetchone())
            took[way] = _timed(rounds, lambda: _claim(db, BEGINNING, (), by_column))
            cursor.execute("UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'hidden'::regclass")
            cursor.execute("ALTER INDEX hidden RENAME TO pgjobs_job_claim_order")
            cursor.execute("DROP INDEX colour")
            print(f"{way}: {size}")
    for way, seconds in took.items():
        print(f"{way:10} {1000 * seconds:8.2f} ms a claim of 5 behind {jobs}")


def _claim(db: WorkerConnection, begin: tuple[datetime, int], names: Sequence[str], text: str = "") -> None:
    claim_id = uuid4()
    lines = {False: store.Line([store.Pair("default", 0, *begin)], 5)}
    asked = Asking(db, text) if text else db
    claimed = store.claim_lines(
        asked, lines, names, claim_id=claim_id, worker=uuid4(), lease_seconds=30, allowance_seconds=5, grace_seconds=10
    )
    assert len(claimed.jobs) == 5, claimed


class Asking:
    """A worker's connection that replaces the text of a statement."""

    def __init__(self, db: WorkerConnection, text: str) -> None:
        self.db, self.text = db, text

    def fetch(self, name: str, params: store.Params) -> store.Rows:
        """Run it instead."""
        return psycopg.Cursor(self.db.connection).execute(self.text, params, binary=True).fetchall()


def _timed(rounds: int, act: Callable[[], None]) -> float:
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)
        Job.objects.filter(claim_id__isnull=False).update(claim_id=None)
        Claim.objects.all().delete()
    return statistics.median(took)


def _register(count: int, name: str) -> None:
    new = store.NewJob(name, '{"args": [], "kwargs": {"text": "' + "x" * 110 + '"}}')
    store.register_jobs("default", [store.NewJobs(new, [new.payload] * count)])


def _registrations(rounds: int) -> None:
    took: dict[str, list[float]] = {"one index": [], "two indexes": []}
    with connection.cursor() as cursor:
        for _ in range(3 * rounds):
            for way, seconds in took.items():
                if way == "two indexes":
                    cursor.execute(
                        "CREATE INDEX colour ON pgjobs_job (queue, priority, is_async, run_at, id)"
                        " WHERE finished_at IS NULL AND hold IS NULL"
                    )
                began = time.perf_counter()
                _register(2000, "wanted")
                seconds.append(time.perf_counter() - began)
                cursor.execute("DROP INDEX IF EXISTS colour")
    one, two = (statistics.median(seconds) for seconds in took.values())
    print(f"register   a second index: {two / one:.3f} times as long for 2,000 jobs by COPY")


if __name__ == "__main__":
    main()
