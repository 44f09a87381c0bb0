"""Schedules that are late, by the hundred: what is due goes first, the rest in slices, each fire computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from django_pgjobs.maintenance import cron_firing
from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.models import Job
from django_pgjobs.store import firing
from django_pgjobs.store.firing import Fired
from django_pgjobs.values import calendar
from django_pgjobs.values import schedule as cron
from tests.db.cron_ground import MINUTE, ago, declare, entry, fires, latest, put, statements
from tests.plugins.fix_db import RawDatabase
from tests.plugins.sabotage import lines_of, sabotage

pytestmark = pytest.mark.usefixtures("no_other_entries", "raw")


def missed(raw: RawDatabase, name: str, count: int, misfire: str = "all(1000)", **changes: Any) -> datetime:
    """Declare an entry of every minute that has missed so many fires, also of yesterday; return the last of them."""
    declare(raw, name, expression="* * * * *", misfire=misfire, **changes)
    last = latest(raw, "* * * * *")
    put(raw, name, last_fire_at=last - count * MINUTE, next_fire_at=last - (count - 1) * MINUTE)
    return last


def by_entry() -> Counter[str]:
    return Counter(str(name) for name in Job.objects.exclude(cron_entry=None).values_list("cron_entry", flat=True))


@pytest.fixture
def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn has time for what is due and for one entry that is late."""
    monkeypatch.setattr(cron_firing, "REST_SECONDS", 0.0)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The evaluations of entries."""
    found: list[object] = []
    due = cron.due

    def counted(*args: Any, **kwargs: Any) -> cron.DueFires:
        found.append(args)
        return due(*args, **kwargs)

    monkeypatch.setattr(cron, "due", counted)
    return found


def test_missed_fires_are_made_in_order_a_slice_for_each_statement(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W42 W53: 250 of them by three statements, none lost and none twice."""
    monkeypatch.setattr(cron_firing, "SLICE", 100)
    last = missed(raw, "clean", 250)
    with statements(raw) as asked:
        Firer()(raw)
    assert asked.count("fire_cron") == 3
    assert fires() == [last - minutes * MINUTE for minutes in range(249, -1, -1)]
    made = entry()
    assert (made.last_fire_at, made.last_job_id) == (last, Job.objects.latest("pk").pk)
    assert (made.fires_made, made.next_fire_at) == (250, last + MINUTE)


@pytest.mark.usefixtures("one_step")
def test_what_was_evaluated_is_kept_until_it_is_made(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, evaluated: list[object]
) -> None:
    """Each entry is evaluated once, however many turns and hours it takes, and whatever comes due meanwhile."""
    names = [f"late:{n}" for n in range(4)]
    now = [missed(raw, name, 350) for name in names][-1] + timedelta(seconds=1)
    listed = firing.list_crons
    monkeypatch.setattr(cron_firing, "SLICE", 100)
    monkeypatch.setattr(
        firing, "list_crons", lambda db, **asked: [row._replace(now=now) for row in listed(db, **asked)]
    )
    firer = Firer()
    for turn in range(4 * 4):
        firer(raw)
        assert len(evaluated) == min(turn + 1, 4)
        if turn == 4:
            now += timedelta(hours=1)
    assert by_entry() == dict.fromkeys(names, 350)


@pytest.mark.usefixtures("one_step")
def test_what_is_due_goes_first_whatever_is_late(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """W50: more are late than the leader reads at a time; an entry of every second is fired in each turn."""
    listed = firing.list_crons
    monkeypatch.setattr(firing, "list_crons", lambda db, **asked: listed(db, **asked, most=3))
    for n in range(9):
        missed(raw, f"late:{n}", 1000)
    declare(raw, "tick", expression="every 1 second")
    firer = Firer()
    firer.everything_at = 1e12
    for turn in range(1, 6):
        put(raw, "tick", next_fire_at=ago(raw, seconds=1), last_fire_at=ago(raw, seconds=2))
        before = Job.objects.count()
        firer(raw)
        assert by_entry()["tick"] == turn
        assert Job.objects.count() == before + 1 + cron_firing.SLICE


@pytest.mark.usefixtures("one_step")
def test_of_what_is_late_those_that_make_one_fire_go_first(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a weekend an entry of every second is as late as the others, and back in time by the first turns."""
    listed = firing.list_crons
    monkeypatch.setattr(firing, "list_crons", lambda db, **asked: listed(db, **asked, most=3))
    for n in range(9):
        missed(raw, f"late:{n}", 1000)
    missed(raw, "tick", 900, "once")
    firer = Firer()
    firer.everything_at = 1e12
    firer(raw)
    assert by_entry() == {"tick": 1}
    firer(raw)
    assert sorted(by_entry().values()) == [1, cron_firing.SLICE]


@pytest.mark.usefixtures("one_step")
def test_those_that_are_late_share_what_is_left(raw: RawDatabase) -> None:
    for n in range(3):
        missed(raw, f"late:{n}", 1000)
    firer = Firer()
    for _ in range(6):
        firer(raw)
    assert sorted(by_entry().values()) == [2 * cron_firing.SLICE] * 3


def fire(raw: RawDatabase, times: list[datetime], upcoming: datetime | None = None) -> list[Fired]:
    [read] = firing.list_crons(raw, everything=True)
    return firing.fire_cron(raw, read, times, upcoming, notify=False)


def test_a_slice_ends_with_the_fires_that_an_entry_may_make(raw: RawDatabase) -> None:
    last = missed(raw, "clean", 5)
    put(raw, max_fires=10, fires_made=7)
    times = [last - minutes * MINUTE for minutes in (4, 3, 2, 1, 0)]
    assert [fired.fire_at for fired in fire(raw, times)] == times[:3]
    assert (entry().fires_made, entry().last_fire_at, Job.objects.count()) == (10, times[2], 3)


def test_a_slice_makes_no_fire_early(raw: RawDatabase) -> None:
    """W44: whatever the clock of the leader says; what it leaves is the next fire."""
    last = missed(raw, "clean", 2)
    times = [last - MINUTE, last, last + 60 * MINUTE, last + 61 * MINUTE]
    assert [fired.fire_at for fired in fire(raw, times)] == times[:2]
    assert (entry().last_fire_at, entry().next_fire_at) == (last, times[2])


@pytest.mark.parametrize(("name", "line"), lines_of("WHERE given.fire_at <= statement_timestamp()", ["fire_cron"]))
def test_without_that_line_it_does(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str) -> None:
    """The sabotaged twin of the test above."""
    last = missed(raw, "clean", 2)
    sabotage(monkeypatch, name, line, "WHERE true")
    assert len(fire(raw, [last, last + 60 * MINUTE])) == 2


def test_jobs_with_a_key_are_one_while_it_is_unfinished(raw: RawDatabase) -> None:
    """Of a slice, too: the fires are marked, the first one has the job."""
    last = missed(raw, "clean", 3, options={"key": "k", "key_scope": "until_finished"})
    times = [last - 2 * MINUTE, last - MINUTE, last]
    made = fire(raw, times, last + MINUTE)
    assert [(fired.fire_at, fired.job_id is None) for fired in made] == list(
        zip(times, (False, True, True), strict=True)
    )
    assert (Job.objects.count(), entry().last_job_id, entry().fires_made) == (1, made[0].job_id, 3)


@pytest.mark.parametrize("overlap", ["skip", "after_completion"])
def test_what_must_not_overlap_is_one_fire(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, overlap: str) -> None:
    """No code declares such an entry with all its missed fires; a hand may write the row."""
    last = missed(raw, "clean", 3, "once", overlap=overlap)
    assert len(fire(raw, [last - MINUTE, last])) == 1
    put(raw, last_job_id=None, last_fire_at=last - 3 * MINUTE)
    raw.query("DELETE FROM pgjobs_job")
    [(name, line)] = lines_of("given.n = 1", ["fire_cron"])
    sabotage(monkeypatch, name, line)
    assert len(fire(raw, [last - MINUTE, last])) == 2, "the sabotaged twin"


def test_a_fire_that_a_lock_holds_up_is_not_computed_again(
    raw: RawDatabase, other: RawDatabase, evaluated: list[object], time: Callable[[float], None]
) -> None:
    missed(raw, "clean", 20, options={"key": "k", "key_scope": "until_finished"})
    other.query("INSERT INTO pgjobs_job (name, payload, queue, key, unique_key) VALUES ('x', '{}', 'night', 'k', 'k')")
    firer = Firer()
    firer(raw)
    assert entry().fires_made == 0
    other.rollback()
    time(cron_firing.LOCKED_SECONDS + 1)
    firer(raw)
    assert (entry().fires_made, len(evaluated)) == (20, 1)


def test_an_entry_of_every_second_of_a_year_is_evaluated_without_reading_it_again(raw: RawDatabase) -> None:
    """W53: whatever the number of its fires."""
    declare(raw, expression="* * * * * *", misfire="all(1000)")
    put(raw, created_at=ago(raw, days=365), next_fire_at=ago(raw, days=364))
    cron.schedule_of.cache_clear()
    cron._calendar_of.cache_clear()
    reads: list[str] = []
    croniter = calendar.reader().croniter

    def counted(text: str, *args: object) -> Any:
        reads.append(text)
        return croniter(text, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calendar.reader(), "croniter", counted)
        firer = Firer()
        while Job.objects.count() < 1000:
            firer(raw)
    assert reads == ["* * * * * *"]
    assert fires()[999] - fires()[0] == timedelta(seconds=999)  # type: ignore[operator]
