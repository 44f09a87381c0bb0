"""Cron arithmetic: when an expression fires in a time zone, which fires are due, and how missed ones are handled.

Pure, and bounded: the search for the latest fire goes backwards from now, never forwards from an old start. An entry
for every second thus costs no more than any other, even after a year without a check. ``calendar`` knows the local
times of an expression; this module handles changes of the clocks:

- An entry whose hour field is ``*`` follows the hours that really pass: no fires in an hour that the clocks skip, and
  fires in each pass of an hour that they repeat.
- An entry that names its hours fires once for each: fires in skipped time come right after it, together; fires in
  repeated time come in its first pass.

Intervals have a module of their own, ``interval``. Zones are IANA names, instants aware datetimes in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from django_pgjobs.values.calendar import Calendar, reader
from django_pgjobs.values.fires import Bounded, Fires
from django_pgjobs.values.interval import Interval, check_every, check_interval, is_interval
from django_pgjobs.values.zones import SECOND, gap_at, instant_of, overlap_at
from django_pgjobs.values.zones import InvalidCron as InvalidCron
from django_pgjobs.values.zones import check_zone as check_zone

ONCE, SKIP, ALL = "once", "skip", "all"
ALLOW, AFTER_COMPLETION = "allow", "after_completion"
MISFIRES = (ONCE, SKIP, ALL)
OVERLAPS = (ALLOW, SKIP, AFTER_COMPLETION)

MISFIRE_LIMITS = range(1, 1001)
GRACE = timedelta(seconds=60)
"""Delay after which the policy ``skip`` treats a fire as missed. A new leader needs up to 20 seconds."""

EXPRESSION_LIMIT = 200

_STEPS = (60, 24, 31, 12, 7, 60)
_FIELDS = ("minute", "hour", "day of month", "month", "day of week", "second")
_WORDS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_RANDOM = re.compile(r"(?:^|,)[hr](?:\(|/|,|$)", re.IGNORECASE)
_STEP = re.compile(r"/(\d+)", re.ASCII)
_STORED_ALL = re.compile(r"all\((\d{1,4})\)", re.ASCII)


# Policies


@dataclass(frozen=True, slots=True)
class Misfire:
    """The policy for missed fires: make one (``once``), ``skip`` them, or make ``all`` of the last ``limit``."""

    policy: str = ONCE
    limit: int | None = None

    def __str__(self) -> str:
        return self.policy if self.limit is None else f"{self.policy}({self.limit})"


def check_misfire(policy: object, limit: object = None) -> Misfire:
    """Return the misfire policy. Raises ``InvalidCron``."""
    if policy not in MISFIRES:
        raise InvalidCron(f"misfire must be one of {', '.join(map(repr, MISFIRES))}, not {policy!r}")
    if policy != ALL:
        if limit is not None:
            raise InvalidCron(f"misfire_limit goes with misfire='all' only, not with {policy!r}")
        return Misfire(str(policy))
    if not isinstance(limit, int) or isinstance(limit, bool) or limit not in MISFIRE_LIMITS:
        low, high = MISFIRE_LIMITS[0], MISFIRE_LIMITS[-1]
        raise InvalidCron(f"misfire='all' needs a misfire_limit, an integer from {low} to {high}, not {limit!r}")
    return Misfire(ALL, int(limit))


def check_overlap(overlap: object, misfire: Misfire) -> str:
    """Return the overlap policy. Raises ``InvalidCron`` for one that contradicts ``misfire``."""
    if overlap not in OVERLAPS:
        raise InvalidCron(f"overlap must be one of {', '.join(map(repr, OVERLAPS))}, not {overlap!r}")
    if overlap != ALLOW and misfire.policy == ALL:
        raise InvalidCron(
            f"misfire='all' and overlap={overlap!r} contradict each other: missed fires are made up for at once, "
            "so their jobs overlap"
        )
    return str(overlap)


def stored_policies(misfire: str, overlap: str) -> tuple[Misfire, str]:
    """Return the policies of a row. Raises ``InvalidCron`` for values that no code can declare."""
    found = _STORED_ALL.fullmatch(misfire)
    read = check_misfire(ALL, int(found[1])) if found else check_misfire(misfire)
    return read, check_overlap(overlap, read)


# Expressions and zones


def check_expression(expression: object) -> str:
    """Return the expression, or the interval, with single spaces. Raises ``InvalidCron`` if it is invalid.

    One that never fires is invalid, too.
    """
    text = _one_line(expression)
    if is_interval(text):
        return check_interval(text)
    return _check_cron(text)


def check_either(expression: object, every: object, anchor: object, zone: Callable[[], str]) -> str:
    """Return what a declaration gives: its expression, or its interval with the anchor. Raises ``InvalidCron``.

    ``zone`` names the entry's zone, which only an anchor with a zone of its own asks for.
    """
    if every is not None:
        if expression is not None:
            raise InvalidCron(f"give an expression or every, not both: {expression!r} and every={every!r}")
        return check_every(every, anchor, zone)
    if anchor is None:
        return check_expression(expression)
    text = _one_line(expression)
    if not is_interval(text):
        raise InvalidCron(f"anchor goes with an interval only, not with the expression {text!r}")
    return check_every(text, anchor, zone)


def _one_line(expression: object) -> str:
    if not isinstance(expression, str) or not expression.strip():
        raise InvalidCron(f"the expression must be text such as '*/10 * * * *', not {expression!r}")
    text = " ".join(expression.split())
    if len(text) > EXPRESSION_LIMIT:
        raise InvalidCron(f"the expression must be at most {EXPRESSION_LIMIT} characters long, not {len(text)}")
    return text


def _check_cron(text: str) -> str:
    _check_fields(text, text.split())
    calendar = _calendar_of(text)
    if calendar.after(datetime(2000, 1, 1)) is None:
        raise InvalidCron(f"the expression {text!r} never fires: no such date exists")
    if len(calendar.seconds) == 60 and len(calendar.minutes) < 60:
        raise InvalidCron(
            f"the expression {text!r} fires 60 times a minute: of six fields the second is the last, not the first; "
            f"write {' '.join([*text.split()[1:], text.split()[0]])!r}"
        )
    return text


@lru_cache(maxsize=1024)
def _calendar_of(text: str) -> Calendar:
    """Return the local times of an expression, read once. Raises ``InvalidCron``."""
    try:
        return Calendar(text)
    except reader().CroniterBadDateError:
        raise InvalidCron(f"the expression {text!r} never fires: no such date exists") from None
    except (reader().CroniterError, ValueError, TypeError, KeyError, IndexError) as error:
        raise InvalidCron(f"the expression {text!r} is not valid: {error}") from None


def _check_fields(text: str, fields: list[str]) -> None:
    if text.startswith("@"):
        if text.lower() not in _WORDS:
            raise InvalidCron(f"the expression {text!r} must be one of {', '.join(_WORDS)}, or five fields")
        return
    if len(fields) not in (5, 6):
        raise InvalidCron(
            f"the expression {text!r} must have 5 fields (minute, hour, day of month, month, day of week), "
            f"or 6 with the second as the last, not {len(fields)}"
        )
    for name, field, most in zip(_FIELDS, fields, _STEPS, strict=False):
        if _RANDOM.search(field):
            raise InvalidCron(f"the expression {text!r} is random in its {name} ({field!r}): give the value itself")
        if any(int(step) > most for step in _STEP.findall(field)):
            raise InvalidCron(
                f"the expression {text!r} steps further than its {name} goes ({field!r}): "
                "steps restart in each hour, day, month or year"
            )


class Schedule(Fires):
    """An expression in a time zone. Raises ``InvalidCron``."""

    def __init__(self, expression: str, zone: str | ZoneInfo) -> None:
        self.expression = _check_cron(_one_line(expression))
        self.zone = check_zone(zone)
        self.calendar = _calendar_of(self.expression)
        self.every_hour = self.calendar.every_hour

    def __repr__(self) -> str:
        return f"<Schedule {self.expression} in {self.zone.key}>"

    def after(self, instant: datetime) -> datetime | None:
        """Return the first fire after ``instant``; None if none can be computed."""
        return _in_utc(self._after, instant)

    def latest(self, instant: datetime) -> datetime | None:
        """Return the last fire at or before ``instant``; None if none can be computed."""
        return _in_utc(self._latest, instant)

    def _after(self, instant: datetime) -> datetime:
        local = instant.astimezone(self.zone)
        wall = local.replace(tzinfo=None, fold=0)
        overlap = overlap_at(wall, self.zone)
        if overlap is None:
            return self._first_pass(self._forward(wall))
        begins, ends = overlap
        if not self.every_hour:
            return self._first_pass(self._forward(ends - SECOND if local.fold else wall))
        found = self._forward(wall)
        if found < ends:
            return instant_of(found, self.zone, local.fold)
        if not local.fold:
            again = self._forward(begins - SECOND)
            if again < ends:
                return instant_of(again, self.zone, 1)
        return self._first_pass(found)

    def _first_pass(self, found: datetime) -> datetime:
        """Return the first instant of a local time; for a skipped time, the instant at which this schedule fires."""
        gap = gap_at(found, self.zone)
        if gap is None:
            return instant_of(found, self.zone, 0)
        if not self.every_hour:
            return gap.instant
        return self._first_pass(self._forward(gap.ends - SECOND))

    def _latest(self, instant: datetime) -> datetime:
        local = instant.astimezone(self.zone)
        wall = local.replace(tzinfo=None, fold=0)
        if local.fold:
            begins, ends = overlap_at(wall, self.zone) or (wall, wall)
            found = self._back(wall)
            if self.every_hour and found >= begins:
                return instant_of(found, self.zone, 1)
            return self._last_pass(self._back(ends - SECOND), 0)
        return self._last_pass(self._back(wall), int(self.every_hour and overlap_at(wall, self.zone) is None))

    def _last_pass(self, found: datetime, fold: int) -> datetime:
        gap = gap_at(found, self.zone)
        if gap is None:
            return instant_of(found, self.zone, fold)
        if not self.every_hour:
            return gap.instant
        return self._last_pass(self._back(gap.begins - SECOND), fold)

    # The calendar, which knows no zone

    def _forward(self, wall: datetime) -> datetime:
        """Return the first local time after ``wall``."""
        return _found(self.calendar.after(wall))

    def _back(self, wall: datetime) -> datetime:
        """Return the last local time at or before ``wall``, in whole seconds."""
        return _found(self.calendar.latest(wall))


def _found(wall: datetime | None) -> datetime:
    if wall is None:
        raise OverflowError("no fire is near enough")
    return wall


def _in_utc(search: Callable[[datetime], datetime], instant: datetime) -> datetime | None:
    try:
        return search(instant)
    except OverflowError:
        return None


@lru_cache(maxsize=1024)
def schedule_of(expression: str, zone: str) -> Schedule | Interval:
    """Return the schedule of a row, parsed once. Raises ``InvalidCron``."""
    return Interval(expression, zone) if is_interval(expression) else Schedule(expression, zone)


def bounded_schedule_of(expression: str, zone: str, starts: datetime | None, ends: datetime | None) -> Fires:
    """Return the schedule of a row within its start and end, aware instants. Raises ``InvalidCron``."""
    schedule = schedule_of(expression, zone)
    return schedule if starts is None and ends is None else Bounded(schedule, starts, ends)


# What is due


@dataclass(frozen=True, slots=True)
class DueFires:
    """Work to do now: the fires to make, in order; the last one to skip; and the next one to come."""

    fires: tuple[datetime, ...]
    skipped: datetime | None
    upcoming: datetime | None


def due(schedule: Fires, *, after: datetime, now: datetime, misfire: Misfire) -> DueFires:
    """Return which of the fires after ``after`` are due ``now``, by the misfire policy."""
    upcoming = schedule.after(now)
    latest = schedule.latest(now)
    if latest is None or latest <= after:
        return DueFires((), None, upcoming)
    if misfire.policy == SKIP and now - latest > GRACE:
        return DueFires((), latest, upcoming)
    fires = [latest]
    while len(fires) < (misfire.limit or 1):
        before = schedule.latest(fires[-1] - SECOND)
        if before is None or before <= after:
            break
        fires.append(before)
    return DueFires(tuple(reversed(fires)), None, upcoming)
