"""What a job's ``state`` costs as a stored column, a virtual column, or an SQL function of the row (ADR-0025).

Each way has a database of its own on one server; the ways take turns.

* ``stored``    a stored generated column, as until migration 0015
* ``virtual``   a virtual generated column, from PostgreSQL 18 on
* ``function``  no column, and the function of migration 0016
* ``new table`` the same on a table that never had the column
* ``narrow``    as ``new table``, without eight rare columns: what a side table could save at most

For each way: CPU time of the server process and WAL for each job, by step, in batches of 500 as a worker sends them
(``register`` is ``register_many``, ``register one`` the statement of ``register()``); bytes of an ended row, and
CPU time to read the state of all. CPU time is the lower quartile of the batches.

    python benchmarks/stored_state.py [--jobs 20000] [--rounds 5]

Uses DATABASE_URL as tests do; the role may create databases. Linux only: it reads the clock of the server process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django
import psycopg

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402

from django_pgjobs.store import statements as store  # noqa: E402
from django_pgjobs.worker.shared.connection import WorkerConnection  # noqa: E402

BATCH = 500
STORED, COMPUTED = "0015_index_of_fires", "0016_state_without_a_column"
EXPRESSION = "COALESCE(outcome, CASE WHEN claim_id IS NOT NULL THEN 'running' END, hold, 'ready')"
COPIED = """
CREATE TABLE copied (LIKE pgjobs_job INCLUDING ALL)
WITH (fillfactor = 45, autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
DROP TABLE pgjobs_job CASCADE;
ALTER TABLE copied RENAME TO pgjobs_job;
CREATE FUNCTION state(job pgjobs_job) RETURNS varchar LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN coalesce(
    job.outcome, CASE WHEN job.claim_id IS NOT NULL THEN 'running' END, job.hold,
    CASE WHEN job.id IS NOT NULL THEN 'ready' END
);
"""
RARE = (
    "hold_reason", "hold_fingerprint", "cancel_by", "cancel_reason", "cancel_mode", "progress", "release_requested_at",
    "ready_at",
)  # fmt: skip
"""Columns that none of the measured statements names."""

WAYS = {
    "stored": "",
    "virtual": "ALTER TABLE pgjobs_job DROP COLUMN state; "
    f"ALTER TABLE pgjobs_job ADD COLUMN state varchar GENERATED ALWAYS AS ({EXPRESSION}) VIRTUAL",
    "function": "",
    "new table": COPIED,
    "narrow": "".join(f"ALTER TABLE pgjobs_job DROP COLUMN {name};" for name in RARE) + COPIED,
}
"""Way → what changes the tables of migration 0015 (stored, virtual) or 0016 into it."""

READS = {
    "count by state": "SELECT j.state, count(*) FROM pgjobs_job AS j GROUP BY j.state",
    "filter by state": "SELECT count(j.name) FROM pgjobs_job AS j WHERE j.state = 'succeeded'",
}

Figures = dict[str, list[float]]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with connections["default"].cursor() as cursor:
        version = _version(cursor)
        ways = [way for way in WAYS if way != "virtual" or version >= 18]
        for way in ways:
            cursor.execute(f"DROP DATABASE IF EXISTS {_database(way)}")
            cursor.execute(f"CREATE DATABASE {_database(way)}")
    connections["default"].close()
    home = connections.settings["default"]["NAME"]
    figures: dict[str, Figures] = {way: defaultdict(list) for way in ways}
    try:
        for way in ways:
            _use(_database(way))
            call_command("migrate", "pgjobs", STORED if way in ("stored", "virtual") else COMPUTED, verbosity=0)
            with connections["default"].cursor() as cursor:
                cursor.execute(WAYS[way])
        for _ in range(asked.rounds):
            for way in ways:
                _use(_database(way))
                _measure(asked.jobs, figures[way])
    finally:
        _use(home)
        with connections["default"].cursor() as cursor:
            for way in ways:
                cursor.execute(f"DROP DATABASE {_database(way)}")
    _print(version, figures)


def _print(version: int, figures: dict[str, Figures]) -> None:
    ways = list(figures)
    print(f"PostgreSQL {version:<29}" + "".join(f"{way:>16}" for way in ways))
    for name in figures[ways[0]]:
        found = [_of(name, figures[way][name]) for way in ways]
        cells = "".join(f"{value:9.2f} {value / found[0]:6.3f}" for value in found)
        print(f"{name:<40}{cells}")


def _of(name: str, values: list[float]) -> float:
    return statistics.quantiles(values, n=4)[0] if "CPU" in name and len(values) > 3 else statistics.median(values)


def _version(cursor: Any) -> int:
    cursor.execute("SHOW server_version_num")
    return int(cursor.fetchone()[0]) // 10000


def _database(way: str) -> str:
    return "stored_state_" + way.replace(" ", "_")


def _use(name: str) -> None:
    connections["default"].close()
    connections["default"].settings_dict["NAME"] = name


def _measure(jobs: int, figures: Figures) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("TRUNCATE pgjobs_job, pgjobs_claim")
        cursor.execute("CHECKPOINT")
    db = WorkerConnection("default", "bench", statement_seconds=60.0)
    try:
        _steps(db, jobs, figures)
    finally:
        db.close()


def _steps(db: Any, jobs: int, figures: Figures) -> None:
    raw: psycopg.Connection[Any] = db.connection
    new = store.NewJob("shop.jobs.charge", '{"args": [1], "kwargs": {}}')
    one = {
        "name": new.name,
        "queue": "single",
        "priority": 0,
        "max_attempts": 5,
        "timeout": None,
        "payload": new.payload,
    }
    meter = Meter(raw, figures)
    for _ in range(jobs // BATCH // 4):
        meter.read("register one", lambda: [db.fetch("register_plain", one) for _ in range(BATCH)])
    _copy(raw, new, meter, jobs)
    raw.execute("VACUUM (ANALYZE) pgjobs_job")
    for _ in range(jobs // BATCH):
        claim_id = uuid4()
        ids: list[int] = []
        meter.read("claim", lambda: ids.extend(_claim(db, claim_id)))  # noqa: B023
        assert len(ids) == BATCH
        ends = [store.End(number, str(claim_id), seconds=0.001) for number in ids]
        meter.read("end", lambda: store.finalise_success_fast(db, ends, store.Author(uuid4(), "bench")))  # noqa: B023
    size = "SELECT avg(pg_column_size(j.*)) FROM pgjobs_job AS j WHERE j.outcome IS NOT NULL"
    figures["bytes an ended row"].append(float(raw.execute(size).fetchone()[0]))  # type: ignore[index]
    raw.execute("VACUUM (ANALYZE) pgjobs_job")
    raw.execute("SET max_parallel_workers_per_gather = 0")
    for name, text in READS.items():
        for _ in range(5):
            cpu = meter.cpu()
            raw.execute(text).fetchall()
            figures[f"{name}, ms of CPU per 100,000"].append((meter.cpu() - cpu) / jobs / 10)


def _copy(raw: Any, new: store.NewJob, meter: Meter, jobs: int) -> None:
    columns = "name, queue, priority, max_attempts, payload, run_at"
    row = f"{new.name}\tdefault\t0\t5\t{new.payload}\t2026-01-01\n"

    def batch() -> None:
        with raw.cursor().copy(f"COPY pgjobs_job ({columns}) FROM STDIN") as copy:
            copy.write(row * BATCH)

    for _ in range(jobs // BATCH):
        meter.read("register", batch)


def _claim(db: Any, claim_id: Any) -> list[int]:
    pairs = [store.Pair("default", 0, "-infinity", 0)]  # type: ignore[arg-type]
    claimed = store.claim_jobs(
        db,
        pairs,
        claim_id=claim_id,
        worker=uuid4(),
        limit=BATCH,
        lease_seconds=30,
        allowance_seconds=5,
        grace_seconds=10,
    )
    return [job.id for job in claimed]


class Meter:
    """CPU time of a connection's server process, and the server's WAL."""

    def __init__(self, raw: psycopg.Connection[Any], figures: Figures) -> None:
        self.raw, self.figures = raw, figures
        self.clock = Path(f"/proc/{raw.info.backend_pid}/schedstat")

    def read(self, step: str, act: Callable[[], object]) -> None:
        """Run the step for one batch and note what each job took."""
        wal, cpu = self._wal(), self.cpu()
        act()
        self.figures[f"{step}, µs of CPU a job"].append((self.cpu() - cpu) / BATCH / 1e3)
        self.figures[f"{step}, bytes of WAL a job"].append((self._wal() - wal) / BATCH)

    def cpu(self) -> int:
        """Return the CPU time so far, in nanoseconds."""
        return int(self.clock.read_text().split()[0])

    def _wal(self) -> int:
        found = self.raw.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        return int(found[0])  # type: ignore[index]


if __name__ == "__main__":
    main()
