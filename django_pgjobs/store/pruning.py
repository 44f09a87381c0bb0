"""Pruning: ended jobs past their retention, listed by a walk along the index of ends and deleted by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_pgjobs.store import turns
from django_pgjobs.store.database import LOCKED, Database, Enclosing, set_lock_timeout
from django_pgjobs.store.gates import notices_of
from django_pgjobs.store.keys import Expired
from django_pgjobs.store.notifying import notify

OLDEST = "-infinity"
"""The instant before every end."""

LOCK_CLASS = 0x706A70
"""The first half of our advisory lock's number ("pjp"), so that it collides with no other lock."""

LOCK_TIMEOUT = "1s"
"""Time that a prune waits for a sequence."""


class Prunable(NamedTuple):
    """A slice of the walk: the last end it reached, how many jobs it saw, and which of them may be deleted."""

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
    names: Sequence[str] | None = None,
    after: str = OLDEST,
    window_seconds: float | None = None,
    limit: int,
) -> Prunable | None:
    """List jobs that ended as ``outcome`` more than ``seconds`` ago, from ``after`` on; None if there are no more.

    ``queues``: all except these, or with ``only`` just these. ``names``: these only; None for all.
    ``window_seconds``: leave out jobs that ended longer ago.
    One instant may hold more ends than ``limit``: if a slice does not get beyond ``after``, ask for a larger one.
    """
    params = {
        "outcome": outcome,
        "seconds": seconds,
        "queues": list(queues),
        "only": only,
        "names": None if names is None else list(names),
        "after": after,
        "window": window_seconds,
        "limit": limit,
    }
    rows = db.fetch("list_prunable", params)
    return Prunable._make(rows[0]) if rows else None


def count_prunable(
    db: Database,
    outcome: str,
    *,
    seconds: float,
    queues: Sequence[str] = (),
    only: bool = False,
    names: Sequence[str] | None = None,
) -> int:
    """Count the jobs that ``list_prunable`` would list from the oldest end on."""
    given = None if names is None else list(names)
    params = {"outcome": outcome, "seconds": seconds, "queues": list(queues), "only": only, "names": given}
    return int(db.fetch("count_prunable", params)[0][0])


def delete_lines(db: Database, *, after: str, limit: int) -> Expired:
    """Delete the lines of jobs that are gone, of the next ``limit`` jobs with lines from the id ``after`` on."""
    count, until = db.fetch("delete_lines", {"after": after, "limit": limit})[0]
    return Expired(count, until or after)


def prune_jobs(db: Enclosing, ids: Sequence[int], *, until: str) -> list[int] | None:
    """Delete these jobs with their history if they ended by ``until``; return the deleted ones. Waits for no row.

    Return None, and delete nothing, while a retry is under way, which may begin to need them, or another prune; or if
    another transaction holds a sequence for long that waited for one of them. A retry waits until the deletion has
    committed.
    """
    try:
        with db.transaction():
            if not _lock(db, prunes=True):
                return None
            rows = db.fetch("prune_jobs", {"ids": list(ids), "until": until})
            if left := {row[1] for row in rows if row[1] is not None}:
                # A job that was registered beside this waits for one that is gone now.
                set_lock_timeout(db, LOCK_TIMEOUT)
                turns.lock_sequences(db, left)
                notify(db, notices_of(turns.pass_turns(db, left)))
    except LOCKED:
        return None
    return [row[0] for row in rows]


def keep_jobs(db: Database) -> None:
    """Let no job be pruned until the open transaction ends. Blocks while a prune deletes jobs."""
    _lock(db, prunes=False)


def _lock(db: Database, *, prunes: bool) -> bool:
    return bool(db.fetch("lock_pruning", {"class": LOCK_CLASS, "prunes": prunes})[0][0])
