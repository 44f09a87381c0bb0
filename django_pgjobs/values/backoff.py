"""Delays of a failed job before its next attempt: numbers only, no clock and no database.

Layer 0. Each definition has a ``Backoff``; the database's clock counts the seconds that it returns. It must never raise
for an attempt number, and must always return finite seconds ≥ 0: a job killed on its thousandth attempt needs a delay
as much as one on its first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

LONGEST_SECONDS = 3650 * 86400.0
"""No delay is longer than ten years, limit or not: an instant beyond the calendar could not be stored."""


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """``base × factor^(attempt − 1)`` seconds, at most ``limit``, spread by ``jitter``.

    ``base`` and ``limit`` take seconds or ``timedelta`` and are kept as seconds; ``factor=1`` waits the same
    time after every attempt. ``jitter`` is a share of the delay: 0.1 spreads it evenly over ± 10 %. It is
    applied *after* the limit, so that many jobs at the limit do not come back at the same moment. A jittered delay may
    therefore exceed ``limit`` by that share.

    Raises ValueError, naming the field, for anything but finite numbers with base ≥ 0, factor > 0,
    limit ≥ 0 and 0 ≤ jitter ≤ 1.
    """

    base: float
    factor: float
    limit: float | None
    jitter: float

    def __init__(
        self,
        base: float | timedelta,
        factor: float = 1.0,
        limit: float | timedelta | None = None,
        jitter: float = 0.0,
    ) -> None:
        checked = {
            "base": _number("base", _seconds(base), "≥ 0", lambda n: n >= 0),
            "factor": _number("factor", factor, "> 0", lambda n: n > 0),
            "limit": limit if limit is None else _number("limit", _seconds(limit), "≥ 0", lambda n: n >= 0),
            "jitter": _number("jitter", jitter, "from 0 to 1", lambda n: 0 <= n <= 1),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after attempt number ``attempt`` (from 1), without jitter."""
        longest = LONGEST_SECONDS if self.limit is None else min(self.limit, LONGEST_SECONDS)
        if self.base == 0:
            return 0.0
        try:
            return min(longest, self.base * self.factor ** max(attempt - 1, 0))
        except OverflowError:
            return longest

    def jittered(self, attempt: int, random: Callable[[], float] = random.random) -> float:
        """Return ``delay(attempt)`` changed by at most ± ``jitter`` of itself.

        ``random`` returns a number from 0 to 1; 0 gives the shortest delay.
        """
        delay = self.delay(attempt)
        return min(LONGEST_SECONDS, delay * (1 + self.jitter * (2 * random() - 1)))


def _seconds(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else value


def read_backoff(value: object) -> Backoff:
    """Return a ``Backoff`` as it is. Raises ``TypeError`` saying what it must be."""
    if not isinstance(value, Backoff):
        raise TypeError("a Backoff(…)")
    return value


def _number(field: str, value: object, wanted: str, allowed: Callable[[float], bool]) -> float:
    """Return ``value`` as a finite float that is ``allowed``; refuse bools and texts."""
    number = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if not (math.isfinite(number) and allowed(number)):
        raise ValueError(f"Backoff: {field} must be a finite number {wanted}, not {value!r}")
    return number
