"""Chooses the pairs that a claim scans if there are too many for one. Pure: no clock, no I/O.

A *tour* leads the claims past all pairs, some at a time, larger priorities first. A full claim ends behind the queue
that gave the last job, and the next one begins there. The tour leaves a priority once it has found nothing more in any
of its queues, so all of them have their turn. In smaller priorities it returns to larger ones at intervals: jobs may
come in there without a notification. After a tour it rests for a few times as long as the tour took.

*Announced* pairs do not wait for it: for a moment each claim scans them too.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

MANY_PAIRS = 100
"""With more pairs there is a tour."""

MOST_PAIRS = 1000
"""The most pairs that a claim scans for a tour, and as many that were announced."""

LEAST_PAIRS = 50
ANNOUNCED_SECONDS = 0.5
"""Time for which each claim scans an announced pair: producers stay silent about it for less."""

REST_FACTOR = 3.0
RETURN_FACTOR = 20.0
RETURN_SECONDS = 1.0
"""After this time, or this many times what it took to pass larger priorities, a tour returns to them."""

Key = tuple[str, int]
Groups = Sequence[Sequence[Key]]
"""The pairs of each priority, sorted, larger priorities first."""


@dataclass(slots=True)
class Tour:
    """Progress of a tour. Instants are in the caller's seconds.

    ``last``: priority → the queue that it passed last. ``left``: the number of queues to pass at the current
    ``priority``, None after a tour. ``part``: what the claim under way scans for it, ``size`` pairs at most.
    """

    last: dict[int, Key] = field(default_factory=dict)
    priority: int | None = None
    left: int = 0
    part: list[Key] = field(default_factory=list)
    size: int = MOST_PAIRS
    spent: float = 0.0
    due: float = -math.inf
    returns_at: float = math.inf
    announced: dict[Key, float] = field(default_factory=dict)
    """Pair → when to stop scanning it with each claim."""

    @property
    def is_complete(self) -> bool:
        """True if it has passed all pairs and rests."""
        return self.priority is None

    def announce(self, pairs: Iterable[Key]) -> None:
        """Scan these pairs with the next claims; those that are too many wait for the tour."""
        for pair in pairs:
            if len(self.announced) < MOST_PAIRS or pair in self.announced:
                self.announced[pair] = math.inf

    def keys(self, groups: Groups, known: Container[Key], now: float, *, announced_first: bool) -> list[Key]:
        """Return the pairs that the next claim scans, larger priorities first.

        ``announced_first``: before others of their priority; alternate, lest one keeps the other waiting.
        """
        self.announced = {
            key: min(until, now + ANNOUNCED_SECONDS) for key, until in self.announced.items() if until > now
        }
        if (self.is_complete and now >= self.due) or now >= self.returns_at:
            self.spent, self.returns_at = 0.0, math.inf
            self._enter(groups[0])
        self.part = self._next(groups)
        announced = [key for key in self.announced if key in known]
        others = [key for key in self.part if key not in self.announced]
        return sorted(
            announced + others if announced_first else others + announced, key=lambda key: key[1], reverse=True
        )

    def _enter(self, group: Sequence[Key]) -> None:
        self.priority, self.left = group[0][1], len(group)

    def _next(self, groups: Groups) -> list[Key]:
        part: list[Key] = []
        if self.priority is None:
            return part
        for group in groups:
            priority, room = group[0][1], self.size - len(part)
            if priority <= self.priority and room > 0:
                count = min(self.left if priority == self.priority else len(group), len(group), room)
                begin = bisect_right(group, self.last.get(priority, ("", priority)))
                part += group[begin : begin + count]
                part += group[: max(0, begin + count - len(group))]
        return part

    def saw(self, groups: Groups, scanned: Sequence[Key], now: float, took: float, *, full: bool) -> None:
        """Learn which pairs a claim scanned, in order; a ``full`` one may have left jobs in the last of them."""
        self.spent += took
        counts, holds = self._pass(scanned, full=full)
        for group in groups:
            priority = group[0][1]
            if self.priority is None or priority > self.priority:
                continue
            if priority < self.priority:
                # Only now is it known how long larger priorities take.
                self.returns_at = min(self.returns_at, now + max(RETURN_SECONDS, RETURN_FACTOR * self.spent))
                self._enter(group)
            self.left = len(group) if holds == priority else self.left - counts[priority]
            if self.left > 0:
                return
        if self.priority is not None:
            self.priority, self.due = None, now + REST_FACTOR * self.spent

    def _pass(self, scanned: Sequence[Key], *, full: bool) -> tuple[Counter[int], int | None]:
        """Return priority → how many pairs of the part are passed, and the priority that may have more jobs."""
        part, seen, end = self.part, set(scanned), -1
        if full:
            end = max((n for n, key in enumerate(part) if key in seen and key not in self.announced), default=-1)
        holds = part[end][1] if end >= 0 and part[end] == scanned[-1] else None
        while full and end + 1 < len(part) and part[end + 1] in self.announced:
            end += 1
        passed = part[: end + 1] if full else part
        self.size = min(MOST_PAIRS, max(LEAST_PAIRS, 2 * (len(passed) if full else self.size)))
        self.last.update((key[1], key) for key in passed)
        return Counter(key[1] for key in passed), holds

    def gave_up(self) -> None:
        """Learn that a claim took too long: the next one scans fewer pairs."""
        self.size = max(LEAST_PAIRS, self.size // 2)
