"""The setting ``RETENTION``: how long ended jobs are kept, by outcome, with exceptions by queue; and other rows.

Layer 0. ``conf`` reads the setting by the rule here, ``maintenance`` acts on it. All durations are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from django_pgjobs.states import Outcome
from django_pgjobs.values import setting_rules as rules
from django_pgjobs.values.setting_rules import part, part_rules, read_part, read_parts

HOUR = 3600.0
DAY = 24 * HOUR

_kept = rules.or_none(rules.seconds())
_an_hour = rules.seconds(HOUR)


@dataclass(frozen=True, slots=True, repr=False)
class OutcomeRetention:
    """Seconds that an ended job is kept, by outcome: None forever, 0 not at all."""

    succeeded: float | None = part(DAY, _kept)
    """Jobs that succeeded, with their failed attempts; 0 keeps nothing: the job is deleted as it ends."""

    cancelled: float | None = part(3 * DAY, _kept)
    """Jobs that were cancelled."""

    abandoned: float | None = part(30 * DAY, _kept)
    """Jobs that were abandoned (failed for good)."""

    def seconds(self, outcome: str) -> float | None:
        """Return how long jobs with an outcome are kept, in queues without an exception."""
        seconds: float | None = getattr(self, outcome)
        return seconds

    def __repr__(self) -> str:
        """As it is written in the settings."""
        return repr({item.name: getattr(self, item.name) for item in fields(self)})


def _queues(value: object) -> tuple[tuple[str, object], ...]:
    if value == ():
        return ()
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError("a dict by queue of dicts by outcome")
    return tuple((name, value[name]) for name in sorted(rules.queues(list(value)))) if value else ()


@dataclass(frozen=True, slots=True, repr=False)
class Retention(OutcomeRetention):
    """Retention of each kind of row, in seconds."""

    queues: tuple[tuple[str, OutcomeRetention], ...] = part((), _queues)
    """A dict by queue of such dicts by outcome, for queues that differ; outcomes left out there are as outside."""

    stored_results: float | None = part(30 * DAY, rules.or_none(_an_hour))
    """Results of jobs with an ``idempotency_key``, apart from the jobs: for that time a second job with the same key
    returns the stored result without running. None keeps them forever."""

    actions: float | None = part(90 * DAY, rules.or_none(_an_hour))
    """The record of who cancelled, retried or paused what, and why, which the admin shows on the page of each job and
    as *Actions*. None keeps it forever."""

    events: float = part(30 * DAY, _an_hour)
    """Events that no unfinished job waits for."""

    numbers_by_minute: float = part(DAY, _an_hour)
    """The numbers over time by the minute; after that by the hour."""

    numbers: float = part(30 * DAY, _an_hour)
    """The numbers over time by the hour."""

    def of(self, queue: str) -> OutcomeRetention:
        """Return the retention of a queue's jobs."""
        return dict(self.queues).get(queue, self)

    def keeps_all(self) -> bool:
        """Return whether every job is kept for a while, with any outcome and in any queue."""
        return all(each.seconds(o) != 0 for each in (self, *dict(self.queues).values()) for o in Outcome)

    def __repr__(self) -> str:
        """As it is written in the settings."""
        shown = {item.name: getattr(self, item.name) for item in fields(self)}
        return repr({**shown, "queues": dict(self.queues)})


def read_retention(value: object) -> Retention:
    """Return the setting as ``Conf`` keeps it. Raises TypeError or ValueError, as a rule does."""
    if value is None:
        return Retention(None, None, None)
    found = read_parts(Retention, value)
    return replace(found, queues=read_part("queues", partial(_by_queue, found), found.queues))


def _by_queue(usual: Retention, given: tuple[tuple[str, object], ...]) -> tuple[tuple[str, OutcomeRetention], ...]:
    return tuple((name, read_part(name, partial(_outcomes, usual), own)) for name, own in given)


def _outcomes(otherwise: OutcomeRetention, value: Any) -> OutcomeRetention:
    """Read a dict by outcome; outcomes that are left out are as in ``otherwise``."""
    if value is None:
        return OutcomeRetention(None, None, None)
    own = read_parts(OutcomeRetention, value)
    missing = () if own is value else [name for name in part_rules(OutcomeRetention) if name not in value]
    return replace(own, **{name: getattr(otherwise, name) for name in missing})
