"""Rules for the values of settings, one for each kind, with the words for the error.

Each rule returns the value as ``Conf`` keeps it, and raises TypeError or ValueError saying what it must be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django_pgjobs.values import by_queue
from django_pgjobs.values.backoff import Backoff
from django_pgjobs.values.by_queue import ByQueue, Rate
from django_pgjobs.values.limit import Limit, read_limit
from django_pgjobs.values.retention import MOST_HOURS, Retention, read_retention

if TYPE_CHECKING:
    from django_pgjobs.values.notify_failures import NotifyFailures

QUEUE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
"""The names that a queue may have; use ``fullmatch``."""

MODULES = re.compile(r"[^\W\d]\w*(\.[\w*]+)*")
"""The patterns that ``MODULES`` takes; use ``fullmatch``."""

MOST_BYTES = 2**28 - 1
"""The longest text in a jsonb, in bytes."""

MOST_SECONDS = 3650 * 86400.0
"""The longest duration in a setting: ten years."""

MOST_FACTOR = 1_000_000.0

SettingRule = Callable[[Any], Any]
"""Returns the value as ``Conf`` keeps it. Raises TypeError or ValueError saying what it must be."""


def flag(value: Any) -> bool:
    """A truth value."""
    if not isinstance(value, bool):
        raise TypeError("True or False")
    return value


def text(value: Any) -> str:
    """A short text."""
    if not isinstance(value, str):
        raise TypeError("a text")
    if len(value) > 200 or "\0" in value:
        raise ValueError("a text of at most 200 characters without NUL")
    return value


def host(value: Any) -> str:
    """A host name or address."""
    found = text(value)
    if not re.fullmatch(r"[\w.:%-]+", found, re.ASCII):
        raise ValueError("a host name or an address")
    return found


def whole(least: int, most: int) -> SettingRule:
    """A whole number between bounds."""

    def rule(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError("a whole number")
        if not least <= value <= most:
            raise ValueError(f"from {least} to {most}")
        return value

    return rule


def seconds(least: float = 0.0) -> SettingRule:
    """A duration, as float seconds."""

    def rule(value: Any) -> float:
        number = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise TypeError("a number of seconds or a timedelta")
        if not least <= number <= MOST_SECONDS:
            raise ValueError(f"from {least:g} to {MOST_SECONDS:.0f} seconds")
        return float(number)

    return rule


def or_none(rule: SettingRule) -> SettingRule:
    """A value that ``rule`` accepts, or None."""

    def either(value: Any) -> Any:
        try:
            return None if value is None else rule(value)
        except TypeError as error:
            raise TypeError(f"{error}, or None") from None

    return either


def texts(value: Any) -> tuple[str, ...]:
    """Several texts."""
    # Refuse a bare text: read as a list it would be one name per letter.
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(item, str) for item in value):
        raise TypeError("a list of texts")
    return tuple(sorted(value) if isinstance(value, (set, frozenset)) else value)


def modules(value: Any) -> tuple[str, ...]:
    """Dotted paths of modules, in which ``*`` may stand for a part of a name."""
    patterns = texts(value)
    wrong = [pattern for pattern in patterns if not MODULES.fullmatch(pattern)]
    if wrong:
        raise ValueError(
            'dotted paths of modules such as "shop.workflows.*" or "shop.*_jobs", the first part without a * '
            f"(found {', '.join(map(repr, wrong))})"
        )
    return patterns


def queues(value: Any) -> tuple[str, ...]:
    """Names of queues."""
    names = texts(value)
    wrong = [name for name in names if not QUEUE_NAME.fullmatch(name)]
    if wrong or not names:
        raise ValueError(
            f"names made of 1 to 100 letters, digits and _ . : - (found {', '.join(map(repr, wrong)) or 'none'})"
        )
    return names


def retention(value: Any) -> Retention:
    """Read the retention of ended jobs."""
    retention = read_retention(value)
    if retention.queues:
        queues([name for name, _ in retention.queues])
    return retention


def capacity(value: Any) -> ByQueue[int]:
    """A capacity by queue."""
    return _by_queue(by_queue.read_by_queue(value, '{"mail": 1000, "*": 100000}', by_queue.read_capacity))


def rate(value: Any) -> ByQueue[Rate]:
    """A registration rate by queue."""
    return _by_queue(by_queue.read_by_queue(value, '{"mail": {"tokens": 30, "register": 3}}', by_queue.read_rate))


def _by_queue(value: ByQueue[Any]) -> ByQueue[Any]:
    if value.names():
        queues(value.names())
    return value


def some_hours(value: Any) -> float:
    """A duration in hours."""
    number = value.total_seconds() / 3600 if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError("a number of hours or a timedelta")
    if not 1 <= number <= MOST_HOURS:
        raise ValueError(f"from 1 to {MOST_HOURS:.0f} hours")
    return float(number)


def notify_failures(value: Any) -> NotifyFailures:
    """Whom to notify of failures."""
    from django_pgjobs.values.notify_failures import read_notify_failures  # here for start-up time

    found = read_notify_failures(value)
    if found.queues:
        queues(found.queues)
    return found


def pattern(value: Any) -> str:
    """A regular expression."""
    if not isinstance(value, str):
        raise TypeError("a regular expression as text")
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"a regular expression that can be compiled ({error})") from None
    return value


def queue_limits(value: Any) -> ByQueue[Limit]:
    """A limit by queue."""
    return _by_queue(by_queue.read_by_queue(value, '{"mail": {"concurrency": 10, "rate": 100, "per": 60}}', read_limit))


def backoff(value: Any) -> Backoff:
    """A ``Backoff``."""
    if not isinstance(value, Backoff):
        raise TypeError("a Backoff(…)")
    return value


def bounds(value: Any) -> tuple[float, float]:
    """A pair of factors."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise TypeError("a pair of numbers, the least and the largest")
    least, largest = value
    if not all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in value):
        raise TypeError("a pair of numbers, the least and the largest")
    if not 0 <= least <= largest <= MOST_FACTOR:
        raise ValueError(f"a pair of numbers from 0 to {MOST_FACTOR:g}, the least first")
    return float(least), float(largest)
