"""What an expression with any fields names, against somebody who looks at the wall each minute."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgjobs.values import calendar
from django_pgjobs.values.calendar import Calendar
from django_pgjobs.values.schedule import InvalidCron, Schedule, check_expression

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

Days = Callable[[date], bool]


class Field(NamedTuple):
    """A field as text, and whether it names a day or a number."""

    text: str
    names: Days


def number_of(day: date) -> int:
    return day.day


def weekday_of(day: date) -> int:
    return day.isoweekday() % 7


def last_of(day: date) -> int:
    return monthrange(day.year, day.month)[1]


def parts(of: Callable[[date], int], low: int, high: int, words: tuple[str, ...] = ()) -> st.SearchStrategy[Field]:
    """Return one number or name, a range, a range with a step, or a step."""

    def word(n: int, by_name: bool) -> str:
        return words[n - low] if by_name and words else str(n)

    ends = st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted).filter(lambda two: two[0] < two[1])
    steps = st.integers(1, high - low)
    single = st.builds(
        lambda n, by_name: Field(word(n, by_name), lambda day: of(day) == n), st.integers(low, high), st.booleans()
    )
    ranges = st.builds(
        lambda two, by_name, step: Field(
            f"{word(two[0], by_name)}-{word(two[1], by_name)}" + (f"/{step}" if step else ""),
            lambda day: of(day) in range(two[0], two[1] + 1, step or 1),
        ),
        ends, st.booleans(), st.integers(1, 5) | st.none(),
    )  # fmt: skip
    every = steps.map(lambda step: Field(f"*/{step}", lambda day: of(day) in range(low, high + 1, step)))
    return single | ranges | every


def listed(part: st.SearchStrategy[Field]) -> st.SearchStrategy[Field]:
    return st.lists(part, min_size=1, max_size=3).map(
        lambda some: Field(",".join(each.text for each in some), lambda day: any(each.names(day) for each in some))
    )


ANY_DAY = Field("*", lambda day: True)
LAST_DAY = Field("l", lambda day: day.day == last_of(day))
days = st.just(ANY_DAY) | listed(parts(number_of, 1, 31) | st.just(LAST_DAY))
months = st.just(ANY_DAY) | listed(parts(lambda day: day.month, 1, 12, MONTHS))
nth = st.builds(
    lambda weekday, n, by_name: Field(
        f"{WEEKDAYS[weekday] if by_name else weekday}#{n}",
        lambda day: weekday_of(day) == weekday and (day.day - 1) // 7 + 1 == n,
    ),
    st.integers(0, 6), st.integers(1, 5), st.booleans(),
)  # fmt: skip
last_weekdays = st.integers(0, 6).map(
    lambda weekday: Field(f"l{weekday}", lambda day: weekday_of(day) == weekday and day.day > last_of(day) - 7)
)
weekdays = st.just(ANY_DAY) | listed(parts(weekday_of, 0, 6, WEEKDAYS)) | nth | last_weekdays


def matches(day: date, of_month: Field, month: Field, of_week: Field) -> bool:
    """Whether an expression names a day: either day field, if it gives both."""
    given_days = [field for field in (of_month, of_week) if field is not ANY_DAY]
    return month.names(day) and (not given_days or any(field.names(day) for field in given_days))


@given(days, months, weekdays, st.dates(date(1990, 1, 1), date(2090, 1, 1)))
def test_the_days_of_an_expression_are_those_that_either_field_names(
    of_month: Field, month: Field, of_week: Field, begin: date
) -> None:
    """A28: ranges, steps, names, the last day, the second Friday; over 14 months."""
    text = f"30 7 {of_month.text} {month.text} {of_week.text}"
    expected = [d for n in range(430) if matches(d := begin + n * DAY, of_month, month, of_week)]
    read = Calendar(text)
    walls = [datetime(d.year, d.month, d.day, 7, 30) for d in expected]
    found, wall = [], datetime(begin.year, begin.month, begin.day)
    while (after := read.after(wall)) is not None and after < datetime(begin.year, begin.month, begin.day) + 430 * DAY:
        found.append(wall := after)
    assert found == walls, text
    for wall in walls:
        assert read.latest(wall) == read.latest(wall + timedelta(seconds=59)) == wall
    for earlier, later in pairwise(walls):
        assert read.latest(later - MINUTE) == earlier


CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 28, 20, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 24, 20, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 10, 31, 20, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 8, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2018, 11, 3, 20, tzinfo=UTC)),  # midnight is skipped
    ("Asia/Kathmandu", datetime(2026, 1, 31, 12, tzinfo=UTC)),
]


def walked(
    begin: datetime, minutes: int, zone: ZoneInfo, wants: Callable[[datetime], bool], each: bool
) -> list[datetime]:
    """Return when somebody rings who looks at the wall each minute.

    ``each``: in each hour that passes; else once for each local time, as soon as it has come or was skipped.
    """
    before = (begin - MINUTE).astimezone(zone).replace(tzinfo=None)
    rung = {before - n * MINUTE for n in range(300)}
    found = []
    for instant in (begin + n * MINUTE for n in range(minutes)):
        wall = instant.astimezone(zone).replace(tzinfo=None)
        passed = {before + n * MINUTE for n in range(1, int((wall - before) / MINUTE) + 1)} | {wall}
        if wants(wall) if each else any(map(wants, passed - rung)):
            found.append(instant)
        rung |= passed
        before = wall
    return found


@given(
    st.sampled_from(CHANGES),
    st.sets(st.integers(0, 59), min_size=1, max_size=3),
    st.sets(st.integers(0, 4), min_size=1, max_size=3) | st.none(),
    days,
    weekdays,
)
def test_it_fires_when_somebody_rings_who_looks_at_the_wall(
    change: tuple[str, datetime], minutes: set[int], hours: set[int] | None, of_month: Field, of_week: Field
) -> None:
    """A28 W48: two days around a change of the clocks, minute by minute, whichever days it names."""
    zone, begin = ZoneInfo(change[0]), change[1]

    def wants(wall: datetime) -> bool:
        timely = wall.minute in minutes and (hours is None or wall.hour in hours)
        return timely and matches(wall.date(), of_month, ANY_DAY, of_week)

    text = f"{joined(minutes)} {'*' if hours is None else joined(hours)} {of_month.text} * {of_week.text}"
    found = takewhile(lambda fire: fire < begin + 2 * DAY, Schedule(text, zone).fires(begin - timedelta(seconds=1)))
    assert list(found) == walked(begin, 2 * 24 * 60, zone, wants, each=hours is None), text


def joined(numbers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


@pytest.mark.parametrize(
    ("expression", "fires"),
    [
        ("0 0 1 * fri#2", ["2026-01-01", "2026-01-09", "2026-02-01"]),
        ("0 0 13 * l5", ["2026-01-13", "2026-01-30", "2026-02-13"]),
        ("0 0 l * mon", ["2026-01-05", "2026-01-12", "2026-01-19"]),
        ("0 0 15w * *", ["2026-01-15", "2026-02-16", "2026-03-16"]),
        ("0 0 1w * *", ["2026-01-01", "2026-02-02", "2026-03-02"]),
        ("0 0 31w * sun#1", ["2026-01-04", "2026-01-30", "2026-02-01"]),
        ("0 0 29 2 fri#5", ["2028-02-29", "2032-02-29", "2036-02-29"]),
        ("0 0 */2 * */1", ["2026-01-01", "2026-01-02", "2026-01-03"]),
        ("0 0 ? * sun", ["2026-01-04", "2026-01-11", "2026-01-18"]),
    ],
)
def test_whichever_day_it_names_by_whichever_sign(expression: str, fires: list[str]) -> None:
    begin = datetime(2025, 12, 31, 12, tzinfo=UTC)
    assert [f"{fire:%Y-%m-%d}" for fire in Schedule(expression, "UTC").next_fires(begin, 3)] == fires


@pytest.mark.parametrize(
    ("expression", "instead"),
    [("0 30 9 * * *", None), ("0 0 9 * * *", "0 9 * * * 0"), ("*/5 * * * * *", "* * * * * */5"), ("0 9 * * * *", None)],
)
def test_a_second_that_stands_first_is_refused_with_the_order_to_write(expression: str, instead: str | None) -> None:
    """It would fire 60 times in its minute; the first of these is refused for its hour."""
    with pytest.raises(InvalidCron) as refused:
        check_expression(expression)
    if instead is not None:
        assert f"of six fields the second is the last, not the first; write {instead!r}" in str(refused.value)
        assert check_expression(instead) == instead


def test_every_second_may_be_written() -> None:
    assert check_expression("* * * * * *") == "* * * * * *"


def test_an_expression_is_read_once_however_many_fires_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read one costs as much as a hundred fires."""
    reads: list[str] = []
    croniter = calendar.reader().croniter

    def counted(text: str, *args: object) -> object:
        reads.append(text)
        return croniter(text, *args)

    monkeypatch.setattr(calendar.reader(), "croniter", counted)
    schedule = Schedule("7 3 11 8 mon", "Europe/Paris")
    assert len(schedule.next_fires(datetime(2026, 1, 1, tzinfo=UTC), 200)) == 200
    assert schedule.latest(datetime(2026, 1, 1, tzinfo=UTC)) is not None
    Schedule("7 3 11 8 mon", "Asia/Tokyo")
    assert reads == ["7 3 11 8 mon"]
