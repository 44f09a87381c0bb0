"""Settings by queue: how many jobs a queue may hold, and how fast one process may register into it.

Layer 0. ``conf`` reads ``CAPACITY`` and ``REGISTRATION_RATE`` with the rules here; ``capacity`` and ``token_bucket``
enforce them. ``"*"`` stands for every queue that the setting does not name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Generic, TypeVar

V = TypeVar("V")

EVERY_OTHER = "*"
"""Stands for each queue that the setting does not name."""

MOST_JOBS = 1_000_000
"""The largest capacity: each registration counts up to it."""

MOST_TOKENS = 1_000_000
MOST_TOKEN_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, repr=False)
class ByQueue(Generic[V]):
    """A value for each named queue and perhaps one for all others; None means no limit. False if it has no values."""

    values: Mapping[str, V | None] = field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return bool(self.values)

    def __repr__(self) -> str:
        """As it is written in the settings."""
        return repr(dict(self.values))

    def of(self, queue: str) -> V | None:
        """Return the value for a queue, None for no limit."""
        return self.values[queue] if queue in self.values else self.values.get(EVERY_OTHER)

    def names(self) -> list[str]:
        """Return the queues that are named."""
        return [name for name in self.values if name != EVERY_OTHER]


@dataclass(frozen=True, slots=True, repr=False)
class Rate:
    """A bucket of ``tokens``, refilled by one every ``seconds_per_token``, and how many tokens each action takes."""

    tokens: int = 30
    seconds_per_token: float = 0.5
    register: int = 3
    cancel: int = 3
    status: int = 1
    list: int = 1

    def __repr__(self) -> str:
        """As it is written in the settings."""
        return repr({item.name: getattr(self, item.name) for item in fields(self)})


def read_by_queue(value: Any, words: str, read: Callable[[Any], V]) -> ByQueue[V]:
    """Return a setting by queue, each value as ``read`` returns it. Raises TypeError or ValueError, as a rule does."""
    if isinstance(value, ByQueue):
        return value
    if value is None:
        return ByQueue()
    if not isinstance(value, Mapping):
        raise TypeError(f"a dict by queue, such as {words}, or None")
    if wrong := [name for name in value if not isinstance(name, str)]:
        raise ValueError(f"a dict whose keys are names of queues (found {wrong[0]!r})")
    return ByQueue({name: None if own is None else read(own) for name, own in value.items()})


def read_capacity(value: Any) -> int:
    """Return how many unfinished jobs a queue holds at most."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_JOBS:
        raise ValueError(f"a dict of whole numbers from 1 to {MOST_JOBS}, or None (found {value!r})")
    return value


def read_rate(value: Any) -> Rate:
    """Return a bucket and its prices; missing keys have the defaults of ``Rate``."""
    if isinstance(value, Rate):
        return value
    names = [item.name for item in fields(Rate)]
    if not isinstance(value, Mapping) or not all(key in names for key in value):
        raise ValueError(f"a dict of dicts with the keys {', '.join(map(repr, names))} (found {value!r})")
    given = dict(value)
    seconds = _token_seconds(given.pop("seconds_per_token", Rate().seconds_per_token))
    numbers = {key: _tokens(key, number) for key, number in given.items()}
    return Rate(**numbers, seconds_per_token=seconds)


def _token_seconds(value: Any) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ValueError(f"a dict in which 'seconds_per_token' is seconds or a timedelta (found {value!r})")
    if not 0.001 <= number <= MOST_TOKEN_SECONDS:
        raise ValueError(
            f"a dict in which 'seconds_per_token' is from 0.001 to {MOST_TOKEN_SECONDS:g} (found {value!r})"
        )
    return float(number)


def _tokens(key: str, value: Any) -> int:
    least = 1 if key == "tokens" else 0
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_TOKENS:
        raise ValueError(f"a dict in which {key!r} is a whole number from {least} to {MOST_TOKENS} (found {value!r})")
    return value
