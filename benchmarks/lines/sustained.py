"""Registering, claiming, ending and deleting all at once, with and without millions of ended jobs that are kept."""

from __future__ import annotations

import time
from typing import Any

from benchmarks import jobs, pruning, tables, workers
from benchmarks.figures import Figure, Result, Series, at_least
from benchmarks.plan import Plan

TITLE = "Sustained insert + claim + finish + prune"
CHUNK = 1000
BACKLOG = 10_000
COUNT_BACKLOG = (
    "SELECT count(*) FROM (SELECT FROM pgjobs_job WHERE finished_at IS NULL AND hold IS NULL LIMIT %s) AS unfinished"
)


def measure(plan: Plan) -> Result:
    """Measure with an empty history, then with a long one."""
    kept = plan.count(10_000_000, least=20_000)
    seconds = plan.seconds(20.0)
    none, none_curve, none_raw = _run(plan, 0, seconds)
    many, many_curve, many_raw = _run(plan, kept, seconds)
    tables.empty()
    figures = [
        Figure("none_kept", "with no ended jobs kept", none, "jobs/s"),
        Figure("many_kept", f"with {kept:,} ended jobs kept", many, "jobs/s"),
        Figure("many_of_none", "kept ÷ none", many / none, "×", at_least(0.9)),
        Figure("growth", "table and indexes grew, kept", many_raw["growth_mb"], "MB"),
        Figure("dead", "dead tuples at the end, kept", many_raw["after"]["dead"], "rows"),
        Figure("hot", "claims that were HOT updates, kept", many_raw["hot_share"], "×"),
    ]
    return Result(
        figures,
        f"{seconds:g} s each; the oldest are deleted, as many as end",
        {"none kept": none_curve, f"{kept:,} kept": many_curve},
        {"none": none_raw, "many": many_raw},
    )


def _run(plan: Plan, kept: int, seconds: float) -> tuple[float, Series, dict[str, Any]]:
    with workers.working(processes=2) as worker:
        tables.seed(kept, kind="finished")
        tables.vacuum()
        plan.server.settle()
        before = tables.shape()
        with pruning.Pruner() as pruner:
            curve, total = _feed(seconds, pruner)
            workers.until_idle(worker)
        after = tables.shape()
    updates = max(after["updates"] - before["updates"], 1.0)
    grown = after["table_mb"] + after["indexes_mb"] - before["table_mb"] - before["indexes_mb"]
    raw: dict[str, Any] = {
        "before": before,
        "after": after,
        "growth_mb": grown,
        "deleted": pruner.deleted,
        # A job is updated twice: the claim is HOT, the end never is.
        "hot_share": min(1.0, 2 * (after["hot_updates"] - before["hot_updates"]) / updates),
    }
    return total / seconds, curve, raw


def _feed(seconds: float, pruner: pruning.Pruner) -> tuple[Series, int]:
    """Keep a small backlog for so long; return jobs ended per second, second by second, and all that ended."""
    curve: Series = []
    registered = ended = 0
    began = mark = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        backlog = int(tables.value(COUNT_BACKLOG, BACKLOG + CHUNK))
        pruner.ended = registered - backlog
        if now - mark >= 1.0:
            done = registered - backlog
            curve.append((round(now - began, 1), (done - ended) / (now - mark)))
            mark, ended = now, done
        if backlog < BACKLOG:
            jobs.noop.register_many([(number,) for number in range(CHUNK)])
            registered += CHUNK
        else:
            time.sleep(0.005)
    return curve, registered - int(tables.value(COUNT_BACKLOG, 10**9))
