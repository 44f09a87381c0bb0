"""Query plans of a claim and of its ends: ``python -m benchmarks.explain [--scale 1] [--publish]``.

EXPLAIN (ANALYZE, BUFFERS) of the claim, of the fast end and of the end that skips locked rows (ADR-0024), for a batch
of 500, with the plans that a worker pins: on a table with the claimed jobs only; beside two million ready, two
million future and two million finished rows; and after 240,000 jobs were done under an open snapshot, from the
frontier and from the beginning. The plans are kept in ``benchmarks/results``; rows are not. ``--scale 1`` takes some
minutes, most of them to make six million rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.plan import Plan
from benchmarks.run import RESULTS, SCALE, drop_databases, make_databases, migrate
from benchmarks.server import Server
from benchmarks.workers import ROOT

BATCH = 500
PUBLISHED = ROOT / "docs" / "_data" / "plans.json"
Explained = dict[str, str]
"""``title`` and ``plan``."""

EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) "


def main() -> None:
    """Explain, print, and keep."""
    parser = argparse.ArgumentParser("benchmarks.explain", description=__doc__)
    parser.add_argument("--scale", type=float, default=SCALE, help=f"multiplies the rows (default {SCALE:g})")
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    parser.add_argument("--name", default=f"{today}-plans", help="of the file in benchmarks/results")
    parser.add_argument("--publish", action="store_true", help="let the documentation show these plans")
    options = parser.parse_args()
    server = Server(os.environ["DATABASE_URL"])
    if not server.take_the_turn():
        raise SystemExit("a run of the benchmarks is on this server")
    try:
        make_databases(server)
        migrate()
        found: dict[str, Any] = {
            "date": today,
            "scale": options.scale,
            "machine": server.describe(),
            "plans": _explain(Plan(server, options.scale)),
        }
    finally:
        drop_databases(server)
        server.close()
    _keep(found, options)


def _keep(found: dict[str, Any], options: argparse.Namespace) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{Path(options.name).name}.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"kept in {path.relative_to(ROOT)}")
    if options.publish:
        shutil.copy(path, PUBLISHED)
        print(f"shown by {PUBLISHED.relative_to(ROOT)}")


def _explain(plan: Plan) -> list[Explained]:
    from benchmarks import tables

    found: list[Explained] = []
    tables.empty()
    tables.seed(2 * BATCH)
    tables.vacuum()
    found += _plans("nothing but what is claimed")

    rows = plan.count(2_000_000)
    tables.empty()
    for kind in ("finished", "ready", "future"):
        tables.seed(rows, kind=kind)
    tables.vacuum()
    found += _plans(f"{rows:,} ready, {rows:,} future and {rows:,} finished rows")

    return found + _pinned(plan)


def _pinned(plan: Plan) -> list[Explained]:
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
        found = _plans(
            f"{done:,} jobs done under a pinned snapshot, from the frontier", claimer.frontier.reaches["default", 0].at
        )
        found += _plans(f"{done:,} jobs done under a pinned snapshot, from the beginning")
    claimer.close()
    return found


def _plans(where: str, frontier: tuple[Any, int] | None = None) -> list[Explained]:
    """Print and return the plans of claim and ends for one batch; a rollback releases it."""
    from django_pgjobs.store import claiming, finalising
    from django_pgjobs.store.claiming import Pair
    from django_pgjobs.store.finalising import Author, End
    from django_pgjobs.worker.shared.connection import WorkerConnection
    from django_pgjobs.worker.threads.reach import BEGINNING

    db = WorkerConnection("default", "explain", statement_seconds=600)
    pair, claim_id, author = Pair("default", 0, *(frontier or BEGINNING)), uuid4(), Author(uuid4())
    options: dict[str, Any] = {"lease_seconds": 60.0, "allowance_seconds": 5.0, "grace_seconds": 30.0}
    with db.connection.transaction(force_rollback=True):
        with _explaining(db) as plans:
            claiming.claim_jobs(db, [pair], claim_id=claim_id, worker=author.worker, limit=BATCH, **options)
        claim = _said(f"claim of {BATCH}: {where}", plans)
    found = [claim]
    forms = {"": finalising.finalise_success_fast, ", locked rows skipped": finalising.finalise_success}
    for form, finalise in forms.items():
        with db.connection.transaction(force_rollback=True):
            jobs = claiming.claim_jobs(db, [pair], claim_id=claim_id, worker=author.worker, limit=BATCH, **options)
            with _explaining(db) as plans:
                finalise(db, [End(job.id, str(claim_id), 0.001, result="7") for job in jobs], author)
            found.append(_said(f"success of {len(jobs)}{form}: {where}", plans))
    db.close()
    return found


@contextmanager
def _explaining(db: Any) -> Iterator[list[str]]:
    """Explain statements instead of running them, prepared as a worker prepares them."""
    plans: list[str] = []

    def fetch(name: str, params: Any) -> list[Any]:
        from django_pgjobs.store.database import statement

        answer = db.connection.execute(EXPLAIN + statement(name), params, prepare=True)
        plans.append("\n".join(row[0] for row in answer))
        return []

    db.fetch = fetch
    try:
        yield plans
    finally:
        del db.fetch


def _said(title: str, plans: list[str]) -> Explained:
    plan = "\n".join(plans)
    print(f"\n== {title}\n{plan}", flush=True)
    return {"title": title, "plan": plan}


if __name__ == "__main__":
    main()
