"""The latest figures of the fleet: the leader's, or counted now while no leader counts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django_pgjobs.conf import get_conf
from django_pgjobs.diagnosis import health
from django_pgjobs.diagnosis.health import known_workers
from django_pgjobs.diagnosis.problem import HealthProblem, Limits
from django_pgjobs.inspection import figures
from django_pgjobs.inspection.words import grouped
from django_pgjobs.store import counting
from django_pgjobs.store.counting import KnownWorker, StoredFigures
from django_pgjobs.store.database import Database

FRESH_SECONDS = 60.0
"""Older figures are counted again, because their leader evidently cannot count."""

MOST_NOW = 100_000
"""The bound of counts that a person asks for."""

MOST_OF_PAGES = 2_000
"""The bound of a page's own counts, which each viewer pays for while no worker leads."""

NOT_SHOWN = ("server", "totals", "problems")
"""Keys that the leader stores for metrics, and for pages that show problems."""


class Latest(NamedTuple):
    """Figures as ``inspection.figures`` makes them, and problems; by whom (None: counted now) and when."""

    figures: dict[str, Any]
    problems: list[HealthProblem]
    measured_by: str | None
    measured_at: datetime
    age_seconds: float
    now: datetime


def figure(queue: Mapping[str, Any], path: str) -> int:
    """Return a figure of a queue: *ready*, *held.parked*."""
    group, _dot, name = path.rpartition(".")
    jobs: int = (queue[group] if group else queue).get(name, 0)
    return jobs


def total(queues: Collection[Mapping[str, Any]], path: str) -> tuple[int, str]:
    """Return the sum of a figure, and the same for people: *10,000*, or *≥ 10,000* where counting stopped there."""
    jobs = sum(figure(each, path) for each in queues)
    more = "≥ " if any(path in each["at_least"] for each in queues) else ""
    return jobs, f"{more}{grouped(jobs)}"


def figures_of(db: Database, workers: list[KnownWorker], *, now: bool) -> dict[str, Any]:
    """Return the leader's figures with their source and age; count ``now`` or if there are no current ones.

    Workers are always current.
    """
    kept = counting.read_statistic(db)
    if now or not is_current(kept, counting.read_leader(db)):
        conf = get_conf()
        counted = figures.measure(
            db, silent_seconds=conf.silent_seconds, stale_seconds=conf.stale_seconds, most=MOST_NOW
        )
        return {"measured_at": kept.now, "age_seconds": 0.0, "measured_by": None, **counted}
    shown = {"measured_at": kept.measured_at, "age_seconds": kept.age_seconds, "measured_by": kept.worker_name}
    counted = {name: value for name, value in kept.figures.items() if name not in NOT_SHOWN}
    return {**shown, **figures.with_workers(counted, workers)}


def is_current(kept: StoredFigures, leader: tuple[str, float] | None) -> bool:
    """Tell whether the figures are recent and of the present leader."""
    if kept.age_seconds is None or leader is None:
        return False
    name, seconds = leader
    return seconds > 0 and name == kept.worker_name and kept.age_seconds <= FRESH_SECONDS


def latest(db: Database, using: str) -> Latest:
    """Return figures and problems for a page. ``db`` and the alias ``using`` are one connection."""
    kept = leaders(db)
    if kept is not None:
        return kept._replace(figures=figures.with_workers(kept.figures, known_workers(db)))
    conf, kept_now = get_conf(), counting.read_statistic(db).now
    counted = figures.measure(
        db, silent_seconds=conf.silent_seconds, stale_seconds=conf.stale_seconds, most=MOST_OF_PAGES
    )
    return Latest(counted, health.problems(db, using, Limits(most=MOST_OF_PAGES)), None, kept_now, 0.0, kept_now)


def leaders(db: Database) -> Latest | None:
    """Return the leader's figures and problems; None if there are no current ones. Two rows are all that it reads."""
    kept, leader = counting.read_statistic(db), counting.read_leader(db)
    if not is_current(kept, leader) or kept.figures.get("problems") is None:
        return None
    problems = [HealthProblem(*each) for each in kept.figures["problems"]]
    at: Any = kept.measured_at
    return Latest(kept.figures, problems, kept.worker_name, at, kept.age_seconds or 0.0, kept.now)
