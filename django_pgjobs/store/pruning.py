"""Pruning: ended jobs past their retention, listed by a walk along the index of ends and deleted by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_pgjobs.store.database import Database

OLDEST = "-infinity"
"""The instant before every end."""


class Prunable(NamedTuple):
    """A slice of the walk: the last end it came to, how many jobs it saw, and which of them may go."""

    until: str
    walked: int
    ids: list[int]


def list_prunable(
    db: Database,
    outcome: str,
    *,
    seconds: float,
    queues: Sequence[str] = (),
    only: bool = False,
    after: str = OLDEST,
    window_seconds: float | None = None,
    limit: int,
) -> Prunable | None:
    """List what has ended as ``outcome`` for more than ``seconds``, from ``after`` on; None when there is no more.

    ``queues``: all but these, or with ``only`` these. ``window_seconds``: nothing that ended longer ago. A place may
    hold more ends than ``limit``: whoever is not carried beyond ``after`` asks for more at once.
    """
    params = {
        "outcome": outcome,
        "seconds": seconds,
        "queues": list(queues),
        "only": only,
        "after": after,
        "window": window_seconds,
        "limit": limit,
    }
    rows = db.fetch("list_prunable", params)
    return Prunable._make(rows[0]) if rows else None


def count_prunable(
    db: Database, outcome: str, *, seconds: float, queues: Sequence[str] = (), only: bool = False
) -> int:
    """Count what ``list_prunable`` would list from the oldest end on."""
    params = {"outcome": outcome, "seconds": seconds, "queues": list(queues), "only": only}
    return int(db.fetch("count_prunable", params)[0][0])


def prune_jobs(db: Database, ids: Sequence[int], *, until: str) -> list[int]:
    """Delete these jobs with their history if they ended by ``until``; return those that went. Waits for no lock."""
    return [row[0] for row in db.fetch("prune_jobs", {"ids": list(ids), "until": until})]
