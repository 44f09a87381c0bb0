"""The ladder on which a running job is stopped: rung by rung, each harder than the one before. Pure.

Why it is stopped decides how fast and how far: a deadline that has passed, too much memory, a cancel, a request to
release it, or the loss of its claim. A job may be stopped for several reasons at once; each has a ladder of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from django_pgjobs.conf import LADDER_SECONDS

FLAG, INTERRUPT, TERM, KILL = "flag", "interrupt", "term", "kill"

TIMEOUT, MEMORY, CANCELLED, RELEASED, LOST = "timeout", "memory", "cancelled", "released", "lost"

SOFT = "soft"
"""The cause of the one interrupt at a soft limit, which stops nothing: it has no ladder."""

INTERRUPT_SECONDS = 1.0
TERM_SECONDS = 3.0

Rungs = tuple[tuple[float, str], ...]

_TO_THE_END: Rungs = ((INTERRUPT_SECONDS, INTERRUPT), (TERM_SECONDS, TERM), (LADDER_SECONDS, KILL))

LADDERS: dict[str, Rungs] = {
    TIMEOUT: _TO_THE_END,
    # Each second may take what is left of the memory of all.
    MEMORY: ((0.0, INTERRUPT), (1.0, TERM), (2.0, KILL)),
    LOST: ((0.0, FLAG), *_TO_THE_END),
    RELEASED: ((0.0, FLAG), *_TO_THE_END),
    # A cancel's own, by its mode. To be seen within a second: what was asked for comes at once.
    "ask": ((0.0, FLAG),),
    "interrupt": ((0.0, INTERRUPT),),
    "kill": ((0.0, KILL),),
}
"""Seconds since the reason → rung. At the deadline itself ``context.remaining()`` is 0: that is the job's flag."""


@dataclass(slots=True)
class Stop:
    """One reason to stop a run: since when, and how many rungs were taken."""

    cause: str
    rungs: Rungs
    since: float
    taken: int = 0

    @property
    def forces(self) -> bool:
        """True if it goes further than to ask."""
        return any(rung != FLAG for _, rung in self.rungs)

    def next(self, now: float) -> str | None:
        """Return the next rung if its time has come."""
        if self.taken < len(self.rungs) and now >= self.since + self.rungs[self.taken][0]:
            return self.rungs[self.taken][1]
        return None
