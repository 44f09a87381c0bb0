"""Check single values: a job's name, queue, priority, instants, limits and rules, for registering and for steering.

A check raises ``InvalidOption`` with the bare sentence; its caller adds the job or the call.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from django.conf import settings
from django.utils import timezone

from django_pgjobs.clock import EARLIEST, LATEST
from django_pgjobs.states import Rule
from django_pgjobs.values.backoff import Backoff
from django_pgjobs.values.built_in import OWN_QUEUE
from django_pgjobs.values.limit import JobLimits, read_job_limits
from django_pgjobs.values.setting_rules import LEVELS, QUEUE_NAME, InvalidOption, abridged, log_level

if TYPE_CHECKING:
    from django_pgjobs.definition.cron_declaration import CronDeclaration

PRIORITIES = range(-100, 101)
MEGABYTES = range(1, 1_000_000_001)

Duration = float | timedelta

RetryRule = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]
BackoffRule = Backoff | Callable[[BaseException, int], Duration | None]

LEAST_TIMEOUT_SECONDS = 0.001

NAME_LIMIT = 200


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the only one of ``words`` that ends so, or the closest, or nothing."""
    known = list(words)
    ends = [each for each in known if each.endswith(f".{word}")]
    close = ends if len(ends) == 1 else get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_int(option: str, value: object, allowed: range) -> int:
    """Return ``value`` if it is an int, not a bool, within ``allowed``."""
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise InvalidOption(f"{option} must be an integer from {allowed[0]} to {allowed[-1]}, not {value!r}")
    return int(value)


def seconds(option: str, value: object) -> float:
    """Return a duration, seconds or ``timedelta``, as finite float seconds ≥ 0."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidOption(f"{option} must be seconds or a timedelta, not {value!r}")
    if not 0 <= value < math.inf:
        raise InvalidOption(f"{option} must be a finite number of seconds ≥ 0, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise InvalidOption(f"{option} is too large") from None


def check_queue(value: object) -> str:
    """Return the queue's name; a member of a text enumeration counts as its value."""
    if not isinstance(value, str) or not QUEUE_NAME.fullmatch(str.__str__(value)):
        raise InvalidOption(f"queue must be 1 to 100 of the characters A-Z a-z 0-9 _ . : -, not {abridged(value)}")
    if value == OWN_QUEUE:
        raise InvalidOption(f"queue {OWN_QUEUE!r} is for this package's own jobs; choose another")
    return str.__str__(value)


def check_run_at(value: object) -> datetime:
    """Return the instant at which a job may start, in UTC; see ``check_instant``."""
    return check_instant("run_at", value)


def check_instant(option: str, value: object) -> datetime:
    """Return the instant in UTC; if ``USE_TZ`` is off, a naive one is in the project's local time."""
    if not isinstance(value, datetime):
        raise InvalidOption(f"{option} must be a datetime, not {value!r}")
    if settings.USE_TZ and timezone.is_naive(value):
        raise InvalidOption(f"{option} must be an aware datetime, since USE_TZ is on; {value!r} has no time zone")
    # In its own zone, the second pass of a repeated hour compares equal to the first, and adding even a zero timedelta
    # turns it into the first. In UTC the two differ.
    try:
        instant = (value if timezone.is_aware(value) else timezone.make_aware(value)).astimezone(UTC)
    except OverflowError:
        instant = None
    if instant is None or not EARLIEST <= instant <= LATEST:
        raise InvalidOption(f"{option} must be from {EARLIEST.date()} to {LATEST.date()} UTC, not {value!r}")
    return instant


def check_timeout(value: object) -> float | None:
    """Return the timeout in seconds, a millisecond or more, or None for unlimited."""
    if value is None:
        return None
    timeout = seconds("timeout", value)
    if timeout < LEAST_TIMEOUT_SECONDS:
        raise InvalidOption(f"timeout must be at least {LEAST_TIMEOUT_SECONDS:g} seconds, or None for unlimited")
    return timeout


def check_timeouts(value: object) -> tuple[float | None, float | None]:
    """Return the soft limit, None if only a timeout is given, and the timeout."""
    if not isinstance(value, tuple | list):
        return None, check_timeout(value)
    if len(value) != 2:
        raise InvalidOption(f"timeout must be one duration or a pair (soft, hard), not {value!r}")
    soft, hard = check_timeout(value[0]), check_timeout(value[1])
    if soft is None or (hard is not None and soft >= hard):
        raise InvalidOption(f"timeout=(soft, hard) needs a soft limit that is shorter than the hard one, not {value!r}")
    return soft, hard


def check_expiry(value: object) -> float | None:
    """Return after how many seconds a job expires."""
    if isinstance(value, datetime):
        raise InvalidOption("expires of @job must be seconds or a timedelta; using() takes an instant, too")
    expires = seconds("expires", value)
    if expires < LEAST_TIMEOUT_SECONDS:
        raise InvalidOption(f"expires must be at least {LEAST_TIMEOUT_SECONDS:g} seconds, not {value!r}")
    return expires


def check_expires(value: object) -> float | datetime | None:
    """Return when a job expires, as seconds after its start or an instant in UTC; None for never."""
    if value is None:
        return None
    return check_instant("expires", value) if isinstance(value, datetime) else check_expiry(value)


def check_backoff(value: object) -> BackoffRule:
    """Return a ``Backoff`` or a callable (exception, attempt) → seconds, timedelta or None."""
    if isinstance(value, type) or not (isinstance(value, Backoff) or callable(value)):
        raise InvalidOption(
            f"backoff must be a Backoff, or a callable (exception, attempt) returning seconds, not {value!r}"
        )
    if not isinstance(value, Backoff):
        _check_takes("backoff", value, 2)
    return cast("BackoffRule", value)


def check_rule(option: Literal["retry_on", "give_up_on"], value: object) -> RetryRule:
    """Return a tuple of exception types, or a callable (exception) → bool."""
    types = (value,) if isinstance(value, type) else value
    if isinstance(types, tuple | list | set | frozenset):
        if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in types):
            return tuple(types)
    elif callable(value):
        _check_takes(option, value, 1)
        return cast("RetryRule", value)
    raise InvalidOption(f"{option} must be exception types, or a callable (exception) returning a bool, not {value!r}")


def _check_takes(option: str, function: Callable[..., object], count: int) -> None:
    if inspect.iscoroutinefunction(function):
        raise InvalidOption(f"{option} must not be an async function: the worker calls it between attempts")
    try:
        inspect.signature(function).bind(*(None,) * count)
    except TypeError:
        raise InvalidOption(f"{option} {function!r} must take {count} positional argument(s)") from None
    except ValueError:
        pass  # a builtin without a signature: a wrong one fails at its first call


def check_attempts(value: object) -> int:
    """Return ``value`` if it is an int ≥ 1; the ceiling is a setting, which the plan checks."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidOption(f"max_attempts must be an integer ≥ 1, not {value!r}")
    return int(value)


def check_undo_on_failure(value: object) -> str:
    """Return what happens when a compensation is abandoned. Raises ``InvalidOption``."""
    if value not in ("go_on", "stop"):
        raise InvalidOption(f"undo_on_failure must be 'go_on' or 'stop', not {value!r}")
    return str(value)


def check_logs(value: object) -> int:
    """Return the level from which on lines are kept, 0 for None."""
    try:
        return 0 if value is None else log_level(value)
    except (TypeError, ValueError):
        raise InvalidOption(f"logs must be one of {', '.join(LEVELS)}, or None, not {value!r}") from None


def check_on_crash(value: object) -> str:
    """Return what becomes of a job whose process or worker died while it ran."""
    if value not in ("retry", "abandon"):
        raise InvalidOption(f"on_crash must be 'retry' or 'abandon', not {value!r}")
    return str(value)


def check_memory(value: object) -> int | None:
    """Return how many megabytes a job may take more than its process held when it began; None for no limit."""
    return None if value is None else check_int("memory", value, MEGABYTES)


def check_flag(option: str, value: object) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise InvalidOption(f"{option} must be True or False, not {value!r}")
    return value


def check_tags(value: object) -> tuple[str, ...]:
    """Return the tags in the order in which rows keep them. Raises ``InvalidOption``."""
    from django_pgjobs.values import tags  # here for start-up time

    return tags.check_tags(value)


def check_known(given: Mapping[str, object], known: Collection[str], where: str) -> None:
    """Refuse an option that does not exist, and say what to write instead, or suggest the one probably meant.

    ``where``: a place that the table of cures has.
    """
    for option, value in given.items():
        if option not in known:
            from django_pgjobs.values.cures import cure  # here for start-up time

            instead = cure(where, option, value)
            hint = f": {instead}" if instead else did_you_mean(option, known)
            raise InvalidOption(f"unknown option {option!r}{hint}")


class CheckedNeeds(NamedTuple):
    """The ids of needed jobs, and the ``Job`` of those that were given as one, which knows its database."""

    after: tuple[int, ...]
    after_rows: tuple[object, ...]


def check_after(value: object) -> CheckedNeeds:
    """Return the jobs that a job needs, given as ``Job`` or by their ids; registering looks them up."""
    given = [value] if isinstance(value, int | str) or _is_job(value) or not isinstance(value, Iterable) else [*value]
    return CheckedNeeds(tuple(dict.fromkeys(map(_id_of, given))), tuple(filter(_is_job, given)))


def _is_job(value: object) -> bool:
    return getattr(getattr(value, "_meta", None), "label", None) == "pgjobs.Job"


def _id_of(job: Any) -> int:
    if _is_job(job):
        if job.pk is None:
            raise InvalidOption(f"after takes jobs that are stored, and a job that bypasses the queue is not: {job!r}")
        job = job.pk
    if isinstance(job, bool) or not isinstance(job, int) or not 0 < job < 2**63:
        raise InvalidOption(f"after takes jobs or their ids, not {job!r}")
    return job


def check_when(value: object) -> Rule:
    """Return which end of other jobs a job needs. Raises ``InvalidOption``."""
    if value not in list(Rule):
        raise InvalidOption(f"when must be {', '.join(repr(str(rule)) for rule in Rule)}, not {value!r}")
    return Rule(str(value))


def check_database(value: object) -> str:
    """Return the alias; registering checks that it exists."""
    if not isinstance(value, str) or not value:
        raise InvalidOption(f"database must be an alias of DATABASES, not {value!r}")
    return value


def check_name(option: str, value: object) -> str:
    """Return a job's name or alias: printable text of 1 to 200 characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= NAME_LIMIT:
        raise InvalidOption(f"{option} must be text of 1 to {NAME_LIMIT} characters, not {abridged(value)}")
    if not value.isprintable() or value != value.strip():
        raise InvalidOption(f"{option} must be printable, without spaces at its ends, not {abridged(value)}")
    return str.__str__(value)


def check_names(option: str, value: object) -> tuple[str, ...]:
    """Return a tuple of names; a single string is one name."""
    names: Iterable[object] = (value,) if isinstance(value, str) else cast("Iterable[object]", value)
    if not isinstance(names, Iterable):
        raise InvalidOption(f"{option} must be a list of names, not {value!r}")
    return tuple(dict.fromkeys(check_name(option, name) for name in names))


def check_sensitive(names: Iterable[str], signature: inspect.Signature) -> frozenset[str]:
    """Return the names of arguments to hide; refuse unknown ones, since a typo would reveal what should be hidden."""
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for name in names:
        if name not in signature.parameters and not any_name:
            raise InvalidOption(f"sensitive names no argument: {name!r}{did_you_mean(name, signature.parameters)}")
    return frozenset(names)


def check_crons(value: object) -> tuple[CronDeclaration, ...]:
    """Return the entries of ``@job(cron=…)``."""
    from django_pgjobs.definition import cron_declaration  # here for start-up time

    return cron_declaration.check_crons(value)


def check_limits(value: object) -> JobLimits:
    """Return the job's limits: the one of its name and the one of its keys. Raises ``InvalidOption``."""
    try:
        return read_job_limits(value)
    except ValueError as error:
        raise InvalidOption(str(error)) from None
