"""Count jobs for people and probes: along an index and up to a bound, however many there are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django_pgjobs.store.database import Database
from django_pgjobs.values.built_in import OWN_QUEUE


class QueueDue(NamedTuple):
    """The ready jobs of a queue; with ``more_ready`` or ``more_scheduled``, that count is a lower bound."""

    queue: str
    ready: int
    scheduled: int
    oldest_seconds: float | None
    more_ready: bool
    more_scheduled: bool


class Counted(NamedTuple):
    """Number of jobs of a queue that are of a ``kind`` (a hold, an outcome); with ``more``, the count is a lower
    bound."""

    queue: str
    kind: str
    jobs: int
    more: bool


class KnownWorker(NamedTuple):
    """A worker that has not stopped, from its heartbeat; ``queues``: None for all.

    ``status``: *running*, *quiet* or *draining*; *silent* after two missed heartbeats; *lost* if its leases ran out or
    it has been silent for long. ``running``: its jobs at its last heartbeat, ``beat_age_seconds`` ago.
    """

    name: str
    status: str
    queues: list[str] | None
    excluded: list[str]
    slots: int
    running: int
    beat_age_seconds: float
    id: str = ""
    death: str = ""
    """Description of the latest death of an executor, ``died_seconds`` ago (None: none has)."""
    died_seconds: float | None = None
    suspect_seconds: float | None = None
    """For how long suspects have run apart, after that; None without any."""
    suspect_ids: Sequence[int] = ()
    control: str = ""
    """The last request of an operator to it: for what, by whom, why, and how many seconds ago."""
    control_by: str = ""
    control_reason: str = ""
    control_seconds: float | None = None

    @property
    def live(self) -> bool:
        """True if its last heartbeat is recent and it has lost no job since."""
        return self.status in ("running", "quiet", "draining")

    def serves(self, queue: str) -> bool:
        """Return whether it claims jobs of this queue, or would if it were not draining or quiet."""
        if queue == OWN_QUEUE:
            return True
        return (self.queues is None or queue in self.queues) and queue not in self.excluded


def count_due(db: Database, *, most: int, budget: int) -> list[QueueDue]:
    """Count due and future jobs of each queue, up to ``most`` of each priority and ``budget`` in all."""
    return [QueueDue._make(row) for row in db.fetch("count_due", {"most": most, "budget": budget})]


def first_due(
    db: Database,
    pairs: Sequence[tuple[str, int]],
    *,
    later: bool,
    limit: int,
    held: Sequence[tuple[str, str]] = (),
) -> list[int]:
    """Return the ids of the first ``limit`` due jobs of these (queue, priority) pairs, by time, then id.

    ``later``: the first of the jobs that run later instead. ``held``: also those of these (queue, hold) that run later.
    Each pair gives twice its share at first. If all of these are among the first, the pair may have more: such pairs,
    at most half of those asked, give twice their share once more. This thus reads a few times ``limit`` jobs, however
    many there are.
    """
    params = {
        "queues": [queue for queue, _ in (*pairs, *held)],
        "priorities": [*(priority for _, priority in pairs), *(None for _ in held)],
        "holds": [*(None for _ in pairs), *(hold for _, hold in held)],
        "later": later,
        "limit": limit,
    }
    many = len(pairs) + len(held)
    sizes, deeper = [0] * many, list(range(many))
    while many:
        share = -(-2 * limit // len(deeper))
        for at in deeper:
            sizes[at] = min(max(share, 2 * sizes[at]), limit)
        ids, positions, counts = db.fetch("first_due", {**params, "sizes": sizes})[0]
        found = [(position - 1, count) for position, count in zip(positions, counts, strict=True)]
        deeper = [at for at, count in found if count == sizes[at] < limit]
        if not deeper:
            return list(ids)
    return []


def count_running(db: Database, *, most: int) -> list[Counted]:
    """Count the claimed jobs of each queue, up to ``most`` in all."""
    rows = db.fetch("count_running", {"most": most})
    return [Counted(queue, "running", jobs, more) for queue, jobs, more in rows]


def count_retrying(db: Database, pairs: Sequence[tuple[str, int]], *, most: int) -> list[Counted]:
    """Count the jobs that are tried again later among the next ``most`` of each (queue, priority)."""
    params = {"queues": [pair[0] for pair in pairs], "priorities": [pair[1] for pair in pairs], "most": most}
    return [Counted(queue, "retrying", jobs, more) for queue, jobs, more in db.fetch("count_retrying", params)]


def count_ended(db: Database, outcomes: Sequence[str], *, seconds: float, most: int) -> list[Counted]:
    """Count the jobs that ended within the last ``seconds``, up to ``most`` of each outcome."""
    params = {"outcomes": list(outcomes), "seconds": seconds, "most": most}
    return [Counted._make(row) for row in db.fetch("count_ended", params)]


class Sizes(NamedTuple):
    """Room that jobs of an outcome, queue and name take: bytes as they are stored, compressed or not.

    ``seconds``: since the first of them ended.
    """

    outcome: str
    queue: str
    name: str
    jobs: int
    result_bytes: int
    argument_bytes: int
    seconds: float


def count_sizes(db: Database, outcomes: Sequence[str], *, most: int) -> list[Sizes]:
    """Add up the sizes of results and arguments of the latest ``most`` jobs of each outcome."""
    return [Sizes._make(row) for row in db.fetch("count_sizes", {"outcomes": list(outcomes), "most": most})]


class NamedRows(NamedTuple):
    """Number of rows that need a name, and their kind: *job*, *member*, *step* or *undo*."""

    name: str
    use: str
    rows: int


def count_names(db: Database) -> list[NamedRows]:
    """Count the names that unfinished jobs need, without a bound: none may be missed."""
    return [NamedRows._make(row) for row in db.fetch("count_names", {})]


def count_overdue(db: Database, *, seconds: float, most: int) -> int:
    """Count ledger rows that rescue should have checked more than ``seconds`` ago, up to ``most``."""
    return int(db.fetch("count_overdue", {"seconds": seconds, "most": most})[0][0])


def list_workers(db: Database, *, silent_seconds: float, stale_seconds: float) -> list[KnownWorker]:
    """Return the workers that have not stopped, the latest heartbeat first.

    A worker is *silent* after ``silent_seconds`` without a heartbeat, and *lost* after ``stale_seconds``.
    """
    rows = db.fetch("list_workers", {"silent": silent_seconds, "stale": stale_seconds})
    return [
        KnownWorker(
            name, status, _names(queues), _names(excluded) or [], slots, running, beat_age, worker_id, death, died,
            suspect_seconds, _suspects(suspects), *control,
        )
        for name, status, queues, excluded, slots, running, beat_age, worker_id, death, died, suspect_seconds, suspects,
        *control in rows
    ]  # fmt: skip


def _names(text: str | None) -> list[str] | None:
    """Return a list of names from JSON text; None for null, and an empty list for any other value."""
    found = json.loads(text or "null")
    if found is None:
        return None
    return [str(name) for name in found] if isinstance(found, list) else []


def _suspects(text: str | None) -> list[int]:
    """Return the ids of suspects, those that run first; none of a text that no worker has written."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return []
    lists = [found.get("running"), found.get("pending")] if isinstance(found, dict) else []
    return [each for ids in lists if isinstance(ids, list) for each in ids if isinstance(each, int)]


def read_leader(db: Database) -> tuple[str, float] | None:
    """Return the latest leader's name and the seconds left of its term, negative after it; None if no worker ever
    led."""
    rows = db.fetch("read_leader", {})
    return (rows[0][0], rows[0][1]) if rows else None


class StoredFigures(NamedTuple):
    """The leader's latest figures: the figures, when, how many seconds ago and who, each None if none yet; and now."""

    figures: Any
    measured_at: datetime | None
    age_seconds: float | None
    worker_name: str | None
    now: datetime


def write_statistic(db: Database, figures: object, *, worker_name: str) -> None:
    """Replace the stored figures by these, measured now."""
    db.fetch("write_statistic", {"figures": json.dumps(figures), "worker_name": worker_name})


def read_statistic(db: Database) -> StoredFigures:
    """Return the latest figures."""
    figures, *rest = db.fetch("read_statistic", {})[0]
    return StoredFigures(json.loads(figures or "null"), *rest)


class StoredFleet(NamedTuple):
    """The leader's latest figures (None if none yet), their age, and the time without a leader.

    Both in seconds; None if no worker ever measured or led, and 0 while one leads.
    """

    figures: Any
    age_seconds: float | None
    leaderless_seconds: float | None


def read_fleet(db: Database, *, totals: bool) -> StoredFleet:
    """Return the latest figures for metrics; without ``totals`` not what has ended so far, which may be long."""
    figures, *rest = db.fetch("read_fleet", {"totals": totals})[0]
    return StoredFleet(json.loads(figures or "null"), *rest)


def read_notification_queue(db: Database) -> float:
    """Return how full the server's queue of notifications is, from 0 to 1."""
    return float(db.fetch("read_notification_queue", {})[0][0])
