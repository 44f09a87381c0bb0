"""Pauses of queues and of jobs by name: operators write them, every worker reads them, the leader deletes old ones.

With them workers read the limits that operators have set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import ReleasedJob
from django_pgjobs.values.built_in import OWN_QUEUE, is_built_in


class Pause(NamedTuple):
    """A stored pause. ``kind``: *queue* or *job*. ``until``: None if it lasts until it is resumed."""

    id: int
    kind: str
    name: str
    paused_at: datetime
    paused_by: str
    reason: str
    until: datetime | None


class LimitInForce(NamedTuple):
    """A limit that an operator has set, as a worker knows it; see ``limiting.Override``."""

    kind: str
    name: str
    concurrency: int | None
    rate: int | None
    per: float | None


@dataclass(frozen=True, slots=True)
class Pauses:
    """The current pauses: queues, and names of jobs with the reason that a held job gets; and operators' limits."""

    queues: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)
    limits: frozenset[LimitInForce] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.queues or self.names or self.limits)

    def cover(self, queue: str, name: str) -> bool:
        """Return whether a pause keeps a job of this queue and name from starting."""
        return queue in self.queues or name in self.names

    def must_count(self, queue: str, name: str, limit_key: str | None) -> bool:
        """Return whether an operator's limit must count a job before it starts: its registration knew of no limit."""
        return (
            bool(self.limits)
            and limit_key is None
            and not is_built_in(name)
            and any(
                each.name == queue if each.kind == "queue" else each.kind == "job" and each.name == name
                for each in self.limits
            )
        )


def pause(
    db: Database,
    kind: str,
    names: Sequence[str],
    *,
    by: str,
    reason: str,
    until: datetime | None = None,
    seconds: float | None = None,
) -> list[Pause]:
    """Pause until an instant, or for ``seconds`` from now; write nothing if the pause would be over already.

    Author, reason and end replace those of a current pause.
    """
    params = {"kind": kind, "names": list(names), "by": by, "reason": reason, "until": until, "seconds": seconds}
    return [Pause._make(row[:7]) for row in db.fetch("pause", params)]


def resume(db: Database, kind: str, names: Sequence[str]) -> list[str]:
    """End pauses; return the names that were paused."""
    return [row[0] for row in db.fetch("resume", {"kind": kind, "names": list(names)})]


def read_pauses(db: Database) -> Pauses:
    """Return the current pauses and the limits in force, by the database's clock."""
    # None of our own, regardless of who wrote one: what is held or undone elsewhere hangs on these jobs.
    rows = [row for row in db.fetch("read_pauses", {}) if row[1] != OWN_QUEUE and not is_built_in(row[1])]
    return Pauses(
        frozenset(name for kind, name, _by, _reason, is_limit, *_ in rows if kind == "queue" and not is_limit),
        {name: _words(by, why) for kind, name, by, why, is_limit, *_ in rows if kind == "job" and not is_limit},
        frozenset(LimitInForce(row[0], row[1], *row[5:8]) for row in rows if row[4]),
    )


def _words(by: str, reason: str) -> str:
    head = f"Jobs of this name are paused by {by}" if by else "Jobs of this name are paused"
    return f"{head}: {reason}" if reason else f"{head}."


def unpause_jobs(db: Database, *, limit: int) -> list[ReleasedJob]:
    """Resume up to ``limit`` held jobs whose name is no longer paused. Repeatable, also by several at once."""
    return [ReleasedJob(*row) for row in db.fetch("unpause_jobs", {"limit": limit})]


def expire_pauses(db: Database, *, kept_seconds: float) -> list[tuple[str, str]]:
    """Delete pauses that ended more than ``kept_seconds`` ago; return (kind, name) of each."""
    return [(row[0], row[1]) for row in db.fetch("expire_pauses", {"kept": kept_seconds})]
