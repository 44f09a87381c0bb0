"""Where each claim begins. Pure: no clock, no I/O.

A *pair* is a queue at one priority. Its *frontier* is the last (run_at, id) of the latest claim of that pair, not
of the highest: rows that come in behind it (late commits, releases) would wait for ever behind a maximum. The scan
starts there, so finished and running rows before it cost nothing even while an open transaction keeps them alive.
What lies behind is found by a *sweep*: the same claim from the beginning, due per pair until a claim has really
visited that pair, next 20 durations after the last, and at once after a claim that found little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django_pgjobs.store import ClaimedJob, Pair

BEGINNING = (datetime(1, 1, 1, tzinfo=UTC), 0)
SWEEP_FACTOR = 20.0
SWEEP_FLOOR_SECONDS = 1.0

Key = tuple[str, int]


@dataclass(slots=True)
class Frontier:
    """The pairs a worker claims from, and how far each has been claimed. Instants are the caller's seconds."""

    queues: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    at: dict[Key, tuple[datetime, int]] = field(default_factory=dict)
    sweep_at: dict[Key, float] = field(default_factory=dict)
    swept: bool = False
    rotation: int = 0

    def serves(self, queue: str) -> bool:
        """Whether this worker takes jobs of ``queue``."""
        return queue not in self.excluded and (self.queues is None or queue in self.queues)

    def learn(self, pairs: Iterable[Key]) -> None:
        """Add pairs; a new one is claimed from its beginning."""
        for pair in pairs:
            if pair not in self.at and self.serves(pair[0]):
                self.at[pair] = BEGINNING
                self.sweep_at[pair] = 0.0

    def replace(self, pairs: Iterable[Key]) -> None:
        """Know just these pairs, keeping how far each had been claimed."""
        wanted = {pair for pair in pairs if self.serves(pair[0])}
        for pair in set(self.at) - wanted:
            del self.at[pair], self.sweep_at[pair]
        self.learn(wanted)

    def sweep_all(self) -> None:
        """Make the next claim begin at the beginning of every pair."""
        self.sweep_at = dict.fromkeys(self.at, 0.0)

    def next_sweep(self) -> float:
        """Return the instant at which every pair is due for a sweep."""
        return max(self.sweep_at.values(), default=0.0)

    def plan(self, now: float) -> list[Pair]:
        """Return where to claim from: larger priorities first, queues of one priority in turn."""
        names = sorted({queue for queue, _ in self.at})
        self.rotation += 1
        turn = {queue: (index + self.rotation) % len(names) for index, queue in enumerate(names)}
        order = sorted(self.at, key=lambda pair: (-pair[1], turn[pair[0]]))
        return [Pair(*pair, *(BEGINNING if now >= self.sweep_at[pair] else self.at[pair])) for pair in order]

    def saw(self, plan: Sequence[Pair], jobs: Sequence[ClaimedJob], limit: int, now: float, took: float) -> None:
        """Learn from a claim of ``plan`` that returned ``jobs`` (in order) at ``now`` after ``took`` seconds."""
        for job in jobs:
            self.at[job.queue, job.priority] = (job.run_at, job.id)
        short = len(jobs) < limit
        pause = max(0.0 if short else SWEEP_FLOOR_SECONDS, SWEEP_FACTOR * took)
        for pair in self._visited(plan, jobs, short=short):
            if (pair.run_at, pair.id) == BEGINNING:
                self.sweep_at[pair.queue, pair.priority] = now + pause
        self.swept = short and all((pair.run_at, pair.id) == BEGINNING for pair in plan)

    def gave_up(self, plan: Sequence[Pair], now: float, took: float) -> None:
        """Learn that a claim of ``plan`` took too long: begin at the frontier meanwhile, where there is one."""
        for pair in plan:
            if (pair.run_at, pair.id) == BEGINNING:
                self.sweep_at[pair.queue, pair.priority] = now + SWEEP_FACTOR * took

    @staticmethod
    def _visited(plan: Sequence[Pair], jobs: Sequence[ClaimedJob], *, short: bool) -> Sequence[Pair]:
        """The pairs of the plan up to the last that returned a row; all of them when the claim came back short."""
        if short:
            return plan
        found = {(job.queue, job.priority) for job in jobs}
        last = max((index for index, pair in enumerate(plan) if (pair.queue, pair.priority) in found), default=-1)
        return plan[: last + 1]
