"""Cron entries in the database: declared by workers, fired by the leader, each fire once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from django_pgjobs.maintenance import cron_firing
from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.maintenance.duties import DutyProgress, TimedDuty, duties
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import firing
from django_pgjobs.store.database import Database, statement
from django_pgjobs.store.firing import Fired, ListedCron
from django_pgjobs.values import schedule
from django_pgjobs.worker.threads.maintainer import do_duty
from tests.db.cron_ground import MINUTE, PLAIN, ago, declare, entry, fires, latest, put, tick
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, patience

pytestmark = pytest.mark.usefixtures("no_other_entries", "steady")
SECOND = timedelta(seconds=1)


# Firing


def test_a_fire_is_a_job_that_carries_its_entry_and_its_instant(
    raw: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """W42 W43 W51: the latest of the fires since it was created, with everything the schedule says of the job."""
    declare(raw, options={"description": "the nightly round"})
    put(raw, created_at=ago(raw, hours=1))
    with caplog.at_level(logging.INFO):
        tick(raw)
    made = Job.objects.get()
    assert (made.name, made.queue, made.priority, made.max_attempts, made.timeout_seconds) == (
        "test.clean", "night", 3, 4, 60.0,
    )  # fmt: skip
    assert (made.payload, made.description) == ({"args": [1], "kwargs": {}}, "the nightly round")
    assert (made.cron_entry, made.fire_at) == ("clean", latest(raw))
    row = entry()
    assert (row.last_fire_at, row.last_job_id) == (made.fire_at, made.pk)
    assert row.next_fire_at == latest(raw) + 10 * MINUTE
    assert f"cron entry fired cron=clean name=test.clean job={made.pk} fire={made.fire_at:%Y-%m-%dT%H}" in caplog.text


def test_nothing_fires_twice_nor_before_it_was_created(raw: RawDatabase) -> None:
    """W44 W45: a new entry waits for its next fire; one that was fired too; a restart changes nothing."""
    declare(raw)
    put(raw, created_at=latest(raw))
    tick(raw)
    assert Job.objects.count() == 0
    assert entry().next_fire_at == latest(raw) + 10 * MINUTE
    put(raw, created_at=ago(raw, hours=1), next_fire_at=None)
    for _ in range(3):
        tick(raw)
    declare(raw)
    put(raw, next_fire_at=None)
    tick(raw)
    assert Job.objects.count() == 1


def test_a_monthly_entry_that_was_never_fired_finds_its_fire(raw: RawDatabase) -> None:
    """W43: forty days after it was created."""
    declare(raw, expression="0 0 1 * *")
    put(raw, created_at=ago(raw, days=40))
    tick(raw)
    assert fires() == [latest(raw, "0 0 1 * *")]


def test_the_expression_is_meant_in_the_zone_of_the_row(raw: RawDatabase) -> None:
    """W48: a row's zone, not the leader's, nor the session's."""
    raw.query("SET TIME ZONE 'America/New_York'")
    declare(raw, expression="0 12 * * *", zone="Australia/Lord_Howe")
    put(raw, created_at=ago(raw, days=2))
    tick(raw)
    [fire] = fires()
    assert fire is not None
    assert fire == schedule.Schedule("0 12 * * *", "Australia/Lord_Howe").latest(ago(raw))


def test_an_interval_fires_in_the_phase_of_its_anchor(raw: RawDatabase) -> None:
    """A26: after an outage too, whatever instant was fired last."""
    declare(raw, expression="every 45 minutes", zone="Asia/Kolkata")
    put(raw, created_at=ago(raw, hours=20), last_fire_at=ago(raw, hours=10, seconds=7))
    tick(raw)
    interval = schedule.schedule_of("every 45 minutes", "Asia/Kolkata")
    assert fires() == [interval.latest(ago(raw))]
    assert entry().next_fire_at == interval.after(ago(raw))


@pytest.mark.parametrize(
    ("misfire", "which"), [("once", [30]), ("skip", []), ("all(10)", [10, 20, 30]), ("all(2)", [20, 30])]
)
def test_three_missed_fires_under_each_policy(
    raw: RawDatabase, misfire: str, which: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W42 X6: the leader was down for half an hour."""
    declare(raw, misfire=misfire)
    begin = latest(raw) - 30 * MINUTE
    put(raw, last_fire_at=begin, next_fire_at=begin + 10 * MINUTE)
    monkeypatch.setattr(schedule, "GRACE", timedelta(0))
    tick(raw)
    assert fires() == [begin + minutes * MINUTE for minutes in which]
    assert entry().last_fire_at == begin + 30 * MINUTE
    assert entry().next_fire_at == begin + 40 * MINUTE
    assert ("missed fire skipped" in caplog.text) == (misfire == "skip")
    tick(raw)
    assert len(fires()) == len(which)


@pytest.fixture
def slow(raw: RawDatabase, time: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let each fire take so long that two are a turn; what it returns lets ten seconds pass on the database's clock."""
    fire, listed, now = firing.fire_cron, firing.list_crons, [ago(raw, hours=1).replace(microsecond=0)]

    def dear(*args: Any, **kwargs: Any) -> list[Fired]:
        time(cron_firing.REST_SECONDS * 0.6)
        return fire(*args, **kwargs)

    def passes() -> None:
        now[0] += 10 * SECOND

    monkeypatch.setattr(firing, "fire_cron", dear)
    monkeypatch.setattr(cron_firing, "SLICE", 1)
    monkeypatch.setattr(firing, "LATE_SECONDS", 0.0)
    monkeypatch.setattr(
        firing,
        "list_crons",
        lambda db, **asked: [row._replace(now=now[0]) for row in listed(db, **asked)],
    )
    return passes


def missed(raw: RawDatabase, name: str, misfire: str) -> datetime:
    """Declare an entry of every second that has missed twenty fires an hour ago; return that instant."""
    declare(raw, name, expression="* * * * * *", misfire=misfire)
    until = firing.list_crons(raw, everything=True)[0].now
    put(raw, name, created_at=until - 20 * SECOND)
    return until


def test_many_missed_fires_are_made_in_turns_and_none_is_lost(raw: RawDatabase, slow: Callable[[], None]) -> None:
    """W42 W53 X6: rescue and the term share the thread; what comes due meanwhile takes none of those to make up for."""
    until = missed(raw, "clean", "all(5)")
    firer = Firer()
    for made in (2, 4):
        firer(raw)
        assert len(fires()) == made
        slow()
    assert entry().next_fire_at == until
    firer(raw)
    assert fires()[:5] == [until - seconds * SECOND for seconds in (4, 3, 2, 1, 0)]
    for _ in range(3):
        firer(raw)
    assert fires()[5:10] == [until + seconds * SECOND for seconds in (16, 17, 18, 19, 20)]


def test_entries_take_turns(raw: RawDatabase, slow: Callable[[], None]) -> None:
    """W50 W53: one that has a thousand fires to make up for keeps no other from its own."""
    missed(raw, "clean", "all(1000)")
    for name in ("x", "y", "z"):
        missed(raw, name, "once")
    firer = Firer()
    firer(raw)
    firer(raw)
    assert set(Job.objects.values_list("cron_entry", flat=True)) == {"clean", "x", "y", "z"}
    assert Job.objects.count() == 4
    firer(raw)
    assert Job.objects.filter(cron_entry="clean").count() == 3


def test_what_is_due_goes_before_ten_thousand_that_are_still_to_be_planned(raw: RawDatabase) -> None:
    """A new leader has seen none of them; planning them all may take it a minute."""
    for number in range(20):
        declare(raw, f"a{number:02}")
    declare(raw, "late")
    declare(raw, "later")
    put(raw, "late", created_at=ago(raw, hours=1), next_fire_at=ago(raw, minutes=20))
    put(raw, "later", created_at=ago(raw, hours=1), next_fire_at=ago(raw, minutes=10))
    answers = iter([True, True, False])
    Firer(lambda: next(answers))(raw)
    assert set(Job.objects.values_list("cron_entry", flat=True)) == {"late", "later"}
    firer = Firer()
    firer(raw)
    assert not CronEntry.objects.filter(next_fire_at=None).exists()


def test_a_leader_no_more_makes_no_more_fires(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """W10 W46: it is asked before each slice."""
    monkeypatch.setattr(cron_firing, "SLICE", 1)
    missed(raw, "clean", "all(5)")
    answers = iter([True, True, False])
    Firer(lambda: next(answers))(raw)
    assert Job.objects.count() == 2


@pytest.mark.parametrize("change", ["paused", "other expression", "long ago"])
def test_fires_that_were_begun_are_counted_again_when_the_entry_changed(
    raw: RawDatabase, slow: Callable[[], None], change: str
) -> None:
    """W42: a pause forgives what was missed; to be late with them again changes nothing."""
    until = missed(raw, "clean", "all(5)")
    firer = Firer()
    firer(raw)
    if change == "paused":
        entry().pause()
        entry().resume()
        put(raw, in_force_since=until)
    elif change == "other expression":
        put(raw, expression="0 0 1 1 * 0")
    else:
        for _ in range(7):
            slow()
    firer(raw)
    expected = [until - seconds * SECOND for seconds in (2, 1)] if change == "long ago" else []
    assert fires()[2:] == expected


def test_ten_evaluators_at_once_make_one_job(
    raw: RawDatabase, db_connection: Callable[..., RawDatabase], background: Background
) -> None:
    """W46: each on a connection of its own, all having read the same row."""
    declare(raw, misfire="all(5)")
    put(raw, created_at=latest(raw) - 15 * MINUTE)
    read = firing.list_crons(raw, everything=False)[0]
    made = [background(firing.fire_cron, db_connection(), read, [latest(raw)], None, notify=True) for _ in range(10)]
    fired = [result for one in made if (result := one.result(patience(10)))]
    assert len(fired) == 1
    assert Job.objects.count() == 1
    firers = [background(Firer(), db_connection()) for _ in range(10)]
    for one in firers:
        one.result(patience(10))
    assert Job.objects.count() == len({*fires()})


def test_a_look_that_fails_is_logged_by_its_duty_and_repeated(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """W41 W54: the others have their turn all the same; the next look makes the fire."""
    declare(raw)
    put(raw, created_at=ago(raw, hours=1))
    leader = Leader(AUTHOR)
    known = {duty.name: duty for duty in duties(DutyProgress(leader, {}), lambda rescued: None)}
    assert {"cron_sync", "cron_eval", "cron_missing", "rescue", "audit", "lead"} <= known.keys()
    leader.tick(raw)
    whole, failures = firing.list_crons, [psycopg.OperationalError("the statement took too long")]

    def failing(db: Database, **asked: Any) -> list[ListedCron]:
        if failures:
            raise failures.pop()
        return whole(db, **asked)

    monkeypatch.setattr(firing, "list_crons", failing)
    evaluation = cast(TimedDuty, known["cron_eval"])
    connection = cast(Any, SimpleNamespace(fetch=raw.fetch, gone=False))
    for _ in range(2):
        evaluation.due = 0.0
        do_duty(evaluation.name, evaluation.tick, connection)
    assert "duty failed, tried again at its next turn duty=cron_eval: the statement took too long" in caplog.text
    assert Job.objects.count() == 1


def test_a_fire_that_another_has_claimed_is_no_error(
    raw: RawDatabase, other: RawDatabase, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W47: a line for debugging, nothing more."""
    declare(raw)
    put(raw, created_at=ago(raw, hours=1))
    read = firing.list_crons(raw, everything=False)
    tick(other)
    other.commit()
    monkeypatch.setattr(firing, "list_crons", lambda db, **asked: read)
    with caplog.at_level(logging.DEBUG, logger="django_pgjobs"):
        tick(raw)
    assert Job.objects.count() == 1
    assert [r.levelname for r in caplog.records if "already claimed" in r.message] == ["DEBUG"]


@pytest.mark.parametrize("column", ["last_fire_at", "last_job_id", "expression", "zone"])
def test_each_part_of_the_comparison_is_needed(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    """W46, the sabotaged twins: without it, outdated values make a fire."""
    declare(raw)
    put(raw, created_at=ago(raw, hours=1))
    read = firing.list_crons(raw, everything=False)[0]
    changed: dict[str, Any] = {
        "last_fire_at": latest(raw),
        "last_job_id": 7,
        "expression": "0 0 1 1 *",
        "zone": "Asia/Tokyo",
    }
    put(raw, **{column: changed[column]})
    fire = lambda: firing.fire_cron(raw, read, [latest(raw)], None, notify=False)  # noqa: E731
    assert fire() == []
    whole = statement("fire_cron")
    lines = [line for line in whole.splitlines() if f"%({column})s" not in line]
    assert len(lines) == len(whole.splitlines()) - 1
    monkeypatch.setattr("django_pgjobs.sql.statement", lambda name: "\n".join(lines))
    assert fire() != []


def test_nothing_fires_before_its_time_whatever_the_leader_thinks(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W52: a leader whose clock is an hour ahead fires nothing; the statement reads the database's clock."""
    declare(raw)
    read = firing.list_crons(raw, everything=False)[0]
    ahead = read._replace(now=read.now + timedelta(hours=1))
    monkeypatch.setattr(firing, "list_crons", lambda db, **asked: [ahead])
    tick(raw)
    assert Job.objects.count() == 0
    assert entry().last_fire_at is None


@pytest.mark.parametrize(("limit_key", "payload", "hold"), [(None, "3:night", None), ("7", "limited:night", "limited")])
def test_a_fire_asks_for_a_worker_or_to_be_let_in(
    raw: RawDatabase, other: RawDatabase, limit_key: str | None, payload: str, hold: str | None
) -> None:
    """A job of an entry that a limit holds for waits to be let in as any other."""
    other.query("LISTEN pgjobs")
    other.commit()
    declare(raw, options={"limit_key": limit_key})
    put(raw, created_at=ago(raw, hours=1))
    tick(raw)
    told = next(other.raw.notifies(timeout=patience(5), stop_after=1))
    assert (told.payload, Job.objects.get().hold, Job.objects.get().limit_key) == (payload, hold, limit_key)


# What keeps an entry from firing


@pytest.mark.parametrize(
    ("columns", "fired"),
    [
        ({"paused_at": "2020-01-01"}, 0),
        ({"paused_at": "2020-01-01", "paused_until": "2100-01-01"}, 0),
        ({"missing_since": "2020-01-01"}, 0),
        ({"broken": "somebody said so", "expression": "61 * * * *"}, 0),
        ({}, 1),
    ],
)
def test_a_paused_missing_or_broken_entry_does_not_fire(raw: RawDatabase, columns: dict[str, str], fired: int) -> None:
    """The statement looks itself: one that was paused since it was read does not fire either."""
    declare(raw)
    put(raw, created_at=ago(raw, hours=1))
    [read] = firing.list_crons(raw, everything=False)
    if columns:
        put(raw, **columns)
    made = firing.fire_cron(raw, read, [latest(raw)], None, notify=False)
    tick(raw)
    assert (made != [], Job.objects.count()) == (bool(fired), fired)


def test_what_fell_into_a_pause_is_not_made_up_for(raw: RawDatabase) -> None:
    """A pause that has run out: the next fire is the next."""
    declare(raw)
    over = ago(raw, seconds=1)
    put(raw, created_at=ago(raw, hours=5), paused_at=ago(raw, hours=4), paused_until=over)
    tick(raw)
    assert Job.objects.count() == (1 if over < latest(raw) else 0)
    assert entry().next_fire_at == latest(raw) + 10 * MINUTE


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"expression": "61 * * * *"}, "is not valid"),
        ({"declared_expression": "0 0 31 4 *"}, "never fires"),
        ({"zone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"misfire": "now and then"}, "misfire must be one of"),
        ({"overlap": "perhaps"}, "overlap must be one of"),
        ({"declared_options": '{"queue": null}'}, "its job cannot be inserted"),
        ({"declared_options": '{"queue": "a", "priority": "high"}'}, "its job cannot be inserted"),
    ],
)
def test_a_row_that_was_edited_badly_is_marked_and_the_others_fire(
    raw: RawDatabase, columns: dict[str, str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """W49 W50: an error with its name, and why."""
    firer = Firer()
    for name in ("a", "clean", "z"):
        declare(raw, name)
        put(raw, name, created_at=ago(raw, hours=1))
    put(raw, **columns)
    firer(raw)
    assert set(Job.objects.values_list("cron_entry", flat=True)) == {"a", "z"}
    assert reason in entry().broken
    [told] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "cron entry is broken" in told.getMessage()
    assert "cron=clean" in told.getMessage()
    firer(raw)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1, "once, not each second"


def test_a_broken_entry_is_whole_again_when_it_is_mended(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """W49: by hand too; every few seconds the leader reads entries that are not due."""
    firer = Firer()
    declare(raw)
    put(raw, created_at=ago(raw, hours=1), expression="61 * * * *")
    firer(raw)
    assert entry().broken
    put(raw, expression=None)
    firer(raw)
    assert entry().broken, "not due, so not looked at yet"
    time(cron_firing.EVERYTHING_SECONDS)
    firer(raw)
    firer(raw)
    assert (entry().broken, Job.objects.count()) == ("", 1)


def test_a_change_by_hand_is_seen_although_the_next_fire_is_far(
    raw: RawDatabase, time: Callable[[float], None]
) -> None:
    firer = Firer()
    declare(raw, expression="0 0 1 1 *")
    firer(raw)
    put(raw, expression="0 0 31 6 *")
    time(cron_firing.EVERYTHING_SECONDS)
    firer(raw)
    assert "never fires" in entry().broken


def test_an_entry_whose_job_cannot_be_inserted_is_tried_again(raw: RawDatabase, time: Callable[[float], None]) -> None:
    firer = Firer()
    declare(raw)
    put(raw, created_at=ago(raw, hours=1), declared_options='{"queue": null}')
    firer(raw)
    put(raw, declared_options=json.dumps(PLAIN))
    time(cron_firing.EVERYTHING_SECONDS)
    firer(raw)
    assert Job.objects.count() == 0
    time(cron_firing.BROKEN_SECONDS)
    firer(raw)
    assert (entry().broken, Job.objects.count()) == ("", 1)


@pytest.mark.parametrize("misfire", ["once", "skip"])
def test_an_entry_whose_job_cannot_be_inserted_stays_broken_until_it_can(
    raw: RawDatabase, time: Callable[[float], None], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, misfire: str,
) -> None:  # fmt: skip
    """W49: it is told once, and by no look that it is whole."""
    caplog.set_level(logging.INFO)
    firer = Firer()
    declare(raw, misfire=misfire)
    put(raw, created_at=latest(raw) - SECOND, declared_options='{"queue": null}')
    monkeypatch.setattr(schedule, "GRACE", timedelta(hours=1))
    firer(raw)
    monkeypatch.setattr(schedule, "GRACE", timedelta(0))
    for _ in range(3):
        time(cron_firing.BROKEN_SECONDS)
        firer(raw)
        assert "cannot be inserted" in entry().broken
    monkeypatch.setattr(schedule, "GRACE", timedelta(hours=1))
    put(raw, last_fire_at=latest(raw) - SECOND, next_fire_at=latest(raw))
    for _ in range(3):
        time(cron_firing.BROKEN_SECONDS)
        firer(raw)
    assert "cannot be inserted" in entry().broken
    assert (caplog.text.count("cron entry is broken"), "cron entry is mended" in caplog.text) == (1, False)
    put(raw, declared_options=json.dumps(PLAIN))
    time(cron_firing.BROKEN_SECONDS)
    firer(raw)
    assert (entry().broken, Job.objects.count(), "cron entry is mended" in caplog.text) == ("", 1, True)


def test_what_is_declared_anew_is_looked_at_anew(raw: RawDatabase) -> None:
    declare(raw, options={"queue": None})
    put(raw, created_at=ago(raw, hours=1))
    tick(raw)
    declare(raw, options={"queue": None})
    assert "cannot be inserted" in entry().broken
    declare(raw)
    assert entry().broken == ""
    tick(raw)
    assert Job.objects.count() == 1


def test_why_an_entry_is_broken_tells_nothing_of_its_arguments(
    raw: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Everybody who may look at entries sees it, and the log has it."""
    declare(raw, payload='{"args": ["hunter2"]}')
    put(raw, created_at=ago(raw, hours=1), declared_options='{"queue": null}')
    tick(raw)
    assert "its job cannot be inserted: null value in column" in entry().broken
    assert ("hunter2" in entry().broken, "hunter2" in caplog.text) == (False, False)


def test_a_row_that_somebody_holds_is_not_waited_for(raw: RawDatabase, other: RawDatabase) -> None:
    """Rescue shares this thread, which must not wait for an operator's transaction."""
    declare(raw)
    put(raw, created_at=ago(raw, hours=1))
    other.query("BEGIN")
    other.query("SELECT name FROM pgjobs_cron_entry FOR UPDATE")
    raw.query("SET lock_timeout = '100ms'")
    tick(raw)
    firing.refresh_crons(raw, ["clean"], fresh_seconds=0)
    assert Job.objects.count() == 0
    other.rollback()
    tick(raw)
    assert Job.objects.count() == 1
