"""Queues and priorities in which jobs became ready, according to notifications, and when the next job is due.

Callers hold the claim thread's lock, except for ``refresh``. If hints do not fit, no job is lost: the list of all pairs
has new pairs, full scans find admitted jobs, and ``released_anywhere`` stands for all queues.

The claim thread asks for the time at which the next job is due before each sleep; with two lines, or very many pairs,
the answer is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import psycopg

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.store import claiming
from django_pgjobs.store.claiming import LineKey, on_loop
from django_pgjobs.store.database import Database
from django_pgjobs.worker.threads.frontier import Frontier

PAIRS_FACTOR = 50.0
"""The list of all pairs is read again after so many times what it took."""

MOST_HINTS = 1000
"""The most pairs or queues to keep of each kind."""


class ReadyHints:
    """``pairs`` have new jobs; ``admitted`` pairs and ``released`` queues also have some behind their frontiers.

    ``released_anywhere``: any queue may have some there. ``list_due``: when to read the list of all pairs again.
    """

    def __init__(self) -> None:
        self.pairs: set[tuple[str, int]] = set()
        self.admitted: set[tuple[str, int]] = set()
        self.released: set[str] = set()
        self.released_anywhere = False
        self.list_due = 0.0

    def add(self, pair: tuple[str, int]) -> None:
        """Record a pair; if there are too many, the list of all pairs is due."""
        if len(self.pairs) < MOST_HINTS:
            self.pairs.add(pair)
        else:
            self.list_due = 0.0

    def add_admitted(self, pair: tuple[str, int]) -> None:
        """Record a pair with admitted jobs."""
        if len(self.admitted) < MOST_HINTS:
            self.admitted.add(pair)

    def add_released(self, queue: str) -> None:
        """Record a queue with released jobs."""
        if len(self.released) < MOST_HINTS:
            self.released.add(queue)
        else:
            self.released_anywhere = True

    def hand_over(self, frontiers: Iterable[Frontier]) -> None:
        """Pass all hints to the frontiers, and clear them."""
        for frontier in frontiers:
            frontier.learn(self.pairs)
            frontier.admitted(self.admitted)
            frontier.released(None if self.released_anywhere else self.released)
        self.pairs.clear()
        self.admitted.clear()
        self.released.clear()
        self.released_anywhere = False

    def refresh(self, db: Database, lines: Mapping[LineKey, Frontier]) -> None:
        """Read the list of all pairs, if it is due."""
        now = clock.monotonic()
        known = sum(len(frontier.reaches) for line, frontier in lines.items() if not on_loop(line))
        if now < self.list_due and known:
            return
        try:
            pairs = claiming.list_pairs(db)
            for frontier in lines.values():
                frontier.replace(pairs)
        except psycopg.errors.QueryCanceled:
            # Too many dead rows lie in the way; for now it claims from the known pairs.
            if not known:
                raise
            log.warning("the list of queues takes too long, known ones are served pairs=%d", known)
        done = clock.monotonic()
        self.list_due = done + max(1.0, PAIRS_FACTOR * (done - now))


REMEMBERED_SECONDS = 1.0
REMEMBERED_FACTOR = 20.0
"""Time that an answer stays valid, and, of very many pairs, how many times what it took. A job without announcement may
become due sooner."""


class Answer(NamedTuple):
    """Time at which the next job is due (``math.inf``: never), until when this holds, and the number of notifications
    at the time of the query."""

    notified: int
    until: float
    at: float


class NextDue:
    """Remembers the answer, since each freed slot of one line also ends the sleep for the other."""

    def __init__(self) -> None:
        self.known: Answer | None = None

    def seconds(self, db: Database, frontiers: Iterable[Frontier], notified: int) -> float | None:
        """Return the seconds until the next job is due, None if none is. ``notified``: notifications so far."""
        frontiers = list(frontiers)
        now, known = clock.monotonic(), self.known
        are_many = any(frontier.are_many for frontier in frontiers)
        if known is not None and now < min(known.until, known.at):
            if known.notified == notified:
                return None if math.isinf(known.at) else known.at - now
            if are_many:  # only announced pairs may have something new
                new = {pair: None for frontier in frontiers for pair in frontier.tour.announced}
                known = known._replace(at=min(known.at, _due_at(db, new)))
                return None if math.isinf(known.at) else known.at - clock.monotonic()
        at = _due_at(db, {pair: None for frontier in frontiers for pair in frontier.reaches})
        if len(frontiers) > 1 or are_many:
            took = clock.monotonic() - now
            self.known = Answer(notified, now + max(REMEMBERED_SECONDS, REMEMBERED_FACTOR * took * are_many), at)
        return None if math.isinf(at) else at - clock.monotonic()


def _due_at(db: Database, pairs: Iterable[tuple[str, int]]) -> float:
    # From the answer on: after a sleep too short a claim finds nothing, and then this reads the future only.
    due = claiming.next_due(db, wanted) if (wanted := list(pairs)) else None
    return math.inf if due is None else clock.monotonic() + due
