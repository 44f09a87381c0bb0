"""Where jobs became ready since the last claim, as far as somebody has notified the claim thread.

Callers hold the claim thread's lock. What does not fit in here is not lost: the list of all pairs has it too.
"""

from __future__ import annotations

from collections.abc import Iterable

from django_pgjobs.worker.threads.frontier import Frontier

MOST_HINTS = 1000
"""Pairs or queues kept at most of each kind."""


class ReadyHints:
    """``pairs`` have something new. Behind their frontiers, too, have the ``admitted`` pairs and ``released`` queues.

    ``released_anywhere`` means that any queue may.
    """

    def __init__(self) -> None:
        self.pairs: set[tuple[str, int]] = set()
        self.admitted: set[tuple[str, int]] = set()
        self.released: set[str] = set()
        self.released_anywhere = False

    def add(self, pair: tuple[str, int]) -> bool:
        """Take note of a pair; return False if there are too many: then the list of all pairs is to be read."""
        if len(self.pairs) >= MOST_HINTS:
            return False
        self.pairs.add(pair)
        return True

    def add_admitted(self, pair: tuple[str, int]) -> None:
        """Take note of a pair whose jobs a limit has admitted."""
        if len(self.admitted) < MOST_HINTS:
            self.admitted.add(pair)

    def add_released(self, queue: str) -> None:
        """Take note of a queue into which jobs were released."""
        if len(self.released) < MOST_HINTS:
            self.released.add(queue)
        else:
            self.released_anywhere = True

    def hand_over(self, frontiers: Iterable[Frontier]) -> None:
        """Have the frontiers learn all of it, and forget it."""
        for frontier in frontiers:
            frontier.learn(self.pairs)
            frontier.admitted(self.admitted)
            frontier.released(None if self.released_anywhere else self.released)
        self.pairs.clear()
        self.admitted.clear()
        self.released.clear()
        self.released_anywhere = False
