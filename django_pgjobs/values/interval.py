"""Intervals: ``every 45 minutes``, ``every 2 weeks from 2026-01-05 07:00``.

An *anchor*, a local time of the entry's zone, fixes the phase: an interval fires at the anchor and at each multiple of
its length before and after it. Neither the last fire nor a restart nor an outage moves it.

- A whole number of days goes by the clocks on the wall: every two weeks at 07:00 stays at 07:00. A skipped local time
  fires right after it, a repeated one in its first pass, as an expression that names its hour does.
- Any other length is time that passes: every 45 minutes is 45 minutes, regardless of clock changes.

Pure; the next fire is one division away, however long ago the anchor is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django_pgjobs.values.fires import Fires
from django_pgjobs.values.zones import SECOND, InvalidCron, check_zone, gap_at, instant_of, wall_of

DAY = timedelta(days=1)
LONGEST = timedelta(days=3660)

ANCHOR = datetime(2001, 1, 1)
"""The anchor of intervals that name none: midnight of a Monday."""

UNITS = {
    "week": timedelta(weeks=1),
    "day": DAY,
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": SECOND,
}

_CURE = "write for example 'every 45 minutes' or 'every 2 weeks from 2026-01-05 07:00'"
_TEXT = re.compile(r"(?:every )?(?:(-?\d{1,12}) )?([a-z]+?)s?(?: from (.*))?", re.IGNORECASE | re.ASCII)
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?", re.ASCII)
_CALENDAR = ("month", "quarter", "year")


def is_interval(expression: str) -> bool:
    """Return whether a text is meant as an interval."""
    return expression[:5].lower() == "every"


def check_interval(text: str) -> str:
    """Return the interval in its one way of writing. Raises ``InvalidCron``."""
    length, anchor = _read(text)
    return _written(length, anchor)


def check_every(every: object, anchor: object, zone: Callable[[], str]) -> str:
    """Return an interval as text: from seconds, a ``timedelta``, or words such as ``"2 weeks"``.

    ``anchor``: a local time of the entry's zone as text, an aware instant, or None for the default; ``zone`` returns
    the name of that zone. Raises ``InvalidCron``.
    """
    if isinstance(every, str):
        length, own = _read(" ".join(every.split()))
    elif isinstance(every, timedelta):
        length, own = _check_length(every, str(every)), None
    elif isinstance(every, int | float) and not isinstance(every, bool):
        length, own = _check_length(_seconds(every), f"{every!r} seconds"), None
    else:
        raise InvalidCron(f"every must be seconds, a timedelta, or text such as '45 minutes', not {every!r}")
    if anchor is None:
        return _written(length, own)
    if own is not None:
        raise InvalidCron(f"every={every!r} names its anchor: leave out anchor={anchor!r}")
    return _written(length, _check_anchor(anchor, zone))


def length_of(expression: str) -> tuple[int, str]:
    """Return the length of a valid interval as a number and its largest whole unit: (2, "week")."""
    return _in_units(_read(expression)[0])


class Interval(Fires):
    """An interval in a time zone. Raises ``InvalidCron``."""

    def __init__(self, expression: str, zone: str | ZoneInfo) -> None:
        self.length, anchor = _read(expression)
        self.expression = _written(self.length, anchor)
        self.zone = check_zone(zone)
        self.anchor = ANCHOR if anchor is None else anchor
        """A local time of the zone."""
        self.by_the_clocks = not self.length % DAY
        """True if it counts days of the calendar; else it counts time that passes."""
        self.begin = _first_pass(self.anchor, self.zone)

    def __repr__(self) -> str:
        return f"<Interval {self.expression} in {self.zone.key}>"

    def after(self, instant: datetime) -> datetime | None:
        """Return the first fire after ``instant``; None if it is too far."""
        try:
            if not self.by_the_clocks:
                return self.begin + ((instant - self.begin) // self.length + 1) * self.length
            # A change of the clocks by a whole day, at the date line, moves a fire past its neighbours.
            number = (wall_of(instant, self.zone) - self.anchor) // self.length
            return min(fire for n in range(number - 1, number + 4) if (fire := self._fire(n)) > instant)
        except OverflowError:
            return None

    def latest(self, instant: datetime) -> datetime | None:
        """Return the last fire at or before ``instant``; None if it is too far."""
        try:
            if not self.by_the_clocks:
                return self.begin + ((instant - self.begin) // self.length) * self.length
            number = (wall_of(instant, self.zone) - self.anchor) // self.length
            return max(fire for n in range(number - 2, number + 3) if (fire := self._fire(n)) <= instant)
        except OverflowError:
            return None

    def _fire(self, number: int) -> datetime:
        return _first_pass(self.anchor + number * self.length, self.zone)


def _first_pass(wall: datetime, zone: ZoneInfo) -> datetime:
    gap = gap_at(wall, zone)
    return instant_of(wall, zone) if gap is None else gap.instant


def _read(text: str) -> tuple[timedelta, datetime | None]:
    found = _TEXT.fullmatch(text)
    if found is None:
        raise InvalidCron(f"the interval {text!r} is not valid: {_CURE}")
    number, unit, anchor = int(found[1] or 1), found[2].lower(), found[3]
    if unit in _CALENDAR:
        raise InvalidCron(
            f"the interval {text!r} has no fixed length: write an expression, such as '0 7 1 * *' for each month"
        )
    if unit not in UNITS:
        raise InvalidCron(f"the interval {text!r} has an unknown unit: use seconds, minutes, hours, days or weeks")
    try:
        length = number * UNITS[unit]
    except OverflowError:
        length = LONGEST * 2
    return _check_length(length, f"{number} {unit}s"), None if anchor is None else _local(anchor)


def _seconds(number: float) -> timedelta:
    try:
        return timedelta(seconds=number)
    except (OverflowError, ValueError):  # ValueError: not a number
        return timedelta(0) if number != number else LONGEST * 2


def _check_length(length: timedelta, given: str) -> timedelta:
    if not SECOND <= length <= LONGEST or length % SECOND:
        raise InvalidCron(f"an interval must be whole seconds, from 1 second to {LONGEST.days} days, not {given}")
    return length


def _check_anchor(anchor: object, zone: Callable[[], str]) -> datetime:
    if isinstance(anchor, str):
        return _local(anchor)
    if not isinstance(anchor, datetime):
        raise InvalidCron(
            f"anchor must be text such as '2026-01-05 07:00' for a local time, or an aware datetime, not {anchor!r}"
        )
    if anchor.utcoffset() is None:
        raise InvalidCron(
            f"anchor {anchor!r} has no time zone: give it one, or write text such as '2026-01-05 07:00' for a local "
            "time of the entry's zone"
        )
    if anchor.microsecond:
        raise InvalidCron(f"anchor must be a whole second, not {anchor.isoformat()}")
    try:
        return _check_year(wall_of(anchor.astimezone(UTC), check_zone(zone())), anchor.isoformat())
    except OverflowError:
        raise InvalidCron(f"anchor {anchor.isoformat()} is too far away") from None


def _local(text: str) -> datetime:
    try:
        if _LOCAL.fullmatch(text) is None:
            raise ValueError(text)
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidCron(f"the anchor {text!r} is no local time: write it as '2026-01-05 07:00'") from None
    return _check_year(found, text)


def _check_year(anchor: datetime, given: str) -> datetime:
    if not 1900 <= anchor.year <= 2999:
        raise InvalidCron(f"the anchor {given!r} must be from the years 1900 to 2999")
    return anchor


def _in_units(length: timedelta) -> tuple[int, str]:
    return next((length // size, unit) for unit, size in UNITS.items() if not length % size)


def _written(length: timedelta, anchor: datetime | None) -> str:
    number, unit = _in_units(length)
    words = f"every {unit}" if number == 1 else f"every {number} {unit}s"
    if anchor is None or anchor == ANCHOR:
        return words
    return f"{words} from {anchor.isoformat(' ', 'seconds' if anchor.second else 'minutes')}"
