"""Finds the time at which the next job is due. The claim thread asks before each sleep; with two lines it saves
needless queries."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from django_pgjobs import clock
from django_pgjobs.store import claiming
from django_pgjobs.store.database import Database
from django_pgjobs.worker.threads.frontier import Frontier

REMEMBERED_SECONDS = 1.0
"""Time that an answer stays valid. A job without announcement may become due sooner."""


class Answer(NamedTuple):
    """Time at which the next job is due (``math.inf``: never), with the number of notifications at the time of the
    query."""

    notified: int
    asked_at: float
    at: float


class NextDue:
    """Remembers the answer, since each freed slot of one line also ends the sleep for the other."""

    def __init__(self) -> None:
        self.known: Answer | None = None

    def seconds(self, db: Database, frontiers: Iterable[Frontier], notified: int) -> float | None:
        """Return the seconds until the next job is due, None if none is. ``notified``: notifications so far."""
        frontiers = list(frontiers)
        now = clock.monotonic()
        known = self.known
        if (
            known is not None
            and known.notified == notified
            and now < min(known.asked_at + REMEMBERED_SECONDS, known.at)
        ):
            return None if math.isinf(known.at) else known.at - now
        pairs = list({pair: None for frontier in frontiers for pair in frontier.reaches})
        due = claiming.next_due(db, pairs) if pairs else None
        if len(frontiers) > 1:
            # From the answer on: after a sleep too short a claim finds nothing, and then this reads the future only.
            self.known = Answer(notified, now, math.inf if due is None else clock.monotonic() + due)
        return due
