"""A problem or a note as data, and the limits beyond which something is a problem."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

MAX_LATENCY_SECONDS = 300.0
MAX_LIMITED_SECONDS = 3600.0
MAX_PAUSED_SECONDS = 86_400.0
MAX_EVENT_SECONDS = 2 * 86_400.0
MAX_FAILING_PERCENT = 50.0
MAX_ABANDONED = 100

MANY = 1000
NAMED = 10
"""Number of queues, names or entries of one kind that are named."""


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """One problem: a ``code`` for programs, the queue if there is one, and ``text`` for people.

    ``subject``: which worker, queue or entry has it; the same problem has the same code and subject at each check.
    ``name``: of the jobs that have it, where it is of one name. ``is_note``: it needs no action. ``list``: the
    state whose list shows its jobs. ``worker``: the id of the one that tells of it. ``database``: the alias, where
    several are shown.
    """

    code: str
    text: str
    queue: str | None = None
    subject: str = ""
    name: str = ""
    is_note: bool = False
    list: str = ""
    worker: str = ""
    database: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits beyond which a fact is a problem, not a note: longer waits than so many seconds, and more jobs or workers
    than so many.

    None: any number. ``max_failing``: how many percent of the attempts of one name may fail. ``since``: how many
    seconds back abandoned jobs and lost workers count. ``queues``: the queues that count, None for all. ``most``: up to
    how many jobs to count.
    """

    max_latency: float = MAX_LATENCY_SECONDS
    max_limited: float = MAX_LIMITED_SECONDS
    max_paused: float = MAX_PAUSED_SECONDS
    max_event: float = MAX_EVENT_SECONDS
    max_failing: float = MAX_FAILING_PERCENT
    max_parked: int = 0
    max_abandoned: int = MAX_ABANDONED
    max_lost: int | None = None
    since: float = 3600.0
    queues: Collection[str] | None = None
    most: int = MANY

    def count(self, queue: str) -> bool:
        """Tell whether this queue counts."""
        return self.queues is None or queue in self.queues
