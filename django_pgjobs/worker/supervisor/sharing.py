"""Shares the free room of a worker between its homes. Pure.

The home with the fewest jobs is filled first, until all have the same number: so no home with a backlog starves
another, and one alone gets all the room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


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
