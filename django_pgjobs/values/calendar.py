"""The local times that a cron expression names, in any zone: which comes next, and which was the last.

croniter reads the text, once; from then on this is arithmetic with a few sorted numbers. A search looks at the days of
one month after the other and at the times of one day; so a rare fire costs hardly more than a frequent one. If an
expression gives both days, of the month and of the week, either matches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from datetime import datetime
from functools import cache
from typing import Any

YEARS = 50
"""Limit of a search: the rarest fires, as on 29 February if that is a Monday, come every 40 years."""

_RANGES = {"minute": range(60), "hour": range(24), "month": range(1, 13), "second": range(60)}
_DAY, _WEEKDAY, _SECOND = 2, 4, 5
LAST = "l"
NO_DAY = ("*", "?")
"""Values of a field that name no day."""


@cache
def reader() -> Any:
    """Return croniter's module."""
    from croniter import cron_m  # here for start-up time: 4 MiB and 50 ms

    return cron_m


class Calendar:
    """The local times of an expression, in whole seconds. Raises what croniter raises for one that is not valid."""

    def __init__(self, expression: str) -> None:
        read = reader().croniter(expression, datetime(2000, 1, 1))
        fields = read.expanded
        self.minutes = _numbers(fields[0], "minute")
        self.hours = _numbers(fields[1], "hour")
        self.months = _numbers(fields[3], "month")
        self.seconds = _numbers(fields[_SECOND], "second") if len(fields) > _SECOND else (0,)
        self.every_hour = fields[1] == ["*"]
        # By its text: croniter takes ``*/1`` for no day at all in one field, and for all days in the other.
        self._days = None if read.expressions[_DAY] in NO_DAY else _all(fields[_DAY], range(1, 32))
        self._weekdays = None if read.expressions[_WEEKDAY] in NO_DAY else _all(fields[_WEEKDAY], range(7))
        self._nth: dict[int, set[Any]] = read.nth_weekday_of_month
        self._nearest: set[int] = getattr(read, "nearest_weekday", None) or set()
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    def after(self, wall: datetime) -> datetime | None:
        """Return the first local time after ``wall``; None if there is none within ``YEARS``."""
        time = self._time_after(wall.hour, wall.minute, wall.second)
        first = self.hours[0], self.minutes[0], self.seconds[0]
        year, month, day = wall.year, wall.month, wall.day + (time is None)
        for _ in range(YEARS * 12 + 1):
            days = self.days_of(year, month)
            if (n := bisect_left(days, day)) < len(days):
                is_today = time is not None and (year, month, days[n]) == (wall.year, wall.month, wall.day)
                return datetime(year, month, days[n], *(time if is_today and time else first))
            year, month, day = (year, month + 1, 1) if month < 12 else (year + 1, 1, 1)
        return None

    def latest(self, wall: datetime) -> datetime | None:
        """Return the last local time at or before ``wall``; None if there is none within ``YEARS``."""
        time = self._time_until(wall.hour, wall.minute, wall.second)
        last = self.hours[-1], self.minutes[-1], self.seconds[-1]
        year, month, day = wall.year, wall.month, wall.day - (time is None)
        for _ in range(YEARS * 12 + 1):
            days = self.days_of(year, month)
            if n := bisect_right(days, day):
                is_today = time is not None and (year, month, days[n - 1]) == (wall.year, wall.month, wall.day)
                return datetime(year, month, days[n - 1], *(time if is_today and time else last))
            year, month, day = (year, month - 1, 31) if month > 1 else (year - 1, 12, 31)
        return None

    def days_of(self, year: int, month: int) -> tuple[int, ...]:
        """Return the days of a month that the expression names, in order. Raises ``OverflowError`` for a year 10000."""
        known = self._known.get((year, month))
        if known is None:
            if len(self._known) > YEARS * 24:
                self._known.clear()
            known = self._known[year, month] = self._named_days(year, month)
        return known

    def _named_days(self, year: int, month: int) -> tuple[int, ...]:
        if not 1 <= year <= 9999:
            raise OverflowError("year is out of range")
        if month not in self.months:
            return ()
        first, count = monthrange(year, month)
        named: set[int] = set()
        if self._days is None and self._weekdays is None:
            named.update(range(1, count + 1))
        if self._days is not None:
            named |= self._of_month(first, count)
        if self._weekdays is not None:
            named |= self._of_week(first, count)
        return tuple(sorted(named))

    def _of_month(self, first: int, count: int) -> set[int]:
        """Return the days that the third field names, of a month that has ``count`` and begins on weekday ``first``."""
        if self._nearest:
            return {_nearest(day, first, count) for day in self._nearest if day <= count}
        named = {count if day == LAST else int(day) for day in self._days or ()}
        return {day for day in named if day <= count}

    def _of_week(self, first: int, count: int) -> set[int]:
        """Return the days that the fifth field names."""
        named: set[int] = set()
        for weekday in self._weekdays or ():
            # croniter counts from Sunday, which is 0, ``monthrange`` from Monday.
            days = range((int(weekday) - 1 - first) % 7 + 1, count + 1, 7)
            wanted = self._nth.get(int(weekday))
            if wanted is None:
                named.update(days)
            else:
                named.update(days[-1] if n == LAST else days[n - 1] for n in wanted if n == LAST or n <= len(days))
        return named

    def _time_after(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        """Return the first time of day after this one; None if it is the last."""
        if hour in self.hours:
            if minute in self.minutes and (n := bisect_right(self.seconds, second)) < len(self.seconds):
                return hour, minute, self.seconds[n]
            if (n := bisect_right(self.minutes, minute)) < len(self.minutes):
                return hour, self.minutes[n], self.seconds[0]
        if (n := bisect_right(self.hours, hour)) < len(self.hours):
            return self.hours[n], self.minutes[0], self.seconds[0]
        return None

    def _time_until(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        """Return the last time of day at or before this one; None if there is none."""
        if hour in self.hours:
            if minute in self.minutes and (n := bisect_right(self.seconds, second)):
                return hour, minute, self.seconds[n - 1]
            if n := bisect_left(self.minutes, minute):
                return hour, self.minutes[n - 1], self.seconds[-1]
        if n := bisect_left(self.hours, hour):
            return self.hours[n - 1], self.minutes[-1], self.seconds[-1]
        return None


def _all(field: list[Any], everything: range) -> list[Any]:
    return list(everything) if field == ["*"] else field


def _numbers(field: list[Any], name: str) -> tuple[int, ...]:
    return tuple(sorted(map(int, _all(field, _RANGES[name]))))


def _nearest(day: int, first: int, count: int) -> int:
    """Return the working day nearest to ``day`` in the same month."""
    weekday = (first + day - 1) % 7
    if weekday == 5:
        return day - 1 if day > 1 else day + 2
    if weekday == 6:
        return day + 1 if day < count else day - 2
    return day
