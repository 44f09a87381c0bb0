"""Requests to the claimers of a worker: for the free room of its executors, shared between its homes.

Main thread only. It asks at once for idle threads and free slots, else when half the room is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from django_pgjobs.worker.supervisor.dispatcher import free
from django_pgjobs.worker.supervisor.executor_process import READY, ExecutorProcess
from django_pgjobs.worker.supervisor.queue_slots import Demand, QueueSlots, offers

if TYPE_CHECKING:
    from django_pgjobs.worker.supervisor.home import Home

LINES = (False, True)
"""Jobs for threads, and for loops."""


class ClaimRequests:
    """The requests of all homes of a worker; with ``max_jobs`` only one home claims at a time.

    With ``several`` their number changes, and there may be none; else there is at least one.
    """

    def __init__(self, homes: Sequence[Home], slots: QueueSlots, max_jobs: int | None, *, several: bool) -> None:
        self.homes = homes
        self.slots = slots
        self.turn = homes[0] if homes else None
        """The home that may claim, where only one may at a time."""
        self._several = several or bool(homes[1:])
        self._concurrent = self._several and max_jobs is None
        self._in_turns = bool(homes[1:]) and max_jobs is not None

    def by_need(self) -> Sequence[Home]:
        """Return the homes, that with the fewest jobs in executors first."""
        return self.homes if not self.homes[1:] else sorted(self.homes, key=_outstanding)

    def make(self, executors: list[ExecutorProcess], most: int | None, now: float) -> None:
        """Ask for the jobs that ``executors`` have room for, at most so many."""
        if self._several:
            # Jobs that still wait in one of them could not start: they take no room from the others.
            threads, loops = (free(executors, is_async) for is_async in LINES)
            idle = sum(child.idle_threads() for child in executors)
        else:
            dispatcher = self.homes[0].dispatcher
            threads, loops = dispatcher.room(executors)
            idle = dispatcher.idle_threads(executors)
        if most is not None:
            threads = min(threads, most)
        capacity = sum(child.threads + child.prefetch() for child in executors if child.state == READY)
        wanted = threads * 2 >= capacity or idle > 0
        homes = [
            home
            for home in self.homes
            if home.takes_jobs and home.executors(executors) and (most is None or home is self.turn)
        ]
        for home in self.homes:
            if home not in homes:
                home.claimer.request(0, 0, most=most if home is self.turn or most is None else 0)
        slots = None
        if self.slots and homes:
            waiting = sum((home.dispatcher.waits() for home in self.homes), Counter[str]())
            slots = self.slots.rooms(waiting, len(homes))
        for home, for_threads, for_loops in _shared(homes, threads, loops, executors, now):
            home.claimer.request(for_threads if wanted else 0, for_loops, most=most, slots=slots)

    def take_turns(self) -> None:
        """With a number of jobs to end after, let the next home claim: claims of several might be too many."""
        if self._in_turns and self.turn is not None:
            self.turn.claimer.request(0, 0, most=0)
            if not self.turn.claimer.busy:
                self.turn = self.homes[(self.homes.index(self.turn) + 1) % len(self.homes)]

    def most(self, home: Home, executors: list[ExecutorProcess], now: float) -> dict[bool, int] | None:
        """Return how many jobs that wait in a home may start now, so that others can claim as many; None for all.

        Callbacks wait in any number, without a claim of their own: they take no more places than claims would.
        """
        if not self._concurrent or not any(home.dispatcher.waiting.values()):
            return None
        most = {}
        for is_async in LINES:
            rivals = [each for each in self.homes if each is not home and _claims_next(each, is_async, executors, now)]
            demands = [Demand(each.dispatcher.outstanding[is_async], True, each.claimed_at) for each in (home, *rivals)]
            most[is_async] = offers(free(home.executors(executors), is_async), demands)[0]
        return most


def _shared(
    homes: Sequence[Home], threads: int, loops: int, executors: list[ExecutorProcess], now: float
) -> Iterator[tuple[Home, int, int]]:
    """Share the room between homes; each gets no more than the executors have that reach its database."""
    if homes and not homes[0].alias:
        yield homes[0], threads, loops
        return
    shares = [
        offers(room, [home.demand(is_async, now) for home in homes])
        for is_async, room in zip(LINES, (threads, loops), strict=True)
    ]
    for home, *share in zip(homes, *shares, strict=True):
        most_threads, most_loops = home.dispatcher.room(home.executors(executors))
        yield home, min(share[0], most_threads), min(share[1], most_loops)


def _claims_next(home: Home, is_async: bool, executors: list[ExecutorProcess], now: float) -> bool:
    """Return whether it surely would claim more, had it the room that its executors have."""
    hungry = home.takes_jobs and home.claimer.is_hungry(is_async, now)
    return hungry and free(home.executors(executors), is_async) > 0


def _outstanding(home: Home) -> int:
    return sum(home.dispatcher.outstanding.values())
