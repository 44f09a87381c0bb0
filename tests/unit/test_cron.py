"""Cron arithmetic: expressions, zones, changes of the clocks, and what is due. No database."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgjobs.values import schedule as cron
from django_pgjobs.values.schedule import InvalidCron, Misfire, Schedule, check_misfire, check_overlap, stored_policies

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def local(expression: str, zone: str, start: str, count: int) -> list[str]:
    """Return the next fires as day, local time and offset."""
    schedule = Schedule(expression, zone)
    begin = datetime.fromisoformat(start).replace(tzinfo=schedule.zone)
    return [f"{fire.astimezone(schedule.zone):%d %H:%M %z}" for fire in schedule.next_fires(begin, count)]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# Expressions


@pytest.mark.parametrize(
    ("expression", "fires"),
    [
        ("*/20 * * * *", ["2026-01-01 00:20", "2026-01-01 00:40", "2026-01-01 01:00"]),
        ("5,35 8-9 * * *", ["2026-01-01 08:05", "2026-01-01 08:35", "2026-01-01 09:05"]),
        ("10-30/10 0 * * *", ["2026-01-01 00:10", "2026-01-01 00:20", "2026-01-01 00:30"]),
        ("0 0 * * 0", ["2026-01-04 00:00", "2026-01-11 00:00", "2026-01-18 00:00"]),
        ("0 0 * * 7", ["2026-01-04 00:00", "2026-01-11 00:00", "2026-01-18 00:00"]),
        ("0 0 13 * fri", ["2026-01-02 00:00", "2026-01-09 00:00", "2026-01-13 00:00"]),
        ("0 0 13 * *", ["2026-01-13 00:00", "2026-02-13 00:00", "2026-03-13 00:00"]),
        ("0 0 31 * *", ["2026-01-31 00:00", "2026-03-31 00:00", "2026-05-31 00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"]),
        ("0 0 30 2 mon", ["2026-02-02 00:00", "2026-02-09 00:00", "2026-02-16 00:00"]),
        ("0 0 1 JAN *", ["2027-01-01 00:00", "2028-01-01 00:00", "2029-01-01 00:00"]),
        ("0 0 l * *", ["2026-01-31 00:00", "2026-02-28 00:00", "2026-03-31 00:00"]),
        ("@daily", ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00"]),
        ("@Midnight", ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00"]),
        ("@hourly", ["2026-01-01 01:00", "2026-01-01 02:00", "2026-01-01 03:00"]),
        ("@weekly", ["2026-01-04 00:00", "2026-01-11 00:00", "2026-01-18 00:00"]),
        ("@monthly", ["2026-02-01 00:00", "2026-03-01 00:00", "2026-04-01 00:00"]),
        ("@annually", ["2027-01-01 00:00", "2028-01-01 00:00", "2029-01-01 00:00"]),
        ("@yearly", ["2027-01-01 00:00", "2028-01-01 00:00", "2029-01-01 00:00"]),
        ("0 0 * * * 30", ["2026-01-01 00:00:30", "2026-01-02 00:00:30", "2026-01-03 00:00:30"]),
        ("* * * * * *", ["2026-01-01 00:00:01", "2026-01-01 00:00:02", "2026-01-01 00:00:03"]),
    ],
)
def test_an_expression_fires(expression: str, fires: list[str]) -> None:
    """A28: five fields, lists, ranges, steps; day of month and of week either; Sunday is 0. The sixth is the second."""
    assert Schedule(expression, "UTC").next_fires(at("2026-01-01"), 3) == [at(fire) for fire in fires]


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "must be text"),
        (None, "must be text"),
        (["* * * * *"], "must be text"),
        ("* * * *", "must have 5 fields"),
        ("* * * * * * 2030", "must have 5 fields"),
        ("60 * * * *", "out of range"),
        ("0 24 * * *", "out of range"),
        ("0 0 32 * *", "out of range"),
        ("0 0 * 13 *", "out of range"),
        ("0 0 * * 8", "out of range"),
        ("0 0 0 * *", "out of range"),
        ("x * * * *", "not valid"),
        ("*/0 * * * *", "not valid"),
        ("*/90 * * * *", "steps further than its minute goes"),
        ("0 */48 * * *", "steps further than its hour goes"),
        ("H * * * *", "is random in its minute"),
        ("R(0-10) * * * *", "is random in its minute"),
        ("0 h/2 * * *", "is random in its hour"),
        ("0 0 31 4 *", "never fires: no such date"),
        ("0 0 31 4,6,9,11 *", "never fires: no such date"),
        ("0 0 30 2 *", "never fires: no such date"),
        ("@reboot", "must be one of @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually, or five fields"),
        ("@every 5m", "must be one of @hourly"),
        ("0\u00a00 * * * *" + " *" * 200, "at most 200 characters"),
    ],
)
def test_a_bad_expression_is_refused(expression: object, says: str) -> None:
    """A28: dates that do not exist too."""
    with pytest.raises(InvalidCron, match=says):
        cron.check_expression(expression)


def test_spaces_do_not_matter() -> None:
    assert cron.check_expression("  0\t0  * * *\n") == "0 0 * * *"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "Europe", None, 3, "/etc/localtime"])
def test_an_unknown_zone_is_refused(zone: object) -> None:
    with pytest.raises(InvalidCron, match="zone"):
        cron.check_zone(zone)


def test_a_zone_may_be_an_object() -> None:
    assert cron.check_zone(ZoneInfo("Asia/Tokyo")).key == "Asia/Tokyo"


# Policies


def test_policies_are_stored_and_read() -> None:
    for misfire in (Misfire("once"), Misfire("skip"), Misfire("all", 10)):
        assert stored_policies(str(misfire), "allow") == (misfire, "allow")
    assert str(Misfire("all", 10)) == "all(10)"
    for text in ("all", "all(0)", "all(1001)", "never", "all(x)", ""):
        with pytest.raises(InvalidCron, match="misfire"):
            stored_policies(text, "allow")


def test_policies_that_contradict_each_other_are_refused() -> None:
    """X6: whoever makes up for missed fires at once lets their jobs overlap."""
    for overlap in ("skip", "after_completion"):
        with pytest.raises(InvalidCron, match="contradict each other"):
            check_overlap(overlap, Misfire("all", 3))
    with pytest.raises(InvalidCron, match="goes with misfire='all' only"):
        check_misfire("once", 3)
    for limit in (None, 0, 1001, True, 2.5):
        with pytest.raises(InvalidCron, match="from 1 to 1000"):
            check_misfire("all", limit)
    with pytest.raises(InvalidCron, match="overlap must be one of"):
        check_overlap("queue", Misfire())


# Changes of the clocks


@pytest.mark.parametrize(
    ("expression", "zone", "start", "fires"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00 +0200", "30 02:30 +0200"]),
        ("15,45 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00 +0200", "30 02:15 +0200"]),
        ("0 3 * * *", "Europe/Berlin", "2026-03-28T12:00", ["29 03:00 +0200", "30 03:00 +0200"]),
        ("0 */2 * * *", "Europe/Berlin", "2026-03-29T00:00", ["29 03:00 +0200", "29 04:00 +0200"]),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00", ["08 03:00 -0400", "09 02:30 -0400"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["04 02:30 +1100", "05 02:15 +1100"]),
        ("0 9 30 12 *", "Pacific/Apia", "2011-12-01T00:00", ["31 00:00 +1400", "30 09:00 +1400"]),
    ],
)
def test_a_local_time_that_is_skipped_fires_once_just_after(
    expression: str, zone: str, start: str, fires: list[str]
) -> None:
    """W48: 02:30 does not exist in the night the clocks go forward; half an hour at Lord Howe, a whole day in Samoa."""
    assert local(expression, zone, start, 2) == fires


@pytest.mark.parametrize(
    ("expression", "zone", "start", "fires"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["25 02:30 +0200", "26 02:30 +0100"]),
        ("*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["25 02:00 +0200", "25 02:30 +0200", "26 02:00 +0100"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["01 01:30 -0400", "02 01:30 -0500"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["05 01:45 +1100", "06 01:45 +1030"]),
    ],
)
def test_a_local_time_that_is_repeated_fires_once(expression: str, zone: str, start: str, fires: list[str]) -> None:
    """W48: 02:30 comes twice in the night the clocks go back."""
    assert local(expression, zone, start, len(fires)) == fires


@pytest.mark.parametrize(
    ("zone", "start", "end", "shift"),
    [
        ("Europe/Berlin", "2026-03-29T00:00", "2026-03-29T06:00", -60),
        ("Europe/Berlin", "2026-10-25T00:00", "2026-10-25T06:00", 60),
        ("America/New_York", "2026-11-01T00:00", "2026-11-01T06:00", 60),
        ("Australia/Lord_Howe", "2026-04-05T00:00", "2026-04-05T06:00", 30),
        ("Australia/Lord_Howe", "2026-10-04T00:00", "2026-10-04T06:00", -30),
    ],
)
def test_what_fires_in_every_hour_goes_on_through_the_change(zone: str, start: str, end: str, shift: int) -> None:
    """W48: every ten minutes means every ten minutes that pass."""
    schedule = Schedule("*/10 * * * *", zone)
    begin, until = (datetime.fromisoformat(text).replace(tzinfo=schedule.zone).astimezone(UTC) for text in (start, end))
    fires = schedule.next_fires(begin, 36 + shift // 10)
    assert {later - earlier for earlier, later in pairwise(fires)} == {10 * MINUTE}
    assert fires[-1] == until


EXPRESSIONS = [
    "30 2 * * *", "*/7 * * * *", "15,45 1-3 * * *", "*/20 */2 * * 1", "5 4 31 * 3", "17 * * 3,4,10,11 *", "0 0 1 * *",
    "*/10 * l * *", "0 0 * * fri#2", "0 5 15w * *", "* 1,2 * * * */20", "0 0 30 1,3 *", "0 12 29 2 *", "45 1 * * sun",
]  # fmt: skip
ZONES = [
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia", "UTC",
    "Asia/Kolkata", "America/Sao_Paulo", "Europe/Dublin", "America/Caracas", "Asia/Pyongyang", "Antarctica/Troll",
]  # fmt: skip
instants = st.integers(1_104_537_600, 2_114_380_800).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
CHANGES = [
    "2026-03-29 01:00", "2026-10-25 01:00", "2026-04-04 15:00", "2026-10-03 15:30", "2011-12-30 10:00",
    "2026-03-08 07:00", "2026-11-01 06:00", "2017-10-15 03:00", "2018-02-18 02:00",
]  # fmt: skip
near_changes = st.builds(
    lambda change, seconds: at(change) + timedelta(seconds=seconds),
    st.sampled_from(CHANGES),
    st.integers(-10_000, 10_000),
)


def test_a_part_of_a_second_moves_no_change_of_the_clocks() -> None:
    """W48: in the repeated hour, looked at just before its second fire."""
    hourly = Schedule("0 * * * *", "America/New_York")
    assert hourly.latest(at("2026-11-01 07:00") - timedelta(microseconds=1)) == at("2026-11-01 06:00")
    assert hourly.after(at("2026-11-01 06:00") - timedelta(microseconds=1)) == at("2026-11-01 06:00")


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), instants | near_changes)
def test_backwards_and_forwards_agree(expression: str, zone: str, instant: datetime) -> None:
    """The latest fire, searched backwards, is the one before the next: none twice, none lost, in order."""
    schedule = Schedule(expression, zone)
    fires = [instant, *schedule.next_fires(instant, 6)]
    assert fires == sorted(set(fires))
    for earlier, later in pairwise(fires[1:]):
        assert schedule.latest(earlier) == earlier
        assert schedule.latest(earlier + timedelta(microseconds=1)) == earlier
        assert schedule.latest(later - timedelta(microseconds=1)) == earlier


def walk(begin: datetime, minutes: int, zone: ZoneInfo) -> Iterator[tuple[datetime, datetime]]:
    """Yield each minute that passes with its local time."""
    for n in range(minutes):
        instant = begin + n * MINUTE
        yield instant, instant.astimezone(zone).replace(tzinfo=None)


@given(
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    near_changes.map(lambda instant: instant.replace(second=0)),
    st.sets(st.integers(0, 59), min_size=1, max_size=4),
    st.sets(st.integers(0, 4), min_size=1, max_size=3) | st.none(),
)
def test_it_agrees_with_a_clock_that_is_watched(
    zone: str, begin: datetime, minutes: set[int], hours: set[int] | None
) -> None:
    """Against a man who looks at the wall each minute, and who knows what he has rung for and what he has missed."""
    tz = ZoneInfo(zone)
    rung: set[datetime] = set()
    expected: list[datetime] = []
    before = (begin - MINUTE).astimezone(tz).replace(tzinfo=None)
    rung = {before - n * MINUTE for n in range(300)}
    for instant, wall in walk(begin, 600, tz):
        if hours is None:
            wanted = wall.minute in minutes
        else:
            passed = {before + n * MINUTE for n in range(1, int((wall - before) / MINUTE) + 1)} | {wall}
            due = {w for w in passed if w.minute in minutes and w.hour in hours} - rung
            rung |= passed
            wanted = bool(due)
        before = wall
        if wanted:
            expected.append(instant)
    field = ",".join(map(str, sorted(minutes)))
    schedule = Schedule(f"{field} {'*' if hours is None else ','.join(map(str, sorted(hours)))} * * *", zone)
    found = list(takewhile(lambda fire: fire < begin + 600 * MINUTE, schedule.fires(begin - SECOND)))
    # The watcher may have come in the middle of a second pass, and then does not know what the first has rung for.
    if begin.astimezone(tz).fold == 0:
        assert found == expected


# What is due


def test_missed_fires_by_policy() -> None:
    """W42 X6: three missed fires: the latest, none, or the last of them in order."""
    schedule = Schedule("*/10 * * * *", "UTC")
    after, now = at("2026-01-01 10:00"), at("2026-01-01 10:35")
    missed = [at("2026-01-01 10:10"), at("2026-01-01 10:20"), at("2026-01-01 10:30")]
    upcoming = at("2026-01-01 10:40")
    due = lambda misfire: cron.due(schedule, after=after, now=now, misfire=misfire)  # noqa: E731
    assert due(Misfire("once")) == cron.DueFires((missed[-1],), None, upcoming)
    assert due(Misfire("skip")) == cron.DueFires((), missed[-1], upcoming)
    assert due(Misfire("all", 10)) == cron.DueFires(tuple(missed), None, upcoming)
    assert due(Misfire("all", 2)) == cron.DueFires(tuple(missed[1:]), None, upcoming)


def test_skipping_lets_a_little_delay_pass() -> None:
    """X6: a fire is missed a minute late, not a second."""
    schedule = Schedule("0 * * * *", "UTC")
    late = lambda seconds: cron.due(  # noqa: E731
        schedule, after=at("2026-01-01 09:00"), now=at("2026-01-01 10:00") + seconds * SECOND, misfire=Misfire("skip")
    )
    assert late(60).fires == (at("2026-01-01 10:00"),)
    assert late(61).fires == ()
    assert late(61).skipped == at("2026-01-01 10:00")


def test_nothing_is_due_twice_or_early() -> None:
    """W44 W45: the fire that was made last is not due, nor is the next."""
    schedule = Schedule("0 3 1 * *", "UTC")
    fire = at("2026-02-01 03:00")
    for now in (fire, fire + SECOND, at("2026-03-01 02:59")):
        assert cron.due(schedule, after=fire, now=now, misfire=Misfire()).fires == ()
    assert cron.due(schedule, after=at("2026-01-15"), now=at("2026-02-24"), misfire=Misfire()).fires == (fire,)


WITHOUT_SCHEDULE = """
import sys, django
__name__ = "shop.jobs"
from django.conf import settings
databases = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "none"}}
apps = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.admin", "django_pgjobs"]
settings.configure(INSTALLED_APPS=apps, DATABASES=databases, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
django.setup()
import django_pgjobs.admin, django_pgjobs.running.runtime, django_pgjobs.worker.executor.main

@django_pgjobs.job(name="plain")
def plain(): ...

print("croniter" in sys.modules)
django_pgjobs.Cron("@daily")
print("croniter" in sys.modules)
"""


def test_a_process_without_a_schedule_does_not_import_what_reads_one() -> None:
    """It would cost each executor and each web process 4 MiB."""
    answer = subprocess.run([sys.executable, "-c", WITHOUT_SCHEDULE], capture_output=True, text=True, check=False)
    assert answer.stdout.split() == ["False", "True"], answer.stderr


def test_an_entry_of_every_second_that_slept_a_year_costs_little() -> None:
    """W53: CPU time, best of five."""

    def spent() -> float:
        before = resource.getrusage(resource.RUSAGE_SELF)
        schedule = Schedule("* * * * * *", "Europe/Berlin")
        found = cron.due(schedule, after=at("2025-01-01"), now=at("2026-01-01 00:00:00.5"), misfire=Misfire())
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert found.fires == (at("2026-01-01"),)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(spent() for _ in range(5)) < 0.05
