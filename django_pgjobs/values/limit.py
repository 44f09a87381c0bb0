"""Limits of how many jobs run at once and how many start in a period: numbers and keys, no clock and no database.

Layer 0. ``options`` reads the limits of jobs, ``conf`` those of queues; ``policy`` finds the key of a registration;
``admission`` passes the numbers to the statement that admits jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from inspect import Signature

from django_pgjobs.values.key_template import KeyOption, Template
from django_pgjobs.values.setting_rules import abridged

MOST_CONCURRENCY = 1_000_000
MOST_RATE = 1_000_000
LEAST_WINDOW_SECONDS = 0.1
MOST_WINDOW_SECONDS = 31 * 86400.0
KEY_LIMIT = 200
"""Characters of a limit's key."""


@dataclass(frozen=True, slots=True, init=False)
class Limit:
    """At most ``concurrency`` jobs at once, at most ``rate`` starts in any ``per`` seconds; in all workers together.

    Without ``key`` it applies to all jobs of a name together. With ``key`` it applies to each key separately: ``key``
    is a text such as ``"customer:{customer_id}"``, filled in with the job's arguments, or a callable that takes them
    and returns a text of 1 to 200 characters, or None to exempt the job from this limit.

    ``concurrency`` and ``rate`` are whole numbers from 1 to 1,000,000; give at least one. ``per`` is seconds or a
    ``timedelta``, from a tenth of a second to 31 days. Raises ValueError, naming the field.
    """

    concurrency: int | None
    rate: int | None
    per: float
    key: KeyOption | None

    def __init__(
        self,
        concurrency: int | None = None,
        rate: int | None = None,
        per: float | timedelta = 60.0,
        key: KeyOption | None = None,
    ) -> None:
        if concurrency is None and rate is None:
            raise ValueError("Limit: give concurrency, rate or both")
        checked = {
            "concurrency": _whole("concurrency", concurrency, MOST_CONCURRENCY),
            "rate": _whole("rate", rate, MOST_RATE),
            "per": _window(per),
            "key": _key(key),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits that a job declares: one for its name, one for each key."""

    own: Limit | None = None
    keyed: Limit | None = None

    @property
    def key(self) -> KeyOption | None:
        """The template or function of a job's key; None if no limit has a key."""
        return None if self.keyed is None else self.keyed.key

    def __bool__(self) -> bool:
        return self.own is not None or self.keyed is not None


def read_job_limits(value: object) -> JobLimits:
    """Return the limits in ``@job(limits=…)``: a ``Limit``, or a list of at most one with a key and one without.

    Raises ValueError with the bare sentence.
    """
    given = (value,) if isinstance(value, Limit) else value
    if not isinstance(given, list | tuple) or not all(isinstance(limit, Limit) for limit in given):
        raise ValueError(f"limits must be a Limit or a list of them, such as Limit(5), not {value!r}")
    keyed = [limit for limit in given if limit.key is not None]
    own = [limit for limit in given if limit.key is None]
    if len(keyed) > 1 or len(own) > 1:
        raise ValueError("limits must be at most one Limit with a key and one without")
    return JobLimits(next(iter(own), None), next(iter(keyed), None))


def read_limit(value: object) -> Limit:
    """Return the limit that the setting gives a queue. Raises ValueError saying what it must be."""
    if isinstance(value, Limit) and value.key is None:
        return value
    if not isinstance(value, Mapping) or not set(value) <= {"concurrency", "rate", "per"}:
        raise ValueError('a dict such as {"concurrency": 5} or {"rate": 100, "per": 60}')
    if "per" in value and value.get("rate") is None:
        raise ValueError('a dict whose "per" has a "rate"')
    try:
        return Limit(**value)
    except ValueError as error:
        raise ValueError(f"a limit ({error})") from None


def key_rule(key: KeyOption, signature: Signature) -> Callable[..., str | None]:
    """Return a function from a job's fitting arguments to its key. Raises ValueError with the bare sentence."""
    if not isinstance(key, str):
        return key
    try:
        return Template(key).bound(signature)
    except ValueError as error:
        raise ValueError(f"the key of a limit {error}") from None


def key_of(rule: Callable[..., str | None], args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
    """Return the key that ``rule`` makes from the arguments. Raises ValueError with the bare sentence."""
    try:
        found: object = rule(*args, **kwargs)
    except Exception as error:
        raise ValueError(f"the key of its limit cannot be made: {type(error).__name__}: {error}") from error
    if found is None:
        return None
    if not isinstance(found, str) or not 1 <= len(found) <= KEY_LIMIT or "\0" in found:
        wanted = f"text of 1 to {KEY_LIMIT} characters without NUL"
        raise ValueError(f"the key of a limit must be {wanted}, not {abridged(found)}")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the key of a limit must be text that can be stored, not {found!r}") from None
    return str.__str__(found)


def _key(value: object) -> KeyOption | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            named = Template(value).names
        except ValueError as error:
            raise ValueError(f"Limit: key {error}") from None
        if not named:
            raise ValueError(f"Limit: key {value!r} names no argument; leave it out to limit the job as a whole")
        return value
    if not callable(value) or isinstance(value, type):
        raise ValueError(f"Limit: key must be a text such as 'customer:{{customer_id}}' or a callable, not {value!r}")
    return value


def _whole(field: str, value: object, most: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"Limit: {field} must be a whole number from 1 to {most}, not {value!r}")
    return value


def _window(value: object) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if (
        not isinstance(seconds, int | float)
        or isinstance(seconds, bool)
        or not LEAST_WINDOW_SECONDS <= seconds <= MOST_WINDOW_SECONDS
    ):
        raise ValueError(
            f"Limit: per must be from {LEAST_WINDOW_SECONDS:g} to {MOST_WINDOW_SECONDS:.0f} seconds, not {value!r}"
        )
    return float(seconds)
