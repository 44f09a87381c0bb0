"""Intervals: how they are written, and when they fire, in zones whose clocks change. No database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from django_pgjobs import Cron, job
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.presentation.schedules import in_words
from django_pgjobs.values import schedule as cron
from django_pgjobs.values.interval import Interval
from django_pgjobs.values.schedule import InvalidCron, Misfire

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fetch(rate: int = 1) -> None: ...


# How they are written


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("every 45 minutes", "every 45 minutes"),
        ("every 1 hours", "every hour"),
        ("  EVERY   90 Minutes ", "every 90 minutes"),
        ("every 120 minutes", "every 2 hours"),
        ("every 36 hours", "every 36 hours"),
        ("every 14 days", "every 2 weeks"),
        ("every 86400 seconds", "every day"),
        ("every week from 2001-01-01", "every week"),
        ("every 2 weeks from 2026-01-05T07:00", "every 2 weeks from 2026-01-05 07:00"),
        ("every day from 2026-01-05 07:00:30", "every day from 2026-01-05 07:00:30"),
    ],
)
def test_an_interval_has_one_way_of_writing(given: str, kept: str) -> None:
    assert cron.check_expression(given) == kept
    assert cron.check_expression(kept) == kept
    assert Interval(kept, "UTC").expression == kept


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("every 0 minutes", "must be whole seconds, from 1 second to 3660 days, not 0 minutes"),
        ("every -5 minutes", "must be whole seconds, from 1 second to 3660 days, not -5 minutes"),
        ("every 999999999999 weeks", "from 1 second to 3660 days, not 999999999999 weeks"),
        ("every 1.5 hours", "not valid: write for example 'every 45 minutes'"),
        ("every 1 hour 30 minutes", "not valid: write for example 'every 45 minutes'"),
        ("every 2 months", "has no fixed length: write an expression, such as '0 7 1 "),
        ("every year", "has no fixed length"),
        ("every 3 fortnights", "has an unknown unit: use seconds, minutes, hours, days or weeks"),
        ("every", "has an unknown unit"),
        ("every week from tomorrow", "the anchor 'tomorrow' is no local time: write it as '2026-01-05 07:00'"),
        ("every week from 2026-02-30", "the anchor '2026-02-30' is no local time"),
        ("every week from 2026-01-05 07:00+01:00", "is no local time"),
        ("every week from 0001-01-01", "must be from the years 1900 to 2999"),
    ],
)
def test_a_bad_interval_is_refused(given: str, says: str) -> None:
    with pytest.raises(InvalidCron, match=says):
        cron.check_expression(given)
    with pytest.raises(InvalidCron):
        cron.schedule_of(given, "UTC")


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"every": timedelta(minutes=45)}, "every 45 minutes"),
        ({"every": 2700}, "every 45 minutes"),
        ({"every": "2 weeks"}, "every 2 weeks"),
        ({"every": "every 2 weeks"}, "every 2 weeks"),
        ({"every": timedelta(days=14), "anchor": "2026-01-05 07:00"}, "every 2 weeks from 2026-01-05 07:00"),
        ({"every": "week", "anchor": at("2026-07-06 05:00")}, "every week from 2026-07-06 07:00"),
        ({"expression": "every 45 minutes"}, "every 45 minutes"),
        ({"expression": "every 2 days", "anchor": "2026-01-05"}, "every 2 days from 2026-01-05 00:00"),
    ],
)
@pytest.mark.usefixtures("no_other_entries")
def test_code_declares_an_interval(options: dict[str, Any], kept: str) -> None:
    definition = job(name="shop.fetch")(fetch)
    entry = Cron(**{"call": definition.bind(7), "name": "rates", "tz": "Europe/Berlin", **options})
    assert entry.declared().expression == kept
    assert len(entry.next_fires(3, after=at("2026-01-01"))) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"every": 0}, "must be whole seconds, from 1 second to 3660 days, not 0 seconds"),
        ({"every": timedelta(0)}, "must be whole seconds, from 1 second to 3660 days, not 0:00:00"),
        ({"every": timedelta(minutes=-1)}, "must be whole seconds"),
        ({"every": 0.5}, "must be whole seconds, from 1 second to 3660 days, not 0.5 seconds"),
        ({"every": 1.5}, "must be whole seconds"),
        ({"every": float("nan")}, "must be whole seconds"),
        ({"every": float("inf")}, "must be whole seconds"),
        ({"every": timedelta(days=4000)}, "from 1 second to 3660 days"),
        ({"every": True}, "every must be seconds, a timedelta, or text such as '45 minutes', not True"),
        ({"every": "45 minutes", "expression": "@daily"}, "give an expression or every, not both"),
        ({"anchor": "2026-01-05", "expression": "@daily"}, "anchor goes with an interval only"),
        ({"every": "week", "anchor": datetime(2026, 1, 5)}, "has no time zone: give it one, or write text"),
        ({"every": "week", "anchor": 5}, "anchor must be text such as '2026-01-05 07:00'"),
        ({"every": "week", "anchor": at("2026-01-05 07:00:00.5")}, "anchor must be a whole second"),
        ({"every": "week", "anchor": at("3500-01-05 07:00")}, "must be from the years 1900 to 2999"),
        ({"every": "week", "anchor": at("0001-01-05 07:00")}, "must be from the years 1900 to 2999"),
        ({"every": "week from 2026-01-05", "anchor": "2026-01-06"}, "names its anchor: leave out anchor"),
        ({}, "the expression must be text"),
    ],
)
@pytest.mark.usefixtures("no_other_entries")
def test_a_bad_interval_is_refused_where_it_is_written(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJob, match=says) as caught:
        Cron(**options)
    assert "test_interval.py:" in str(caught.value)


def test_the_preview_says_an_interval_in_words() -> None:
    with translation.override("en"):
        assert in_words("every 45 minutes", "Europe/Berlin") == (
            "Every 45 minutes of elapsed time, counted from Monday, 1 January 2001, 00:00 in Europe/Berlin"
        )
        assert in_words("every 2 weeks from 2026-01-05 07:00", "Europe/Berlin") == (
            "Every 2 weeks at 07:00 by the clocks of Europe/Berlin, counted from Monday, 5 January 2026"
        )
        assert in_words("every day", "UTC").startswith("Every day at 00:00 by the clocks of UTC")
    assert in_words("every nonsense", "UTC") == in_words("every day", "Mars") == ""


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "Every minute"),
        ("*/15 * * * *", "Every 15 minutes"),
        ("5 * * * *", "Every hour at minute 5"),
        ("0 */4 * * *", "Every 4 hours at minute 0"),
        ("0 7 * * *", "Every day at 07:00"),
        ("@daily", "Every day at 00:00"),
        ("15 6,18 * * mon-fri", "Monday to Friday at 06:15, 18:15"),
        ("0 9 * * 1,4", "Monday, Thursday at 09:00"),
        ("0 0 1 * *", "On day 1 of each month at 00:00"),
        *((special, "") for special in (
            "*/7 * * * *", "0 */5 * * *", "0 7 1 * 1", "0 7 * 6 *", "0-30 7 * * *", "0 7 L * *", "0 7 * * 1#2",
            "0 7 * * 9",
            "0 0 7 * * *", "", "x",
        )),
    ],
)  # fmt: skip
def test_a_cron_expression_is_said_in_words_if_they_say_all_of_it(expression: str, words: str) -> None:
    """A step that does not divide the hour is shorter at its end; a day and a weekday together mean either."""
    with translation.override("en"):
        assert in_words(expression, "UTC") == words


# When they fire


@pytest.mark.parametrize(
    ("expression", "zone", "start", "fires"),
    [
        (
            "every 2 weeks from 2026-01-05 07:00", "Europe/Berlin", "2026-03-15",
            ["2026-03-16 06:00", "2026-03-30 05:00", "2026-04-13 05:00"],
        ),
        (
            "every day from 2026-01-05 02:30", "Europe/Berlin", "2026-03-28",
            ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"],
        ),
        (
            "every day from 2026-01-05 02:30", "Europe/Berlin", "2026-10-24",
            ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"],
        ),
        (
            "every 6 hours", "Europe/Berlin", "2026-03-28 12:00",
            ["2026-03-28 17:00", "2026-03-28 23:00", "2026-03-29 05:00"],
        ),
        (
            "every 45 minutes from 2026-03-29 00:00", "Europe/Berlin", "2026-03-29 00:20",
            ["2026-03-29 00:30", "2026-03-29 01:15", "2026-03-29 02:00"],
        ),
        ("every day", "Pacific/Apia", "2011-12-29 12:00", ["2011-12-30 10:00", "2011-12-31 10:00"]),
        ("every 2 weeks from 2026-01-05 07:00", "UTC", "1980-01-01", ["1980-01-07 07:00", "1980-01-21 07:00"]),
    ],
)  # fmt: skip
def test_an_interval_fires(expression: str, zone: str, start: str, fires: list[str]) -> None:
    """A26: whole days by the clocks on the wall, all others as time passes; the anchor is a phase, no beginning."""
    assert Interval(expression, zone).next_fires(at(start), len(fires)) == [at(fire) for fire in fires]


def test_the_phase_is_that_of_the_anchor_whatever_was_fired_last() -> None:
    """An outage of an hour and a half, and a fire that came late: the next one is where it always was."""
    schedule = cron.schedule_of("every 45 minutes", "UTC")
    found = cron.due(schedule, after=at("2026-01-01 00:00"), now=at("2026-01-01 01:32:07"), misfire=Misfire())
    assert found == cron.DueFires((at("2026-01-01 01:30"),), None, at("2026-01-01 02:15"))
    every = cron.due(schedule, after=at("2026-01-01 00:00"), now=at("2026-01-01 01:32:07"), misfire=Misfire("all", 9))
    assert every.fires == (at("2026-01-01 00:45"), at("2026-01-01 01:30"))


def test_an_interval_ends_with_the_calendar() -> None:
    schedule = Interval("every 3000 days", "UTC")
    assert schedule.after(at("9999-12-01")) is None
    assert Interval("every 2000 hours", "UTC").after(at("9999-12-30")) is None
    assert schedule.latest(at("0001-01-02")) is None


ZONES = [
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Europe/Dublin",
    "Antarctica/Troll", "America/Havana", "Asia/Beirut", "America/Santiago", "Africa/Cairo", "Pacific/Auckland",
]  # fmt: skip


WATCHED = timedelta(days=7)


@cache
def changes(zone: str) -> tuple[datetime, ...]:
    """Find the changes of the clocks in 2026 by looking at them each minute of the year."""
    hours = [at("2026-01-01") + timedelta(hours=n) for n in range(366 * 24)]
    offset = lambda instant: instant.astimezone(ZoneInfo(zone)).utcoffset()  # noqa: E731
    found = [later for earlier, later in pairwise(hours) if offset(earlier) != offset(later)]
    minutes = [next(h - n * MINUTE for n in range(60) if offset(h - (n + 1) * MINUTE) != offset(h)) for h in found]
    return tuple(minutes)


def watched(zone: str, begin: datetime, days: int, length: int, anchor: datetime) -> list[datetime]:
    """Watch a stopwatch, or for whole ``days`` the clock on the wall and a calendar, minute by minute.

    The stopwatch runs since the anchor; the watcher of the wall rings when the wall first shows the time of a day that
    is marked, or has gone past it.
    """
    tz = ZoneInfo(zone)
    rung: set[int] = set()
    found = []
    started = anchor.replace(tzinfo=tz).astimezone(UTC)
    for n in range(-2 * 24 * 60, WATCHED // MINUTE):
        instant = begin + n * MINUTE
        if days:
            wall = instant.astimezone(tz)
            day = wall.toordinal() - anchor.toordinal()
            if day % days or (wall.hour, wall.minute) < (anchor.hour, anchor.minute) or day in rung:
                continue
            rung.add(day)
        elif int((instant - started).total_seconds()) // 60 % length:
            continue
        if n >= 0:
            found.append(instant)
    return found


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    ("expression", "days", "length"),
    [("every 45 minutes", 0, 45), ("every 36 hours", 0, 36 * 60), ("every day", 1, 0), ("every 2 weeks", 14, 0)],
)
def test_it_agrees_with_a_watcher_over_both_changes_of_the_clocks(
    zone: str, expression: str, days: int, length: int
) -> None:
    """A26 A28: over a week around each change, by an anchor near the hour that is skipped or repeated."""
    assert len(changes(zone)) >= 2
    for change in changes(zone):
        wall = change.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        for minutes_before in (20, 0, -30):
            on_the_day = wall - minutes_before * MINUTE
            anchor = on_the_day - 28 * DAY
            begin = change - WATCHED / 2
            schedule = Interval(f"{expression} from {anchor:%Y-%m-%d %H:%M}", zone)
            found = list(takewhile((begin + WATCHED).__gt__, schedule.fires(begin - MINUTE)))
            assert found == watched(zone, begin, days, length, anchor), (change, anchor)


anchors = st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)).map(lambda wall: wall.replace(microsecond=0))


@given(
    st.integers(1, 400_000) | st.integers(1, 40).map(lambda days: days * 86_400),
    anchors,
    st.sampled_from([*ZONES, "Pacific/Apia", "Asia/Manila", "UTC"]),
    st.integers(1_104_537_600, 2_114_380_800).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
)
def test_backwards_and_forwards_agree(seconds: int, anchor: datetime, zone: str, instant: datetime) -> None:
    """None twice, none lost, in order; and every part of a second sees the same."""
    schedule = Interval(f"every {seconds} seconds from {anchor}", zone)
    fires = [instant, *schedule.next_fires(instant, 5)]
    assert fires == sorted(set(fires))
    for earlier, later in pairwise(fires[1:]):
        assert schedule.latest(earlier) == earlier
        assert schedule.latest(later - timedelta(microseconds=1)) == earlier
        assert schedule.after(later - timedelta(microseconds=1)) == later
