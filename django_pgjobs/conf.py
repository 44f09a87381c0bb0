"""The one dict ``settings.PGJOBS``, read once into a frozen ``Conf``; units are in the names.

Layer 1. ``Conf`` says for each setting its default, its rule and, below it, what it does. ``problems`` finds
everything that is wrong with a dict, ``checks`` reports that, and ``get_conf`` raises on it with the same words.
How settings must relate to each other is only checked, not raised: a test may well run on a lease of a second.
Nothing here reads the environment or touches a database.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Any, Literal

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_pgjobs.values import by_queue
from django_pgjobs.values.backoff import LONGEST_SECONDS, Backoff
from django_pgjobs.values.by_queue import ByQueue, Rate
from django_pgjobs.values.limit import Limit, read_limit
from django_pgjobs.values.retention import MOST_HOURS, Retention, read_retention

QUEUE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
"""What a queue may be called; to be matched in full."""

MOST_BYTES = 2**28 - 1
"""The most that one text in a jsonb may have."""

MOST_SECONDS = 3650 * 86400.0
"""The longest duration that a setting may say: ten years."""

LADDER_SECONDS = 5.0
"""How long a worker takes at most from a passed deadline to the death of the process."""

DEFAULT_BACKOFF = Backoff(15, factor=4, limit=3600, jitter=0.1)

MOST_FACTOR = 1_000_000.0

Rule = Callable[[Any], Any]
"""Returns the value as ``Conf`` keeps it. Raises TypeError or ValueError saying what it must be."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with one key of ``PGJOBS`` (``key`` is empty if it is the dict itself)."""

    kind: Literal["dict", "unknown", "type", "range"]
    key: str
    message: str
    hint: str


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("True or False")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text")
    if len(value) > 200 or "\0" in value:
        raise ValueError("a text of at most 200 characters without NUL")
    return value


def _whole(least: int, most: int) -> Rule:
    def rule(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError("a whole number")
        if not least <= value <= most:
            raise ValueError(f"from {least} to {most}")
        return value

    return rule


def _seconds(least: float = 0.0) -> Rule:
    def rule(value: Any) -> float:
        number = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise TypeError("a number of seconds or a timedelta")
        if not least <= number <= MOST_SECONDS:
            raise ValueError(f"from {least:g} to {MOST_SECONDS:.0f} seconds")
        return float(number)

    return rule


def _or_none(rule: Rule) -> Rule:
    def either(value: Any) -> Any:
        try:
            return None if value is None else rule(value)
        except TypeError as error:
            raise TypeError(f"{error}, or None") from None

    return either


def _texts(value: Any) -> tuple[str, ...]:
    # A bare text is refused: read as a list it would be one name per letter.
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(item, str) for item in value):
        raise TypeError("a list of texts")
    return tuple(sorted(value) if isinstance(value, (set, frozenset)) else value)


def _queues(value: Any) -> tuple[str, ...]:
    names = _texts(value)
    wrong = [name for name in names if not QUEUE_NAME.fullmatch(name)]
    if wrong or not names:
        raise ValueError(
            f"names made of 1 to 100 letters, digits and _ . : - (found {', '.join(map(repr, wrong)) or 'none'})"
        )
    return names


def _retention(value: Any) -> Retention:
    retention = read_retention(value)
    if retention.queues:
        _queues([name for name, _ in retention.queues])
    return retention


def _capacity(value: Any) -> ByQueue[int]:
    return _by_queue(by_queue.read_by_queue(value, '{"mail": 1000, "*": 100000}', by_queue.read_capacity))


def _rate(value: Any) -> ByQueue[Rate]:
    return _by_queue(by_queue.read_by_queue(value, '{"mail": {"tokens": 30, "register": 3}}', by_queue.read_rate))


def _by_queue(value: ByQueue[Any]) -> ByQueue[Any]:
    if value.names():
        _queues(value.names())
    return value


def _some_hours(value: Any) -> float:
    number = value.total_seconds() / 3600 if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError("a number of hours or a timedelta")
    if not 1 <= number <= MOST_HOURS:
        raise ValueError(f"from 1 to {MOST_HOURS:.0f} hours")
    return float(number)


def _pattern(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a regular expression as text")
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"a regular expression that can be compiled ({error})") from None
    return value


def _queue_limits(value: Any) -> ByQueue[Limit]:
    return _by_queue(by_queue.read_by_queue(value, '{"mail": {"concurrency": 10, "rate": 100, "per": 60}}', read_limit))


def _backoff(value: Any) -> Backoff:
    if not isinstance(value, Backoff):
        raise TypeError("a Backoff(…)")
    return value


def _bounds(value: Any) -> tuple[float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise TypeError("a pair of numbers, the least and the largest")
    least, largest = value
    if not all(isinstance(number, (int, float)) and not isinstance(number, bool) for number in value):
        raise TypeError("a pair of numbers, the least and the largest")
    if not 0 <= least <= largest <= MOST_FACTOR:
        raise ValueError(f"a pair of numbers from 0 to {MOST_FACTOR:g}, the least first")
    return float(least), float(largest)


def _processes(value: Any) -> int:
    return min(4, usable_cores()) if value is None else _whole(1, 1000)(value)


def _setting(default: Any, rule: Rule) -> Any:
    return field(default=default, metadata={"rule": rule})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """The settings as the rest of the package reads them: attribute ``lease_seconds`` is ``PGJOBS["LEASE_SECONDS"]``.

    Seconds may be given as ``timedelta`` and are floats here.
    """

    queues: tuple[str, ...] | None = _setting(None, _or_none(_queues))
    """The queues that jobs may be registered in; None allows any valid name."""

    queue_limits: ByQueue[Limit] = _setting(ByQueue(), _queue_limits)  # noqa: RUF009 (ByQueue is frozen)
    """How many jobs of a queue run at once and how many start in a time, in all workers together, by queue.

    A dict of ``"concurrency"`` (jobs), ``"rate"`` (starts) and ``"per"`` (seconds or a ``timedelta``, 60 if left out);
    ``"*"`` is every queue that is not named, each by itself. It holds for jobs that are registered from then on. See
    {doc}`../how-to/limits`.
    """

    middleware: tuple[str, ...] = _setting((), _texts)
    """Dotted paths of the factories that are wrapped around every job in the executor, outermost first."""

    release: str = _setting("", _text)
    """Name of the deployed code, shown with workers and attempts."""

    notify: bool = _setting(True, _flag)
    """Wake workers by NOTIFY when a job is registered and committed; without it they find it by polling."""

    lease_seconds: float = _setting(30.0, _seconds(0.05))
    """How long a claimed job stays its worker's without renewal; after a worker's death its jobs wait this long."""

    renew_seconds: float = _setting(10.0, _seconds(0.01))
    """How often a worker renews its leases; at most a third of ``lease_seconds``."""

    beat_seconds: float = _setting(10.0, _seconds(0.01))
    """How often a worker writes its heartbeat, which grants no right and only informs people."""

    stale_seconds: float = _setting(60.0, _seconds(0.05))
    """After how long without a heartbeat a worker is *lost*; more than twice ``beat_seconds``.

    After two heartbeats that did not come it is *silent*: people are told, and nobody counts on it.
    """

    drain_seconds: float = _setting(25.0, _seconds())
    """How long a stopping worker lets running jobs finish before it hands them back."""

    poll_seconds: float = _setting(5.0, _seconds(0.01))
    """How long an idle worker sleeps at most between two looks, should no NOTIFY reach it."""

    rescue_grace_seconds: float = _setting(30.0, _seconds())
    """How long after its deadline a job is left to its own worker's ladder before others take it."""

    retention_hours: Retention = _setting(Retention(), _retention)  # noqa: RUF009 (Retention is frozen)
    """How long ended jobs are kept, with their failed attempts: hours, or a ``timedelta``, by outcome.

    Then the leader prunes them. None keeps for ever; 0 keeps nothing: the job is deleted as it ends. An outcome that is
    left out keeps its default. ``"queues"`` has such a dict for each queue that differs, whose other outcomes are as
    outside. None instead of the whole dict prunes nothing.
    """

    vacuum: bool = _setting(True, _flag)
    """Let the leader VACUUM the tables of jobs and claims when much has died there; else only autovacuum does."""

    key_pattern: str = _setting(".{1,200}", _pattern)
    """A regular expression that the ``key`` of a job must match in full.

    Whatever it says, a key is 1 to 200 printable characters; an ``idempotency_key`` is only bound to that.
    """

    stored_result_hours: float | None = _setting(720.0, _or_none(_some_hours))
    """How long the results of jobs with an ``idempotency_key`` are kept, apart from the jobs; None keeps them for ever.

    Hours or a ``timedelta``. As long a second job of that key returns the result without being run.
    """

    action_hours: float | None = _setting(2160.0, _or_none(_some_hours))
    """How long it is kept who cancelled, retried or paused what, and why; None keeps it for ever.

    Hours or a ``timedelta``; the default is 90 days. The admin shows it on the page of each job and as *Actions*.
    """

    callback_seconds: float = _setting(10.0, _seconds(0.01))
    """How long ``on_abandon`` and ``on_cancel`` may run."""

    ready_seconds: float = _setting(120.0, _seconds(0.1))
    """How long an executor may take to start before it is killed and counted as a failed boot."""

    executor_conn_max_age_seconds: float = _setting(60.0, _seconds())
    """How long executors keep database connections open between jobs; 0 closes them after each job."""

    executor_max_jobs: int | None = _setting(None, _or_none(_whole(1, 1_000_000_000)))
    """After so many jobs an executor is replaced, its successor started first; None never."""

    executor_max_megabytes: int | None = _setting(None, _or_none(_whole(1, 1_000_000_000)))
    """Holding more memory than so many times 1024² bytes an executor is replaced likewise; None never."""

    processes: int = _setting(None, _processes)
    """Executor processes of one worker; None is the number of usable cores, at most 4."""

    threads: int = _setting(4, _whole(1, 1000))
    """Jobs that one executor runs at once in threads."""

    async_slots: int = _setting(50, _whole(1, 100_000))
    """Coroutine jobs that one executor runs at once."""

    payload_limit_bytes: int = _setting(1024 * 1024, _whole(2, MOST_BYTES))
    """The most that a job's encoded arguments may take, in bytes of UTF-8."""

    result_limit_bytes: int = _setting(1024 * 1024, _whole(2, MOST_BYTES))
    """The most that a job's encoded result may take, in bytes of UTF-8."""

    traceback_limit_chars: int = _setting(20_000, _whole(0, 10_000_000))
    """How much of a traceback the retry history keeps."""

    max_attempts_ceiling: int = _setting(1000, _whole(1, 1_000_000))
    """The most attempts that a job may ask for."""

    timeout_ceiling_seconds: float = _setting(86400.0, _seconds(0.001))
    """The longest timeout that a job may ask for."""

    run_at_ceiling_days: int = _setting(3650, _whole(1, 36_500))
    """How far ahead a job may be registered."""

    past_run_at_seconds: float | None = _setting(None, _or_none(_seconds()))
    """How far in the past ``run_at`` may lie, by this machine's clock; None is as far as one likes, 0 not at all."""

    backoff_base_ceiling_seconds: float = _setting(LONGEST_SECONDS, _seconds())
    """The longest first delay that a ``Backoff`` may have."""

    backoff_factor_bounds: tuple[float, float] = _setting((0.0, 1000.0), _bounds)
    """The least and the largest factor that a ``Backoff`` may have."""

    capacity: ByQueue[int] = _setting(ByQueue(), _capacity)  # noqa: RUF009 (ByQueue is frozen)
    """How many unfinished jobs a queue holds at most, by queue; ``"*"`` is every queue that is not named.

    Registering beyond it raises ``QueueFull``. None, or a queue of which nothing is said, is without limit.
    """

    registration_rate: ByQueue[Rate] = _setting(ByQueue(), _rate)  # noqa: RUF009 (ByQueue is frozen)
    """How fast one process may register into a queue, by queue; ``"*"`` is every queue that is not named.

    A dict of ``"tokens"`` (30), ``"seconds_per_token"`` (0.5) and the price of each action in tokens: ``"register"``
    (3), ``"cancel"`` (3), ``"status"`` (1), ``"list"`` (1). Without tokens registering raises ``RateLimited``.
    """

    bypass_workers: int = _setting(4, _whole(1, 1000))
    """Jobs that one process runs at once in its own threads, where they are registered with ``bypass=True``."""

    bypass_exit_seconds: float = _setting(10.0, _seconds())
    """How long a process that exits waits for such jobs; what runs then is lost."""

    default_max_attempts: int = _setting(5, _whole(1, 1_000_000))
    """Attempts of a job that does not say ``max_attempts``."""

    default_timeout_seconds: float | None = _setting(1800.0, _or_none(_seconds(0.001)))
    """Timeout of a job that does not say ``timeout``; None is without limit."""

    default_backoff: Backoff = _setting(DEFAULT_BACKOFF, _backoff)  # noqa: RUF009 (Backoff is frozen)
    """Delay between the attempts of a job that does not say ``backoff``."""

    @property
    def silent_seconds(self) -> float:
        """How long a worker may miss its heartbeats, two of them, before nobody takes it to be alive."""
        return 2 * self.beat_seconds


RULES: Mapping[str, Rule] = {item.name.upper(): item.metadata["rule"] for item in fields(Conf)}
"""Key of ``PGJOBS`` → its rule."""


@cache
def get_conf() -> Conf:
    """Return the configuration, read from ``settings.PGJOBS`` at the first call and after each change of it.

    Raises ImproperlyConfigured with every unknown key and wrong value.
    """
    given = getattr(settings, "PGJOBS", {})
    if found := list(problems(given)):
        raise ImproperlyConfigured(" ".join(f"{problem.message} {problem.hint}" for problem in found))
    defaults = {item.name.upper(): item.default for item in fields(Conf)}
    return Conf(**{key.lower(): RULES[key](value) for key, value in {**defaults, **given}.items()})


def problems(given: Any) -> Iterator[Problem]:
    """Yield what is wrong with ``given`` as ``settings.PGJOBS``, each key by itself."""
    if not isinstance(given, Mapping):
        yield Problem(
            "dict",
            "",
            f"PGJOBS must be a dict, not {type(given).__name__}.",
            'Write PGJOBS = {"THREADS": 4}.',
        )
        return
    for key, value in given.items():
        if key not in RULES:
            yield _unknown(key)
            continue
        try:
            RULES[key](value)
        except TypeError as error:
            yield Problem("type", key, f'PGJOBS["{key}"] must be {error}, not {value!r}.', _default(key))
        except ValueError as error:
            yield Problem("range", key, f'PGJOBS["{key}"] must be {error}, not {value!r}.', _default(key))


def _unknown(key: Any) -> Problem:
    close = difflib.get_close_matches(str(key).upper(), RULES, n=1)
    hint = f'Did you mean "{close[0]}"?' if close else f"The settings are: {', '.join(sorted(RULES))}."
    return Problem("unknown", str(key), f"PGJOBS[{key!r}] is no setting of django-pgjobs.", hint)


def _default(key: str) -> str:
    default = next(item.default for item in fields(Conf) if item.name == key.lower())
    return f"The default is {default!r}."


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "PGJOBS":
        get_conf.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_pgjobs.conf")
