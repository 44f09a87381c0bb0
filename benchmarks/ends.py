"""What an end costs the server by each form of its statement: CPU time of the server process, and WAL (ADR-0024).

Batches of 500 claimed jobs are ended, in turns by:

* ``success``             sql/finalise_success.sql, which locks the rows that are free, then writes them
* ``success fast``        sql/finalise_success_fast.sql, which writes at once and may wait for a locked row
* ``keyed``, ``keyed fast``   the same for a batch in which a job may have an idempotency key (here none has)
* ``delete``              sql/finalise_delete.sql
* ``delete fast``         sql/finalise_delete_fast.sql

each with results of 1 byte, and the successes again with 150 bytes. CPU time hardly depends on other load.

    python benchmarks/ends.py [--batches 20] [--rounds 5]

Uses DATABASE_URL as tests do, makes a database of its own and drops it; the server must be on this machine, Linux.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from django.db import connection  # noqa: E402
from django.test.utils import setup_databases, teardown_databases  # noqa: E402

from django_pgjobs.store import statements as store  # noqa: E402
from django_pgjobs.worker.shared.connection import WorkerConnection  # noqa: E402

BATCH = 500
AUTHOR = store.Author(UUID(int=1))
PAYLOAD = '{"args": [1], "kwargs": {}}'

End = Callable[[WorkerConnection, Sequence[store.End]], Sequence[object]]

ENDS: dict[str, End] = {
    "success": lambda db, ends: store.finalise_success(db, ends, AUTHOR),
    "success fast": lambda db, ends: store.finalise_success_fast(db, ends, AUTHOR),
    "keyed": lambda db, ends: store.finalise_success(db, ends, AUTHOR, remember=True),
    "keyed fast": lambda db, ends: store.finalise_success_fast(db, ends, AUTHOR, remember=True),
    "delete": lambda db, ends: store.finalise_delete(db, ends),
    "delete fast": lambda db, ends: store.finalise_delete_fast(db, ends),
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    databases = setup_databases(verbosity=0, interactive=False)
    try:
        _compare(asked.batches, asked.rounds)
    finally:
        teardown_databases(databases, verbosity=0)


def _compare(batches: int, rounds: int) -> None:
    ways = {(name, 1): end for name, end in ENDS.items()}
    ways |= {(name, 150): end for name, end in ENDS.items() if name.startswith("success")}
    took: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    db = WorkerConnection("default", "bench", statement_seconds=60.0)
    try:
        for _ in range(rounds):
            for way, end in ways.items():
                took[way].append(_measured(db, partial(end, db), way[1], batches))
    finally:
        db.close()
    for (name, size), costs in took.items():
        cpu, wal = (statistics.median(each) for each in zip(*costs, strict=True))
        least, most = min(cost for cost, _ in costs), max(cost for cost, _ in costs)
        print(f"{name:13} results of {size:3} B: {cpu:5.2f} µs ({least:.2f} to {most:.2f}), {wal:4.0f} B of WAL an end")


def _measured(db: WorkerConnection, end: Callable[[Sequence[store.End]], object], size: int, batches: int) -> Any:
    """Return µs and bytes an end; after a checkpoint it is the claims that log whole pages."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgjobs_job, pgjobs_claim, pgjobs_attempt")
        new = store.NewJob("bench.job", PAYLOAD)
        store.register_jobs("default", [store.NewJobs(new, [PAYLOAD] * (batches + 1) * BATCH)])
        cursor.execute("VACUUM (ANALYZE) pgjobs_job")
        cursor.execute("CHECKPOINT")
    claims = [_claim(db, size) for _ in range(batches + 1)]
    end(claims.pop())  # plans, and caches
    began, logged = _clock(db.pid), _logged(db)
    for ends in claims:
        assert len(end(ends)) == BATCH  # type: ignore[arg-type]
    count = batches * BATCH
    return (_clock(db.pid) - began) / count / 1e3, (_logged(db) - logged) / count


def _claim(db: WorkerConnection, size: int) -> list[store.End]:
    claim_id = uuid4()
    pairs = [store.Pair("default", 0, "-infinity", 0)]  # type: ignore[arg-type]
    claimed = store.claim_jobs(
        db, pairs, claim_id=claim_id, worker=AUTHOR.worker, limit=BATCH,
        lease_seconds=60, allowance_seconds=5, grace_seconds=10,
    )  # fmt: skip
    result = "7" if size == 1 else '"' + "x" * (size - 2) + '"'
    return [store.End(job.id, str(claim_id), 0.001, result=result) for job in claimed]


def _clock(pid: int) -> int:
    """Return the CPU time of a process in ns."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0])


def _logged(db: WorkerConnection) -> int:
    [(place,)] = db.connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchall()
    return int(place)


if __name__ == "__main__":
    main()
