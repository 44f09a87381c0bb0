"""When the next job is due. The claim thread asks before each sleep; with two lines it asks no more than it must."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from django_pgjobs import clock
from django_pgjobs.store import statements as store
from django_pgjobs.worker.threads.frontier import Frontier

REMEMBERED_SECONDS = 1.0
"""How long an answer is believed. A job that nobody announces may become due sooner than it says."""


class Answer(NamedTuple):
    """When the next job is due, never if ``math.inf``, as it was asked after so many notifications."""

    notified: int
    asked_at: float
    at: float


class NextDue:
    """Remembers the answer: each slot of one line that comes free ends the sleep for the other line, too."""

    def __init__(self) -> None:
        self.known: Answer | None = None

    def seconds(self, db: store.Database, frontiers: Iterable[Frontier], notified: int) -> float | None:
        """Return the seconds until the next job is due, None when none is. ``notified`` notifications have come."""
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
        due = store.next_due(db, pairs) if pairs else None
        if len(frontiers) > 1:
            self.known = Answer(notified, now, math.inf if due is None else now + due)
        return due
