"""Numbers over time: write what workers have ended, add it up, and read it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from django_pgjobs.states import FLEET, TREND
from django_pgjobs.store.database import Database

_FIRST_WORKER, _LAST_WORKER = UUID(int=FLEET.int + 1), UUID(int=TREND.int - 1)


class AttemptFigures(NamedTuple):
    """Number of attempts of a name that ended in one way, with their waits and durations, in seconds and as
    histograms."""

    queue: str
    name: str
    outcome: str
    jobs: int
    run_seconds: float
    wait_seconds: float
    run_histogram: Sequence[int]
    wait_histogram: Sequence[int]


class MinuteFigures(NamedTuple):
    """The figures of one minute or hour, which begins at ``minute`` (text), and of one release."""

    minute: str
    queue: str
    name: str
    outcome: str
    release: str
    jobs: int
    run_seconds: float
    wait_seconds: float
    run_histogram: Sequence[int]
    wait_histogram: Sequence[int]


def write_minutes(
    db: Database, figures: Sequence[AttemptFigures], *, worker: UUID, release: str, minute: str | None
) -> str:
    """Replace the worker's figures of this minute, and return the minute that has begun by now. Repeatable.

    Without figures it only reads the clock.
    """
    params = {"worker": worker, "release": release, "minute": minute, "items": _items(figures)}
    return str(db.fetch("write_minutes", params)[0][0])


def count_ends(db: Database, ends: Mapping[tuple[str, str, str], int]) -> None:
    """Add ends that no worker has written, as (queue, name, outcome) → how many, to this minute. Not repeatable."""
    items = [
        {"queue": queue, "name": name, "outcome": outcome, "jobs": jobs}
        for (queue, name, outcome), jobs in sorted(ends.items())
    ]
    db.fetch("count_ends", {"items": json.dumps(items)})


def take_minutes(db: Database, *, hourly: UUID | None, seconds: float, limit: int) -> list[MinuteFigures]:
    """Delete up to ``limit`` rows of workers that ended ``seconds`` ago.

    ``hourly``: not of workers but of ``FLEET`` or ``TREND``, for their hours. The caller adds the rows to minutes or
    hours in the same transaction.
    """
    params = {
        "least": _FIRST_WORKER if hourly is None else hourly,
        "most": _LAST_WORKER if hourly is None else hourly,
        "unit": "minute" if hourly is None else "hour",
        "seconds": seconds,
        "limit": limit,
    }
    return [MinuteFigures._make(row) for row in db.fetch("take_minutes", params)]


def add_minutes(db: Database, figures: Sequence[MinuteFigures], *, whose: UUID = FLEET) -> None:
    """Add figures to the minutes or hours of ``FLEET`` or ``TREND``; no two of one row."""
    db.fetch("add_minutes", {"items": _items(figures), "fleet": whose})


def add_totals(db: Database, figures: Sequence[AttemptFigures]) -> None:
    """Add figures to the totals; no two of one row."""
    db.fetch("add_totals", {"items": _items(figures)})


def read_totals(db: Database) -> list[AttemptFigures]:
    """Return what the fleet has ended so far: several rows of one queue, name and outcome add up."""
    return [AttemptFigures._make(row) for row in db.fetch("read_totals", {"fleet": FLEET, "trend": TREND})]


def delete_minutes(db: Database, *, seconds: float) -> int:
    """Delete the hours of fleet and trend and the depths that are older; return how many."""
    return int(db.fetch("delete_minutes", {"fleet": FLEET, "trend": TREND, "seconds": seconds})[0][0])


def write_depths(db: Database, depths: Sequence[Mapping[str, object]]) -> None:
    """Keep these depths for this minute, or what it has already if that is more."""
    db.fetch("write_depths", {"items": json.dumps(list(depths))})


def fold_depths(db: Database, *, seconds: float) -> int:
    """Keep of the hours that ended ``seconds`` ago the most only; return how many rows that deleted."""
    return int(db.fetch("fold_depths", {"seconds": seconds})[0][0])


class Bucket(NamedTuple):
    """Attempts that ended in a span of time that begins at ``at``, in seconds since 1970."""

    at: int
    ended: Mapping[str, int]
    """End → number of attempts that ended so."""
    runs: Sequence[int]
    waits: Sequence[int]
    """Histograms."""
    releases: Sequence[str]


def read_trend(db: Database, *, step: int, buckets: int, most: int) -> list[Bucket]:
    """Return the latest buckets of ``step`` seconds in which attempts ended; reads up to twice ``most`` rows."""
    params = {"fleet": FLEET, "trend": TREND, "step": step, "buckets": buckets, "most": most}
    rows = db.fetch("read_trend", params)
    return [Bucket(at, json.loads(ended), runs, waits, releases) for at, ended, runs, waits, releases in rows]


class QueueDepth(NamedTuple):
    """The most that was due in a queue in a span of time that begins at ``at``, in seconds since 1970."""

    at: int
    queue: str
    ready: int
    oldest_seconds: float


def read_depths(db: Database, *, step: int, buckets: int, most: int) -> list[QueueDepth]:
    """Return the depths of the latest buckets of ``step`` seconds; reads up to ``most`` rows."""
    rows = db.fetch("read_depths", {"step": step, "buckets": buckets, "most": most})
    return [QueueDepth._make(row) for row in rows]


def _items(figures: Sequence[AttemptFigures | MinuteFigures]) -> str:
    return json.dumps([each._asdict() for each in figures])
