"""Finds the time at which the next job is due. The claim thread asks before each sleep; with two lines, or very many
pairs, it saves needless queries."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from django_pgjobs import clock
from django_pgjobs.store import claiming
from django_pgjobs.store.database import Database
from django_pgjobs.worker.threads.frontier import Frontier

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
