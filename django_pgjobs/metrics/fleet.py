"""The metrics of the whole fleet, from the row that the leader writes every 15 seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from django_pgjobs import clock
from django_pgjobs.metrics import families as m
from django_pgjobs.metrics.families import Family, Point, one
from django_pgjobs.metrics.worker import families_of_ends
from django_pgjobs.store.counting import StoredFleet, read_fleet
from django_pgjobs.store.database import Database
from django_pgjobs.store.numbers import AttemptFigures

MOST_QUEUES = 100
MOST_NAMES = 200
MOST_PAIRS = 500
"""Maximum number of pairs of a queue and a name."""

OTHERS = "others"
"""Stands for queues and names beyond these bounds."""

STALE_SECONDS = 60.0
"""A worker that could not read the row for so long exports nothing of the fleet."""

DOWN = [one(m.FLEET_UP, 0)]


class FleetGauges:
    """The fleet as a worker exports it: read in its maintenance thread, exported without waiting for the database."""

    def __init__(self) -> None:
        self.read: tuple[float, StoredFleet] | None = None

    def __call__(self, db: Database) -> None:
        """Read the row. A duty of every worker that serves metrics."""
        asked_at = clock.monotonic()
        self.read = asked_at, read_fleet(db, totals=False)

    def families(self) -> list[Family]:
        """Return the fleet's gauges as last read, older by now; for other threads."""
        if (read := self.read) is None:
            return DOWN
        asked_at, found = read
        elapsed = clock.monotonic() - asked_at
        return DOWN if elapsed > STALE_SECONDS else gauges_of(found, elapsed)


def gauges_of(found: StoredFleet, elapsed: float = 0.0) -> list[Family]:
    """Return the fleet's gauges; ``elapsed``: how many seconds ago the row was read."""
    measured, leaderless, figures = found.age_seconds, found.leaderless_seconds, found.figures
    return [
        one(m.FLEET_UP, 1),
        one(m.FLEET_MEASURED_AGE, float("inf") if measured is None else measured + elapsed),
        one(m.FLEET_LEADERLESS, float("inf") if leaderless is None else leaderless),
        *(_queues(figures.get("queues", ())) if figures else ()),
        *(_workers(figures["workers"]) if figures else ()),
        *(_server(figures.get("server", {})) if figures else ()),
    ]


def _queues(queues: Iterable[Mapping[str, Any]]) -> list[Family]:
    jobs: dict[tuple[str, str], int] = {}
    oldest: dict[str, float] = {}
    workers: dict[str, int] = {}
    for rank, found in enumerate(sorted(queues, key=itemgetter("ready"), reverse=True)):
        queue = found["queue"] if rank < MOST_QUEUES else OTHERS
        for state, number in _states(found):
            jobs[queue, state] = jobs.get((queue, state), 0) + number
        oldest[queue] = max(oldest.get(queue, 0.0), found["oldest_ready_seconds"] or 0.0)
        workers[queue] = max(workers.get(queue, 0), found["workers"])
    return [
        Family(m.FLEET_JOBS, [Point(labels, number) for labels, number in jobs.items()]),
        Family(m.FLEET_OLDEST_READY, [Point((queue,), age) for queue, age in oldest.items()]),
        Family(m.FLEET_QUEUE_WORKERS, [Point((queue,), number) for queue, number in workers.items()]),
    ]


def _states(found: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for state in ("ready", "scheduled", "running"):
        yield state, found[state]
    yield from found["held"].items()


def _workers(found: Mapping[str, int]) -> list[Family]:
    draining, quiet = found["draining"], found.get("quiet", 0)
    running = found["live"] - draining - quiet
    by_state = {"running": running, "quiet": quiet, "draining": draining, "silent": found["silent"]}
    return [
        Family(m.FLEET_WORKERS, [Point((state,), number) for state, number in by_state.items()]),
        one(m.FLEET_SLOTS, found["slots"]),
        one(m.FLEET_SLOTS_BUSY, found["running"]),
    ]


def _server(found: Mapping[str, Any]) -> list[Family]:
    rows = found.get("rows", {})
    return [
        *([one(m.FLEET_NOTIFICATIONS, found["notification_queue"])] if "notification_queue" in found else ()),
        Family(m.FLEET_DEAD_ROWS, [Point((table,), each["dead"]) for table, each in rows.items()]),
        Family(m.FLEET_LIVE_ROWS, [Point((table,), each["alive"]) for table, each in rows.items()]),
    ]


class Totals:
    """Bounds the queues and names of the fleet's totals, for as long as a process lives: its counters never shrink."""

    def __init__(self) -> None:
        self.queues: set[str] = set()
        self.names: set[str] = set()
        self.pairs: set[tuple[str, str]] = set()

    def families(self, found: StoredFleet) -> list[Family]:
        """Return what the fleet has ended since its tables were made."""
        rows = [AttemptFigures._make(row) for row in (found.figures or {}).get("totals", ())]
        rows.sort(key=lambda row: row.jobs, reverse=True)
        return families_of_ends(map(self._bounded, rows), m.FLEET_ENDS, m.FLEET_RUN_SECONDS, m.FLEET_WAIT_SECONDS)

    def _bounded(self, row: AttemptFigures) -> AttemptFigures:
        queue, name = _bounded(row.queue, self.queues, MOST_QUEUES), _bounded(row.name, self.names, MOST_NAMES)
        if (queue, name) not in self.pairs:
            if len(self.pairs) >= MOST_PAIRS:
                name = OTHERS
            self.pairs.add((queue, name))
        return row._replace(queue=queue, name=name)


def _bounded(word: str, known: set[str], most: int) -> str:
    if word not in known:
        if len(known) >= most:
            return OTHERS
        known.add(word)
    return word
