"""Settings by queue: how many jobs a queue may hold, and how fast one process may register into it.

Layer 0. ``conf`` reads ``CAPACITY`` and ``REGISTRATION_RATE`` with the rules here; ``capacity`` and ``token_bucket``
enforce them. ``"*"`` stands for every queue that the setting does not name. The places that queues have in a worker are
written likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Generic, TypeVar

from django_pgjobs.values import setting_rules as rules
from django_pgjobs.values.setting_rules import SettingRule, part, read_part

V = TypeVar("V")

EVERY_OTHER = "*"
"""Stands for each queue that the setting does not name."""

MOST_JOBS = 1_000_000
"""The largest capacity: each registration counts up to it."""

MOST_PLACES = 1_000_000
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


def _tokens(least: int) -> SettingRule:
    return rules.whole(least, MOST_TOKENS)


@dataclass(frozen=True, slots=True, repr=False)
class Rate:
    """A bucket of ``tokens``, refilled by one every ``seconds_per_token``, and how many tokens each action takes."""

    tokens: int = part(30, _tokens(1))
    seconds_per_token: float = part(0.5, rules.seconds(0.001, MOST_TOKEN_SECONDS))
    register: int = part(3, _tokens(0))
    cancel: int = part(3, _tokens(0))
    status: int = part(1, _tokens(0))
    list: int = part(1, _tokens(0))

    def __repr__(self) -> str:
        """As it is written in the settings."""
        return repr({item.name: getattr(self, item.name) for item in fields(self)})


def by_queue(example: str, rule: Callable[[object], V]) -> Callable[[object], ByQueue[V]]:
    """Return the rule of a setting by queue, whose values obey ``rule`` or are None."""

    def read(value: object) -> ByQueue[V]:
        if isinstance(value, ByQueue):
            return value
        if value is None:
            return ByQueue()
        if not isinstance(value, Mapping):
            raise TypeError(f"a dict by queue, such as {example}, or None")
        if wrong := [name for name in value if not isinstance(name, str)]:
            raise ValueError(f"a dict whose keys are names of queues (found {wrong[0]!r})")
        if names := [name for name in value if name != EVERY_OTHER]:
            rules.queues(names)
        return ByQueue({name: None if own is None else read_part(name, rule, own) for name, own in value.items()})

    return read
