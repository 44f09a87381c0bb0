"""The places of queues: how many jobs of a queue this worker runs at once, whichever of its databases they are of.

A queue that has places is a *group* of its own; all others together are one, which has places if ``"*"`` has; nothing
counts this package's own queue. A run takes a slot of its group from its dispatch until its executor has it no more.
Main thread only, no I/O.

The free room of a worker is shared between its homes. The home with the fewest jobs is filled first, until all have the
same number: so no home with a backlog starves another, and one alone gets all the room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from django_pgjobs import clock
from django_pgjobs.values.built_in import OWN_QUEUE
from django_pgjobs.values.by_queue import EVERY_OTHER
from django_pgjobs.worker.shared.runs import HeldRun
from django_pgjobs.worker.supervisor.executor_process import DEEPEST, DEPTH_SECONDS

FIRST_SECONDS = 1.0
"""Time that jobs of a group seem to take before one has ended: too long to claim any ahead."""


class QueueSlots:
    """``most``: group → its places. False if no queue has any: then nothing is counted here."""

    def __init__(self, places: Mapping[str, int | None] = MappingProxyType({})) -> None:
        self.most = {group: most for group, most in places.items() if most is not None}
        self.uncounted = {OWN_QUEUE, *places} - set(self.most)
        self.taken = dict.fromkeys(self.most, 0)
        self.mean_seconds = dict.fromkeys(self.most, FIRST_SECONDS)

    def __bool__(self) -> bool:
        return bool(self.most)

    def group(self, run: HeldRun) -> str | None:
        """Return whose places a run takes; None if they are not counted."""
        queue = run.job.queue
        if queue in self.most:
            return queue
        return EVERY_OTHER if EVERY_OTHER in self.most and queue not in self.uncounted else None

    def free(self) -> dict[str, int]:
        """Return how many slots of each group are free."""
        return {group: most - self.taken[group] for group, most in self.most.items()}

    def fitting(self, runs: Sequence[HeldRun]) -> list[HeldRun]:
        """Return those that may start at once, the first ones first."""
        free, fitting = self.free(), []
        for run in runs:
            group = self.group(run)
            if group is None or free[group] > 0:
                fitting.append(run)
                free |= {} if group is None else {group: free[group] - 1}
        return fitting

    def count(self, runs: Iterable[HeldRun | None], sign: int) -> None:
        """Count runs that executors have got, or have no more; the latter show how long jobs take."""
        now = clock.monotonic()
        for run in runs:
            if run is not None and (group := self.group(run)) is not None:
                self.taken[group] += sign
                if sign < 0:
                    self.mean_seconds[group] += 0.1 * (now - run.since - self.mean_seconds[group])

    def waited(self, runs: Iterable[HeldRun], seconds: float) -> None:
        """Learn that these runs got no slot for so long: then no more are claimed ahead."""
        for group in set(map(self.group, runs)) - {None}:
            self.mean_seconds[group] = max(self.mean_seconds[group], seconds)  # type: ignore[index]

    def rooms(self, waiting: Counter[str], homes: int) -> dict[str, int]:
        """Return how many more jobs of each group to claim, beside those that are ``waiting``; in each of the homes.

        As for threads: for free slots at once, else when half of the room is free; and ahead what the slots of a group
        do in a moment, nothing after long jobs.
        """
        rooms = {}
        for group, most in self.most.items():
            ahead = min(DEEPEST, int(DEPTH_SECONDS * most / max(self.mean_seconds[group], 1e-6)))
            idle = most - self.taken[group] - waiting[group]
            room = max(idle + ahead, 0)
            wanted = idle > 0 or 2 * room >= most + ahead
            rooms[group] = max(room // homes, 1) if room and wanted else 0
        return rooms


class Demand(NamedTuple):
    """One home: how many jobs executors have of it or soon will, whether it surely has more, and when it claimed."""

    held: int
    is_hungry: bool
    claimed_at: float = 0.0


def offers(room: int, demands: Sequence[Demand]) -> list[int]:
    """Return how many jobs each home may claim, where ``room`` fit in.

    Hungry homes share them all. Others may have jobs at any moment, and get what they would if all were hungry, at
    least one: what is claimed beyond the room waits a moment, or goes back.
    """
    hungry = [demand for demand in demands if demand.is_hungry]
    shares = iter(_filled(room, hungry))
    asleep = _filled(room, demands)
    least = min(room, 1)
    return [
        next(shares) if demand.is_hungry else max(least, share) for demand, share in zip(demands, asleep, strict=True)
    ]


def _filled(room: int, demands: Sequence[Demand]) -> list[int]:
    """Return how many each gets, the lowest first; of equals, the one that has claimed least recently."""
    order = sorted(range(len(demands)), key=lambda at: (demands[at].held, demands[at].claimed_at))
    got = [0] * len(demands)
    left = max(room, 0)
    for count, lowest in enumerate(order, start=1):
        level = demands[lowest].held
        step = demands[order[count]].held - level if count < len(order) else left
        each, rest = min(step, left // count), 0
        if each < step:
            rest = left % count
        for at, other in enumerate(order[:count]):
            got[other] += each + (at < rest)
        left -= each * count + rest
        if not left:
            break
    return got
