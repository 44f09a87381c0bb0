"""Registering, claiming, ending and deleting all at once, with and without millions of ended jobs that are kept."""

from __future__ import annotations

import time
from dataclasses import dataclass
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
    """Measure with an empty history, then with a long one, again with an empty one, then with a retention of 0."""
    kept = plan.count(10_000_000, least=20_000)
    seconds = plan.seconds(20.0)
    none = _run(plan, 0, seconds)
    many = _run(plan, kept, seconds)
    again = _run(plan, 0, seconds)
    at_once = _run(plan, 0, seconds, keep="nothing")
    tables.empty()
    rate = (none.rate + again.rate) / 2
    figures = [
        Figure("none_kept", "ended jobs pruned at once, before and after the next", rate, "jobs/s"),
        Figure("many_kept", f"{kept:,} ended jobs kept, the oldest pruned", many.rate, "jobs/s"),
        Figure("many_of_none", "many kept ÷ none", many.rate / rate, "×", at_least(0.9)),
        Figure("at_once_of_none", "retention 0 ÷ none kept", at_once.rate / rate, "×"),
        Figure("pruned", "pruned of what ended meanwhile, many kept", many.raw["deleted"] / many.ended, "×"),
        Figure("growth", "table and indexes grew, many kept", many.raw["growth_mb"], "MB"),
        Figure("dead", "dead tuples at the end, many kept", many.raw["after"]["dead"], "rows"),
        Figure("hot", "claims that were HOT updates, many kept", many.raw["hot_share"], "×"),
    ]
    return Result(
        figures,
        f"{seconds:g} s each, 2 processes; pruning keeps pace with what ends",
        {"none kept": none.curve, f"{kept:,} kept": many.curve, "retention 0": at_once.curve},
        {"none": none.raw, "many": many.raw, "none_again": again.raw, "at_once": at_once.raw},
    )


@dataclass(frozen=True, slots=True)
class Run:
    """What one of them came to."""

    rate: float
    ended: int
    curve: Series
    raw: dict[str, Any]


def _run(plan: Plan, kept: int, seconds: float, keep: str = "") -> Run:
    with workers.working(processes=2, keep=keep) as worker:
        tables.seed(kept, kind="finished")
        tables.vacuum(freeze=True)
        plan.server.settle()
        before = tables.shape()
        with pruning.Pruner() as pruner:
            curve, ended = _feed(seconds, pruner)
            workers.until_idle(worker)
        after = tables.shape()
    updates = max(after["updates"] - before["updates"], 1.0)
    raw: dict[str, Any] = {
        "before": before,
        "after": after,
        "growth_mb": after["table_mb"] + after["indexes_mb"] - before["table_mb"] - before["indexes_mb"],
        "deleted": pruner.deleted,
        # A job is updated twice: the claim is HOT, the end never is.
        "hot_share": min(1.0, 2 * (after["hot_updates"] - before["hot_updates"]) / updates),
    }
    return Run(ended / seconds, ended, curve, raw)


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
