"""Rules for the values of settings, one for each kind, with the words for the error, and the error of an option.

Each rule returns the value as ``Conf`` keeps it, and raises TypeError or ValueError saying what it must be. A setting
that is a dict of named parts is a dataclass whose fields have a default and a rule each; a wrong part is named by its
path, such as ``["mail"]["tokens"]``, which ``conf`` prints after the setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, TypeVar

T = TypeVar("T")

QUEUE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
"""The names that a queue may have; use ``fullmatch``."""

MODULES = re.compile(r"[^\W\d]\w*(\.[\w*]+)*")
"""The patterns that ``MODULES`` takes; use ``fullmatch``."""

MOST_BYTES = 2**28 - 1
"""The longest text in a jsonb, in bytes."""

MOST_SECONDS = 3650 * 86400.0
"""The longest duration in a setting: ten years."""

MOST_FACTOR = 1_000_000.0

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
"""The levels of ``logging``."""

SettingRule = Callable[[Any], Any]
"""Returns the value as ``Conf`` keeps it. Raises TypeError or ValueError saying what it must be."""


class InvalidOption(ValueError):
    """An option is invalid; the message is a sentence without the job's name."""


def abridged(value: object) -> str:
    """Return a value as a refusal shows it: of a long text, the beginning and its length."""
    if isinstance(value, str) and len(value) > 60:
        return f"{value[:60]!r}… of {len(value)} characters"
    return repr(value)


class WrongPart(ValueError):
    """A part of a setting breaks its rule; ``path`` is its place below the key, and ``value`` what stands there."""

    def __init__(self, key: object, error: Exception, value: object) -> None:
        super().__init__(str(error))
        self.key = key
        self.path: str = f'["{key}"]' + getattr(error, "path", "")
        self.value: object = getattr(error, "value", value)


def part(default: object, rule: SettingRule) -> Any:
    """Return a field with a default (``MISSING`` for none) and a rule."""
    return field(default=default, metadata={"rule": rule})


def part_rules(kind: type) -> dict[str, SettingRule]:
    """Return the rule of each part."""
    return {item.name: item.metadata["rule"] for item in fields(kind)}


def read_part(key: object, rule: Callable[[object], T], value: object) -> T:
    """Return a part as its rule does. Raises ``WrongPart``."""
    try:
        return rule(value)
    except (TypeError, ValueError) as error:
        raise WrongPart(key, error, value) from None


def read_parts(kind: type[T], value: object) -> T:
    """Return a dict as a ``kind``, whose parts have their defaults if left out. Raises TypeError or ValueError."""
    if isinstance(value, kind):
        return value
    rules = part_rules(kind)
    if not isinstance(value, Mapping):
        raise TypeError(f"a dict with any of the keys {', '.join(rules)}")
    for key in value:
        if key not in rules:
            close = get_close_matches(str(key), rules, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the keys are {', '.join(rules)}"
            raise ValueError(f"a dict without the key {key!r} ({hint})")
    needed = [item.name for item in fields(kind) if item.default is MISSING and item.name not in value]  # type: ignore[arg-type]
    if needed:
        raise ValueError(f'a dict with the key "{needed[0]}"')
    return kind(**{key: read_part(key, rules[key], given) for key, given in value.items()})


def flag(value: object) -> bool:
    """A truth value."""
    if not isinstance(value, bool):
        raise TypeError("True or False")
    return value


def text(value: object) -> str:
    """A short text."""
    if not isinstance(value, str):
        raise TypeError("a text")
    if len(value) > 200 or "\0" in value:
        raise ValueError("a text of at most 200 characters without NUL")
    return value


def host(value: object) -> str:
    """A host name or address."""
    found = text(value)
    if not re.fullmatch(r"[\w.:%-]+", found, re.ASCII):
        raise ValueError("a host name or an address")
    return found


def whole(least: int, most: int) -> SettingRule:
    """A whole number between bounds."""

    def rule(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError("a whole number")
        if not least <= value <= most:
            raise ValueError(f"from {least} to {most}")
        return value

    return rule


def seconds(least: float = 0.0, most: float = MOST_SECONDS) -> SettingRule:
    """A duration, as float seconds."""

    def rule(value: object) -> float:
        number = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise TypeError("a number of seconds or a timedelta")
        if not least <= number <= most:
            raise ValueError(f"from {least:g} to {most:.0f} seconds")
        return float(number)

    return rule


def or_none(rule: SettingRule) -> SettingRule:
    """A value that ``rule`` accepts, or None."""

    def either(value: object) -> object:
        try:
            return None if value is None else rule(value)
        except TypeError as error:
            raise TypeError(f"{error}, or None") from None

    return either


def texts(value: object) -> tuple[str, ...]:
    """Several texts."""
    # Refuse a bare text: read as a list it would be one name per letter.
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(item, str) for item in value):
        raise TypeError("a list of texts")
    return tuple(sorted(value) if isinstance(value, (set, frozenset)) else value)


def log_level(value: object) -> int:
    """The name of a level of ``logging``, as its number."""
    if type(value) is int and value in LEVELS.values():
        return value
    if not isinstance(value, str):
        raise TypeError("a level of logging as text")
    if value not in LEVELS:
        raise ValueError(f"one of {', '.join(LEVELS)}")
    return LEVELS[value]


def modules(value: object) -> tuple[str, ...]:
    """Dotted paths of modules, in which ``*`` may stand for a part of a name."""
    patterns = texts(value)
    wrong = [pattern for pattern in patterns if not MODULES.fullmatch(pattern)]
    if wrong:
        raise ValueError(
            'dotted paths of modules such as "shop.workflows.*" or "shop.*_jobs", the first part without a * '
            f"(found {', '.join(map(repr, wrong))})"
        )
    return patterns


def queues(value: object) -> tuple[str, ...]:
    """Names of queues."""
    names = texts(value)
    wrong = [name for name in names if not QUEUE_NAME.fullmatch(name)]
    if wrong or not names:
        raise ValueError(
            f"names made of 1 to 100 letters, digits and _ . : - (found {', '.join(map(repr, wrong)) or 'none'})"
        )
    return names


def aliases(value: object) -> object:
    """Aliases of databases, or what returns them: a callable, or its dotted path."""
    if callable(value) or (isinstance(value, str) and re.fullmatch(r"\w+(\.\w+)+", value)):
        return value
    try:
        return alias_list(value)
    except TypeError:
        raise TypeError("a list of aliases, a callable that returns one, or its dotted path") from None


def alias_list(value: object) -> tuple[str, ...]:
    """Aliases of databases."""
    names = texts(value)
    wrong = [name for name in names if "," in name or not name]
    if wrong or not names or len(set(names)) < len(names):
        raise ValueError("aliases, at least one, none of them twice or with a comma in it")
    return names


def schemas(value: object) -> object:
    """A source of names of schemas: a callable, or its dotted path."""
    if callable(value) or (isinstance(value, str) and re.fullmatch(r"\w+(\.\w+)+", value)):
        return value
    raise TypeError("a callable that returns the names of schemas, or its dotted path")


def schema_list(value: object) -> tuple[str, ...]:
    """Names of schemas; without those that are there twice."""
    given = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value
    names = tuple(dict.fromkeys(texts(given)))
    wrong = [name for name in names if not 1 <= len(name.encode()) <= 63 or not name.isprintable()]
    if wrong:
        raise ValueError(f"names of schemas, 1 to 63 bytes long (found {', '.join(map(repr, wrong))})")
    return names


def pattern(value: object) -> str:
    """A regular expression."""
    if not isinstance(value, str):
        raise TypeError("a regular expression as text")
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"a regular expression that can be compiled ({error})") from None
    return value


def factors(value: object) -> tuple[float, float]:
    """A pair of factors."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise TypeError("a pair of numbers, the least and the largest")
    least, largest = value
    if not all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in value):
        raise TypeError("a pair of numbers, the least and the largest")
    if not 0 <= least <= largest <= MOST_FACTOR:
        raise ValueError(f"a pair of numbers from 0 to {MOST_FACTOR:g}, the least first")
    return float(least), float(largest)
