"""What the server does for a claim and for its ends: ``python -m benchmarks.explain [--scale 1]``.

EXPLAIN (ANALYZE, BUFFERS) of both statements, for a batch of 500, with the plans that a worker pins: on a table that
has nothing but what is claimed, beside two million rows each that are ready, future and finished, and after 240,000
jobs were done while somebody held a snapshot, from the frontier and from the beginning. Nothing of it is kept.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from benchmarks.plan import Plan
from benchmarks.run import SCALE, drop_databases, make_databases, migrate
from benchmarks.server import Server

BATCH = 500
EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) "


def main() -> None:
    """Explain and print."""
    parser = argparse.ArgumentParser("benchmarks.explain", description=__doc__)
    parser.add_argument("--scale", type=float, default=SCALE, help=f"multiplies the rows (default {SCALE:g})")
    options = parser.parse_args()
    server = Server(os.environ["DATABASE_URL"])
    if not server.take_the_turn():
        raise SystemExit("a run of the benchmarks is on this server")
    try:
        make_databases(server)
        migrate()
        _explain(Plan(server, options.scale))
    finally:
        drop_databases(server)
        server.close()


def _explain(plan: Plan) -> None:
    from benchmarks import tables

    tables.empty()
    tables.seed(2 * BATCH)
    tables.vacuum()
    _both("nothing but what is claimed")

    rows = plan.count(2_000_000)
    tables.empty()
    for kind in ("finished", "ready", "future"):
        tables.seed(rows, kind=kind)
    tables.vacuum()
    _both(f"{rows:,} ready, {rows:,} future and {rows:,} finished rows")

    _both_pinned(plan)


def _both_pinned(plan: Plan) -> None:
    from benchmarks import tables
    from benchmarks.lines import big_tables, pinned

    done = plan.count(240_000)
    tables.empty()
    tables.seed(done + 10 * BATCH)
    tables.vacuum()
    claimer = big_tables.Claimer("default")
    with pinned.pin(plan.server.url("pgjobs_bench")):
        for _ in range(done // big_tables.BATCH):
            claimer.turn()
        _both(
            f"{done:,} jobs done under a pinned snapshot, from the frontier", claimer.frontier.reaches["default", 0].at
        )
        _both(f"{done:,} jobs done under a pinned snapshot, from the beginning")
    claimer.close()


def _both(where: str, frontier: tuple[Any, int] | None = None) -> None:
    """Print both plans for one batch, which is given back by a rollback."""
    from django_pgjobs import store
    from django_pgjobs.worker.connection import WorkerConnection
    from django_pgjobs.worker.frontier import BEGINNING

    db = WorkerConnection("default", "explain", statement_seconds=600)
    pair, claim_id, author = store.Pair("default", 0, *(frontier or BEGINNING)), uuid4(), store.Author(uuid4())
    options: dict[str, Any] = {"lease_seconds": 60.0, "allowance_seconds": 5.0, "grace_seconds": 30.0}
    with db.connection.transaction(force_rollback=True):
        with _explaining(db) as plans:
            store.claim_jobs(db, [pair], claim_id=claim_id, worker=author.worker, limit=BATCH, **options)
        _say(f"claim of {BATCH}: {where}", plans)
    with db.connection.transaction(force_rollback=True):
        jobs = store.claim_jobs(db, [pair], claim_id=claim_id, worker=author.worker, limit=BATCH, **options)
        with _explaining(db) as plans:
            store.finalise_success(db, [store.End(job.id, str(claim_id), 0.001, result="7") for job in jobs], author)
        _say(f"success of {len(jobs)}: {where}", plans)
    db.close()


@contextmanager
def _explaining(db: Any) -> Iterator[list[str]]:
    """Let statements be explained instead of answered, prepared as a worker prepares them."""
    plans: list[str] = []

    def fetch(name: str, params: Any) -> list[Any]:
        from django_pgjobs import store

        answer = db.connection.execute(EXPLAIN + store.statement(name), params, prepare=True)
        plans.append("\n".join(row[0] for row in answer))
        return []

    db.fetch = fetch
    try:
        yield plans
    finally:
        del db.fetch


def _say(title: str, plans: list[str]) -> None:
    print(f"\n== {title}\n" + "\n".join(plans), flush=True)


if __name__ == "__main__":
    main()
