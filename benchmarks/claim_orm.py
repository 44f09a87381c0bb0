"""Claim batches by the raw statement and by the ORM's ``select_for_update(skip_locked=True)``; print ratios (ADR-0007).

Both pick the same rows under the same conditions and write the same columns and ledger. Six variants are timed, in
turns, so that a busy machine slows all of them equally:

* ``raw``      sql/claim_jobs.sql on a worker's own connection: one statement, binary results, no Django
* ``raw, durable``      the same with a commit that waits for the disk
* ``raw, no frontier``  the same, always from the beginning of the queue
* ``raw on Django``     the same through Django's connection: what the ORM could save at most by better SQL
* ``orm``      ORM: pick and lock, then update, then insert the ledger row; rows read as tuples; from the frontier
* ``orm, rows``         the same with model instances, the obvious first version

    python benchmarks/claim_orm.py [--jobs 20000] [--seconds 2] [--rounds 3] [--future 20000]

Uses DATABASE_URL as tests do, makes a database of its own and drops it. Compare figures of one run only.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from django.db import connection, transaction  # noqa: E402
from django.db.models import DateTimeField, ExpressionWrapper, F, Q  # noqa: E402
from django.db.models.functions import Now  # noqa: E402
from django.test.utils import setup_databases, teardown_databases  # noqa: E402

from django_pgjobs.models import Claim, Job  # noqa: E402
from django_pgjobs.store import statements as store  # noqa: E402
from django_pgjobs.worker.shared.connection import WorkerConnection  # noqa: E402

BATCHES = (1, 100, 500)
BEGINNING = (datetime(1, 1, 1, tzinfo=UTC), 0)
WORKER = uuid4()
PAYLOAD = '{"args": [], "kwargs": {"text": "' + "x" * 110 + '"}}'

Frontier = tuple[datetime, int]
Claimer = Callable[[int, Frontier], tuple[int, Frontier]]
"""(limit, where to begin) → (jobs claimed, where the next begins)"""


def raw(db: store.Database, *, frontier: bool = True) -> Claimer:
    """Return the worker's own way to claim, on ``db``."""

    def claim(limit: int, begin: Frontier) -> tuple[int, Frontier]:
        pair = store.Pair("default", 0, *(begin if frontier else BEGINNING))
        jobs = store.claim_jobs(
            db, [pair], claim_id=uuid4(), worker=WORKER, limit=limit,
            lease_seconds=30.0, allowance_seconds=5.0, grace_seconds=30.0,
        )  # fmt: skip
        return len(jobs), ((jobs[-1].run_at, jobs[-1].id) if jobs else begin)

    return claim


COLUMNS = (
    "id", "queue", "priority", "run_at", "name", "attempt", "max_attempts", "timeout_seconds", "ending",
    "ending_attempt", "cancel_requested_at", "description", "payload", "headers", "error",
)  # fmt: skip


def orm(*, instances: bool) -> Claimer:
    """Return the same claim written with the ORM: three statements in a transaction."""

    def claim(limit: int, begin: Frontier) -> tuple[int, Frontier]:
        claim_id = uuid4()
        with transaction.atomic():
            after = Q(run_at__gt=begin[0]) | Q(run_at=begin[0], id__gt=begin[1])
            ready = Job.objects.filter(
                after, queue="default", priority=0, run_at__gte=begin[0], run_at__lte=Now(),
                finished_at__isnull=True, hold__isnull=True, claim_id__isnull=True,
            )  # fmt: skip
            picked: Any = ready.order_by("run_at", "id").select_for_update(skip_locked=True, no_key=True)
            if instances:
                rows = [(job.pk, job.run_at, job.timeout_seconds) for job in picked[:limit]]
            else:
                rows = [(row[0], row[3], row[7]) for row in picked.values_list(*COLUMNS)[:limit]]
            if not rows:
                return 0, begin
            seconds = rows[0][2] or 0.0
            deadline = ExpressionWrapper(Now() + timedelta(seconds=seconds + 5.0), output_field=DateTimeField())
            Job.objects.filter(pk__in=[row[0] for row in rows]).update(
                claim_id=claim_id, claimed_at=Now(), attempt=F("attempt") + 1, deadline_at=deadline
            )
            expires: Any = ExpressionWrapper(Now() + timedelta(seconds=30), output_field=DateTimeField())
            parts = range(0, len(rows), 200)
            Claim.objects.bulk_create(
                Claim(
                    claim_id=claim_id, part=start // 200, worker=WORKER, lease_expires_at=expires, check_at=expires,
                    job_ids=[row[0] for row in rows[start : start + 200]],
                )
                for start in parts
            )  # fmt: skip
        return len(rows), (rows[-1][1], rows[-1][0])

    return claim


def seed(jobs: int, future: int) -> None:
    """Refill the table: ready jobs, and others far ahead that must not slow a claim down."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgjobs_job, pgjobs_claim, pgjobs_attempt")
        cursor.execute(
            "INSERT INTO pgjobs_job (name, payload, timeout_seconds, run_at)"
            " SELECT 'bench.job', %s::jsonb, 1800, statement_timestamp() - make_interval(secs => 3600 - n * 0.001)"
            " FROM generate_series(1, %s) AS n",
            [PAYLOAD, jobs],
        )
        cursor.execute(
            "INSERT INTO pgjobs_job (name, payload, timeout_seconds, run_at)"
            " SELECT 'bench.job', %s::jsonb, 1800, statement_timestamp() + interval '1 day'"
            " FROM generate_series(1, %s)",
            [PAYLOAD, future],
        )
        cursor.execute("VACUUM ANALYZE pgjobs_job")


def timed(claim: Claimer, batch: int, seconds: float) -> tuple[float, int]:
    """Claim for so many seconds, or until no job is ready; return jobs per second and jobs."""
    total, begin = 0, BEGINNING
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        number, begin = claim(batch, begin)
        if not number:
            break
        total += number
    return total / (time.perf_counter() - started), total


@contextmanager
def own_database() -> Iterator[None]:
    """Make a migrated database; drop it afterwards."""
    made = setup_databases(verbosity=0, interactive=False, aliases={"default": True}, serialized_aliases=set())
    try:
        yield
    finally:
        connection.close()
        teardown_databases(made, verbosity=0)


def measure(options: argparse.Namespace) -> dict[tuple[str, int], list[float]]:
    """Time every variant at every batch size, for some rounds in turn."""
    figures: dict[tuple[str, int], list[float]] = {}
    worker = WorkerConnection("default", "benchmark", statement_seconds=60.0, durable=False)
    durable = WorkerConnection("default", "benchmark", statement_seconds=60.0)
    ways: dict[str, Claimer] = {
        "raw": raw(worker),
        "raw, durable": raw(durable),
        "raw, no frontier": raw(worker, frontier=False),
        "raw on Django": raw(store.on("default")),
        "orm": orm(instances=False),
        "orm, rows": orm(instances=True),
    }
    for _ in range(options.rounds):
        for batch in BATCHES:
            for name, claim in ways.items():
                seed(options.jobs, options.future)
                rate, _total = timed(claim, batch, options.seconds)
                figures.setdefault((name, batch), []).append(rate)
    worker.close()
    durable.close()
    return figures


def report(figures: dict[tuple[str, int], list[float]]) -> None:
    """Print medians, their spread, and ratios to the ORM."""
    names = list(dict.fromkeys(name for name, _ in figures))
    print(f"{'jobs/s (spread), × orm':<18}" + "".join(f"{f'batch {batch}':>28}" for batch in BATCHES))
    for name in names:
        cells = []
        for batch in BATCHES:
            rates = figures[name, batch]
            middle = statistics.median(rates)
            spread = (max(rates) - min(rates)) / middle * 100
            ratio = middle / statistics.median(figures["orm", batch])
            cells.append(f"{f'{middle:,.0f} (±{spread / 2:.0f} %) ×{ratio:.1f}':>28}")
        print(f"{name:<18}" + "".join(cells))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000, help="ready jobs in the table")
    parser.add_argument("--future", type=int, default=20_000, help="jobs a day ahead")
    parser.add_argument("--seconds", type=float, default=2.0, help="longest time of one cell")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with own_database():
        load = os.getloadavg()[0]
        with connection.cursor() as cursor:
            cursor.execute("SHOW server_version")
            version = cursor.fetchone()[0]
        print(f"PostgreSQL {version}, Django {django.get_version()}, Python {sys.version.split()[0]}, "
              f"{os.cpu_count()} cores, load before {load:.1f}")  # fmt: skip
        report(measure(options))


if __name__ == "__main__":
    main()
