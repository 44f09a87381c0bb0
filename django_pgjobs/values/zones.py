"""Time zones: their names, and the local times that a change of the clocks skips or repeats."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo


class InvalidCron(ValueError):
    """An expression, a zone or a policy is invalid; the message is a sentence without the entry's name."""


SECOND = timedelta(seconds=1)


def check_zone(name: object) -> ZoneInfo:
    """Return the IANA zone of this name. Raises ``InvalidCron``."""
    if isinstance(name, ZoneInfo) and name.key:
        return name
    if not isinstance(name, str) or not name:
        raise InvalidCron(f"the time zone must be an IANA name such as 'Europe/Paris', not {name!r}")
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidCron(f"there is no time zone {name!r} here; IANA names look like 'Europe/Paris'") from None


@dataclass(frozen=True, slots=True)
class Gap:
    """Local times that the clocks skip: the first of them, the first after them, and the instant of the change."""

    begins: datetime
    ends: datetime
    instant: datetime


def wall_of(instant: datetime, zone: ZoneInfo) -> datetime:
    """Return what the clocks of ``zone`` show, without a zone."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def instant_of(wall: datetime, zone: ZoneInfo, fold: int = 0) -> datetime:
    """Return the instant of a local time, in UTC; of a repeated one the first pass, or with ``fold`` the second."""
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def overlap_at(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime] | None:
    """Return the repeated local times around ``wall``, first and end; None if ``wall`` comes once."""
    if _is_plain(wall, zone):
        return None
    wall = wall.replace(microsecond=0)  # clocks change at whole seconds, and the search goes in whole seconds
    first, second = instant_of(wall, zone), instant_of(wall, zone, 1)
    if first >= second:
        return None
    change = _change(first, second, zone)
    return wall_of(change, zone), wall_of(change - SECOND, zone) + SECOND


def gap_at(wall: datetime, zone: ZoneInfo) -> Gap | None:
    """Return the skipped local times around ``wall``; None if ``wall`` is not skipped."""
    if _is_plain(wall, zone):
        return None
    late, early = instant_of(wall, zone), instant_of(wall, zone, 1)
    if early >= late:
        return None
    change = _change(early, late, zone)
    return Gap(wall_of(change - SECOND, zone) + SECOND, wall_of(change, zone), change)


def _is_plain(wall: datetime, zone: ZoneInfo) -> bool:
    """Return whether a local time comes once; for a third of what it costs to count how often."""
    return wall.replace(tzinfo=zone, fold=0).utcoffset() == wall.replace(tzinfo=zone, fold=1).utcoffset()


def _change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the first second after the change of clocks between two instants."""
    offset = before.astimezone(zone).utcoffset()
    while after - before > SECOND:
        middle = before + timedelta(seconds=(after - before) // SECOND // 2)
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after
