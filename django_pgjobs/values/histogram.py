"""Histograms of waits and runs: the bounds that charts and metrics share, and quantiles read from counts.

The bounds are powers of two from 1 ms to 9.3 h, so that a quantile is known to within a factor of two over seven
decades, by 27 counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

BOUNDS: tuple[float, ...] = tuple(0.001 * (1 << n) for n in range(26))
"""The upper bound of each count in seconds, inclusive; one more count takes what is longer."""

COUNTS = len(BOUNDS) + 1


def trimmed(counts: Sequence[int]) -> list[int]:
    """Return the counts without the zeros at the end, as rows store them."""
    end = len(counts)
    while end and not counts[end - 1]:
        end -= 1
    return list(counts[:end])


def added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the sums of two histograms, either of which may be trimmed."""
    short, long = sorted((one, other), key=len)
    return [*map(int.__add__, short, long), *long[len(short) :]]


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Return a time in seconds that ``share`` (0 to 1) of the counted ones do not exceed; None if none was counted.

    Within a count it is interpolated, as Prometheus' ``histogram_quantile`` does. Above the last bound it is that one.
    """
    total = sum(counts)
    if not total:
        return None
    rank = share * total
    for slot, below in enumerate(accumulate(counts)):
        if below >= rank and counts[slot]:
            if slot >= len(BOUNDS):
                return BOUNDS[-1]
            least = BOUNDS[slot - 1] if slot else 0.0
            return least + (BOUNDS[slot] - least) * (rank - (below - counts[slot])) / counts[slot]
    return BOUNDS[-1]
