"""The setting ``RETENTION_HOURS``: how long ended jobs are kept, by outcome, with exceptions by queue.

Layer 0. ``conf`` reads the setting by the rule here, ``maintenance.pruning`` acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django_pgjobs.states import Outcome

MOST_HOURS = 3650 * 24.0
"""The longest retention that is not forever: ten years."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Hours that an ended job is kept, by outcome: None forever, 0 not at all; plus exceptions by queue."""

    succeeded: float | None = 24.0
    cancelled: float | None = 72.0
    abandoned: float | None = 720.0
    queues: tuple[tuple[str, Retention], ...] = ()

    def hours(self, outcome: str) -> float | None:
        """Return the hours for an outcome, for queues without an exception."""
        hours: float | None = getattr(self, outcome)
        return hours

    def of(self, queue: str) -> Retention:
        """Return the retention of a queue's jobs."""
        return dict(self.queues).get(queue, self)

    def keeps_all(self) -> bool:
        """Return whether every job is kept for a while, with any outcome and in any queue."""
        return all(each.hours(o) != 0 for each in (self, *dict(self.queues).values()) for o in Outcome)

    def __repr__(self) -> str:
        """As it is written in the settings."""
        shown: dict[str, Any] = {str(outcome): self.hours(outcome) for outcome in Outcome}
        return repr(shown | ({"queues": dict(self.queues)} if self.queues else {}))


def read_retention(value: Any) -> Retention:
    """Return the setting as ``Conf`` keeps it. Raises TypeError or ValueError, as a rule does."""
    if isinstance(value, Retention):
        return value
    if value is None:
        return Retention(None, None, None)
    if not isinstance(value, Mapping):
        raise TypeError('a dict of hours by outcome, such as {"succeeded": 24, "queues": {"mail": {…}}}, or None')
    queues = value.get("queues", {})
    if not isinstance(queues, Mapping) or not all(isinstance(name, str) for name in queues):
        raise ValueError('a dict in which "queues" is a dict of such dicts by queue')
    own = _retained(Retention(), {key: hours for key, hours in value.items() if key != "queues"})
    return replace(own, queues=tuple((name, _retained(own, queues[name])) for name in sorted(queues)))


def _retained(otherwise: Retention, value: Any) -> Retention:
    if value is None:
        return Retention(None, None, None)
    if not isinstance(value, Mapping) or not all(key in list(Outcome) for key in value):
        raise ValueError(
            f'a dict with the keys "succeeded", "cancelled", "abandoned" and, at its top, "queues" (found {value!r})'
        )
    hours = {str(outcome): otherwise.hours(outcome) for outcome in Outcome}
    hours |= {str(key): _hours(given) for key, given in value.items()}
    return Retention(hours["succeeded"], hours["cancelled"], hours["abandoned"])


def _hours(value: Any) -> float | None:
    if value is None:
        return None
    number = value.total_seconds() / 3600 if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= MOST_HOURS:
        raise ValueError(f"a dict of hours from 0 to {MOST_HOURS:.0f}, timedeltas or None (found {value!r})")
    return float(number)
