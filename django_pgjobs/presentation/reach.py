"""Limits of searches that no index answers."""

from __future__ import annotations

from django_pgjobs.states import Hold, Outcome

NEAR = 100_000
"""Number of jobs to search for a name or a queue."""

NEAR_TEXT = 100_000
"""Number of jobs to search for a text."""

NEAR_ENDED = 30_000
"""Number of ended jobs to search for anything else: few of their neighbours in the table ended so, so each is a
page."""

NEAR_TAGGED = 5_000
"""With more jobs than this a tag is common: it is searched for in the order of the list."""

NEAR_COMMON = 30_000
"""Number of jobs to search for a common tag, each of whose tags are unpacked."""

NEAR_HELD = 5_000
"""Number of held jobs to search for a queue or a text; each of their ids travels with the query."""

FAR = 1_000_000
"""``NEAR`` for a patient operator (a text takes a second or two)."""

FAR_HELD = 20_000
"""``NEAR_HELD`` for a patient operator."""

NEAR_RETRYING = 20_000
"""Number of jobs that run later to search for those that are tried again."""

NEAR_ARGUMENTS = 20_000
"""Number of jobs to search for an argument, each of which is unpacked."""

FAR_ARGUMENTS = 200_000
"""``NEAR_ARGUMENTS`` for a patient operator."""

NEAR_SUSPENDED = 20_000
"""Number of jobs that sleep or wait to look at; each is looked up in the table of jobs."""

FAR_SUSPENDED = 200_000
"""``NEAR_SUSPENDED`` for a patient operator."""

ENDED = frozenset(outcome.value for outcome in Outcome)
HELD = frozenset(hold.value for hold in Hold)


def reach_of(state: str, text: str, *, far: bool, batch: int | None = None, suspended: str = "") -> int:
    """Return how many jobs a bounded search examines; in a ``batch``, its members."""
    if suspended and batch is None:
        return FAR_SUSPENDED if far else NEAR_SUSPENDED
    if state in HELD and batch is None:
        return FAR_HELD if far else NEAR_HELD
    if state == "retrying" and batch is None and not text:
        return FAR if far else NEAR_RETRYING
    if state in ENDED and batch is None and not far:
        return NEAR_ENDED
    return FAR if far else NEAR_TEXT if text else NEAR
