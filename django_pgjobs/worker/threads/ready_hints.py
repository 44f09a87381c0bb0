"""Queues and priorities in which jobs became ready since the last claim, according to notifications.

Callers hold the claim thread's lock. If hints do not fit, no job is lost: the list of all pairs has new pairs, full
scans find admitted jobs, and ``released_anywhere`` stands for all queues.
"""

from __future__ import annotations

from collections.abc import Iterable

from django_pgjobs.worker.threads.frontier import Frontier

MOST_HINTS = 1000
"""The most pairs or queues to keep of each kind."""


class ReadyHints:
    """``pairs`` have new jobs; ``admitted`` pairs and ``released`` queues also have some behind their frontiers.

    ``released_anywhere``: any queue may have some there.
    """

    def __init__(self) -> None:
        self.pairs: set[tuple[str, int]] = set()
        self.admitted: set[tuple[str, int]] = set()
        self.released: set[str] = set()
        self.released_anywhere = False

    def add(self, pair: tuple[str, int]) -> bool:
        """Record a pair; return False if there are too many, in which case read the list of all pairs."""
        if len(self.pairs) >= MOST_HINTS:
            return False
        self.pairs.add(pair)
        return True

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
