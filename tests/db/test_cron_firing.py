"""Cron entries in the database: declared by workers, fired by the leader, each fire once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from django.db import connections
from django.test import override_settings

from django_pgjobs import Cron, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.maintenance import cron_firing
from django_pgjobs.maintenance.cron_firing import CronSync, Firer, MarkMissing, declared_for
from django_pgjobs.maintenance.duties import TimedDuty, duties
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import statements as store
from django_pgjobs.values import schedule
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.threads.maintainer import Maintainer
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, claim, patience

OTHER = store.Author(UUID(int=9), "other")
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)

PLAIN = {
    "queue": "night", "priority": 3, "max_attempts": 4, "timeout_seconds": 60.0, "description": "", "key": None,
    "key_scope": "", "idempotency_key": None, "limit_key": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with registry.isolated():
        yield


def clean() -> None: ...


def report(kind: str) -> None: ...


def declare(db: store.Database, name: str = "clean", **changes: Any) -> None:
    """Bring an entry into its row as code would; ``options`` are changes to ``PLAIN``."""
    options = json.dumps({**PLAIN, **changes.pop("options", {})})
    facts = {
        "name": name, "job_name": "test.clean", "expression": "*/10 * * * *", "zone": "UTC",
        "payload": '{"args": [1], "kwargs": {}}', "options": options, "misfire": "once", "overlap": "allow", **changes,
    }  # fmt: skip
    store.declare_cron(db, store.DeclaredCron(**facts), overwrite=True, fresh_seconds=0)


def entry(name: str = "clean") -> CronEntry:
    return CronEntry.objects.get(pk=name)


def put(raw: RawDatabase, name: str = "clean", **columns: Any) -> None:
    """Put values into columns of an entry: how a test moves time, and how a hand edits a row."""
    sets = ", ".join(f"{column} = %s" for column in columns)
    raw.query(f"UPDATE pgjobs_cron_entry SET {sets} WHERE name = %s", [*columns.values(), name])


def ago(raw: RawDatabase, **span: float) -> datetime:
    """Return an instant so long ago by the database's clock."""
    now: datetime = raw.value("SELECT statement_timestamp()")
    return now - timedelta(**span)


def latest(raw: RawDatabase, expression: str = "*/10 * * * *") -> datetime:
    """Return the last fire until now."""
    found = schedule.Schedule(expression, "UTC").latest(ago(raw))
    assert found is not None
    return found


def end(raw: RawDatabase, *, seconds_ago: float = 0.0) -> None:
    """Let every job have ended so long ago."""
    raw.query(
        "UPDATE pgjobs_job SET outcome = 'succeeded', finished_at = statement_timestamp() - make_interval(secs => %s) "
        "WHERE finished_at IS NULL",
        [seconds_ago],
    )


def tick(db: store.Database) -> None:
    """Look as a new leader does."""
    Firer()(db)


def fires() -> list[datetime | None]:
    return list(Job.objects.order_by("pk").values_list("fire_at", flat=True))


@pytest.fixture(autouse=True)
def steady(raw: RawDatabase) -> None:
    """Begin no test just before ten minutes are over: it looks at the clock twice."""
    now = ago(raw)
    if now.minute % 10 == 9 and now.second >= 50:
        raw.query("SELECT pg_sleep(%s)", [61 - now.second])


@contextmanager
def statements(raw: RawDatabase) -> Iterator[list[str]]:
    """Note the names of what is asked."""
    asked: list[str] = []
    fetch = raw.fetch

    def noted(name: str, params: store.Params) -> store.Rows:
        asked.append(name)
        return fetch(name, params)

    raw.fetch = noted  # type: ignore[method-assign]
    yield asked
    raw.fetch = fetch  # type: ignore[method-assign]


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
    fire, listed, now = store.fire_cron, store.list_crons, [ago(raw, hours=1).replace(microsecond=0)]

    def dear(*args: Any, **kwargs: Any) -> store.Fired | None:
        time(cron_firing.TURN_SECONDS * 0.6)
        return fire(*args, **kwargs)

    def passes() -> None:
        now[0] += 10 * SECOND

    monkeypatch.setattr(store, "fire_cron", dear)
    monkeypatch.setattr(
        store,
        "list_crons",
        lambda db, *, everything: [row._replace(now=now[0]) for row in listed(db, everything=everything)],
    )
    return passes


def missed(raw: RawDatabase, name: str, misfire: str) -> datetime:
    """Declare an entry of every second that has missed twenty fires an hour ago; return that instant."""
    declare(raw, name, expression="* * * * * *", misfire=misfire)
    until = store.list_crons(raw, everything=True)[0].now
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


def test_a_leader_no_more_makes_no_more_fires(raw: RawDatabase) -> None:
    """W10 W46: it is asked before each."""
    missed(raw, "clean", "all(5)")
    answers = iter([True, True, False])
    Firer(lambda: next(answers))(raw)
    assert Job.objects.count() == 2


@pytest.mark.parametrize("change", ["paused", "other expression", "long ago"])
def test_fires_that_were_begun_are_counted_again_when_the_entry_changed(
    raw: RawDatabase, slow: Callable[[], None], change: str
) -> None:
    """W42: a pause forgives what was missed; after an outage only the last so many are made."""
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
    expected = [until + seconds * SECOND for seconds in (66, 67)] if change == "long ago" else []
    assert fires()[2:] == expected


def test_ten_evaluators_at_once_make_one_job(
    raw: RawDatabase, db_connection: Callable[..., RawDatabase], background: Background
) -> None:
    """W46: each on a connection of its own, all having read the same row."""
    declare(raw, misfire="all(5)")
    put(raw, created_at=latest(raw) - 15 * MINUTE)
    read = store.list_crons(raw, everything=False)[0]
    made = [background(store.fire_cron, db_connection(), read, latest(raw), None, notify=True) for _ in range(10)]
    fired = [result for one in made if (result := one.result(patience(10))) is not None]
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
    known = {duty.name: duty for duty in duties(leader, lambda rescued: None, {})}
    assert {"cron_sync", "cron_eval", "cron_missing", "rescue", "audit", "lead"} <= known.keys()
    leader.tick(raw)
    whole, failures = store.list_crons, [psycopg.OperationalError("the statement took too long")]

    def failing(db: store.Database, *, everything: bool) -> list[store.ListedCron]:
        if failures:
            raise failures.pop()
        return whole(db, everything=everything)

    monkeypatch.setattr(store, "list_crons", failing)
    maintainer = Maintainer(cast(Any, None), cast(Any, None), [])
    evaluation = cast(TimedDuty, known["cron_eval"])
    connection = cast(Any, SimpleNamespace(fetch=raw.fetch, gone=False))
    for _ in range(2):
        evaluation.due = 0.0
        maintainer._do(evaluation.name, evaluation.tick, connection)
    assert "duty failed, tried again at its next turn duty=cron_eval: the statement took too long" in caplog.text
    assert Job.objects.count() == 1


def test_a_fire_that_another_has_claimed_is_no_error(
    raw: RawDatabase, other: RawDatabase, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W47: a line for debugging, nothing more."""
    declare(raw)
    put(raw, created_at=ago(raw, hours=1))
    read = store.list_crons(raw, everything=False)
    tick(other)
    other.commit()
    monkeypatch.setattr(store, "list_crons", lambda db, *, everything: read)
    with caplog.at_level(logging.DEBUG, logger="django_pgjobs"):
        tick(raw)
    assert Job.objects.count() == 1
    assert [r.levelname for r in caplog.records if "already claimed" in r.message] == ["DEBUG"]


@pytest.mark.parametrize("column", ["last_fire_at", "last_job_id", "expression", "zone"])
def test_each_part_of_the_comparison_is_needed(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    """W46, the sabotaged twins: without it a fire is made by what was read long ago."""
    declare(raw)
    put(raw, created_at=ago(raw, hours=1))
    read = store.list_crons(raw, everything=False)[0]
    changed: dict[str, Any] = {
        "last_fire_at": latest(raw),
        "last_job_id": 7,
        "expression": "0 0 1 1 *",
        "zone": "Asia/Tokyo",
    }
    put(raw, **{column: changed[column]})
    fire = lambda: store.fire_cron(raw, read, latest(raw), None, notify=False)  # noqa: E731
    assert fire() is None
    whole = store.statement("fire_cron")
    lines = [line for line in whole.splitlines() if f"%({column})s" not in line]
    assert len(lines) == len(whole.splitlines()) - 1
    monkeypatch.setattr("django_pgjobs.sql.statement", lambda name: "\n".join(lines))
    assert fire() is not None


def test_nothing_fires_before_its_time_whatever_the_leader_thinks(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W52: a leader that takes it for an hour later asks in vain; the statement reads the database's clock."""
    declare(raw)
    read = store.list_crons(raw, everything=False)[0]
    ahead = read._replace(now=read.now + timedelta(hours=1))
    monkeypatch.setattr(store, "list_crons", lambda db, *, everything: [ahead])
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
    [read] = store.list_crons(raw, everything=False)
    if columns:
        put(raw, **columns)
    made = store.fire_cron(raw, read, latest(raw), None, notify=False)
    tick(raw)
    assert (made is not None, Job.objects.count()) == (bool(fired), fired)


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
    """W49: by hand too; the leader looks every few seconds at what is not due."""
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
    assert (caplog.text.count("cron entry is broken"), "whole again" in caplog.text) == (1, False)
    put(raw, declared_options=json.dumps(PLAIN))
    time(cron_firing.BROKEN_SECONDS)
    firer(raw)
    assert (entry().broken, Job.objects.count(), "whole again" in caplog.text) == ("", 1, True)


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
    """Rescue shares this thread: it must not wait behind an operator's transaction."""
    declare(raw)
    put(raw, created_at=ago(raw, hours=1))
    other.query("BEGIN")
    other.query("SELECT name FROM pgjobs_cron_entry FOR UPDATE")
    raw.query("SET lock_timeout = '100ms'")
    tick(raw)
    store.refresh_crons(raw, ["clean"], fresh_seconds=0)
    assert Job.objects.count() == 0
    other.rollback()
    tick(raw)
    assert Job.objects.count() == 1


# Keys and overlap


def test_a_fire_whose_key_is_taken_is_dealt_with(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    declare(raw, options={"key": "k", "key_scope": "until_finished"})
    put(raw, created_at=ago(raw, hours=1))
    tick(raw)
    first = entry()
    put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
    with caplog.at_level(logging.INFO):
        tick(raw)
    assert Job.objects.get().unique_key == "k"
    assert "an unfinished one has its key cron=clean" in caplog.text
    assert (entry().last_fire_at, entry().last_job_id) == (first.last_fire_at, first.last_job_id)
    end(raw)
    put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
    tick(raw)
    assert Job.objects.count() == 2


def test_a_key_that_is_not_committed_keeps_no_other_entry_from_its_turn(
    raw: RawDatabase, other: RawDatabase, time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever registers a job of that key in a long transaction would stop all schedules, and rescue with them."""
    raw.query("SET statement_timeout = '20s'")
    declare(raw, options={"key": "k", "key_scope": "until_finished"})
    declare(raw, "second")
    for name in ("clean", "second"):
        put(raw, name, created_at=ago(raw, minutes=11))
    other.query("BEGIN")
    other.query(
        "INSERT INTO pgjobs_job (name, queue, priority, max_attempts, payload, run_at, key, key_scope, unique_key)"
        " VALUES ('test.clean', 'night', 0, 1, '{}', statement_timestamp(), 'k', 'until_finished', 'k')"
    )
    firer = Firer()
    firer(raw)
    assert [job.cron_entry for job in Job.objects.all()] == ["second"]
    assert "fire waits, a job that has its job's key is not committed yet" in caplog.text
    with statements(raw) as asked:
        firer(raw)
    assert "fire_cron" not in asked, "for some seconds nobody waits for it"
    other.rollback()
    time(10)
    firer(raw)
    assert {job.cron_entry for job in Job.objects.all()} == {"clean", "second"}


def test_jobs_overlap_where_they_may(raw: RawDatabase) -> None:
    """X6: ``allow``."""
    declare(raw)
    for _ in range(2):
        put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
        tick(raw)
    assert Job.objects.count() == 2


def test_a_fire_is_skipped_while_the_last_job_runs(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """X6: ``skip``, also while it only waits, and although the leader read it before that job was there."""
    declare(raw, overlap="skip")
    put(raw, last_fire_at=latest(raw) - 10 * MINUTE)
    [read] = store.list_crons(raw, everything=False)
    tick(raw)
    assert store.fire_cron(raw, read, latest(raw), None, notify=False) is None
    for _ in range(2):
        put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
        with caplog.at_level(logging.INFO):
            tick(raw)
        assert Job.objects.count() == 1
        assert (entry().last_fire_at, entry().next_fire_at) == (latest(raw), latest(raw) + 10 * MINUTE)
        assert "fire skipped, the last job is not finished cron=clean" in caplog.text
        claim(raw)
    end(raw)
    put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
    tick(raw)
    assert Job.objects.count() == 2


@pytest.mark.parametrize("outcome", ["succeeded", "abandoned", "cancelled"])
def test_the_next_fire_comes_after_the_end_of_the_last_job(raw: RawDatabase, outcome: str) -> None:
    """A24 A25 A27: every ten minutes with a job of fifteen is every twenty; a failed one goes on, with all attempts."""
    declare(raw, overlap="after_completion")
    begin = latest(raw) - 20 * MINUTE
    put(raw, last_fire_at=begin - 10 * MINUTE, next_fire_at=begin)
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, cron_entry, attempt, claim_id, claimed_at) "
        "VALUES ('test.clean', '{}', 'clean', 4, gen_random_uuid(), statement_timestamp())"
    )
    put(raw, last_job_id=Job.objects.get().pk)
    tick(raw)
    assert entry().next_fire_at is None, "nobody knows before the job has ended"
    tick(raw)
    assert Job.objects.count() == 1
    raw.query("UPDATE pgjobs_job SET outcome = %s, finished_at = %s", [outcome, begin + 15 * MINUTE])
    tick(raw)
    assert fires()[1:] == [begin + 20 * MINUTE]
    made = Job.objects.latest("pk")
    assert (made.attempt, made.max_attempts) == (0, 4)


def test_what_passed_while_the_last_job_ran_makes_no_fire(raw: RawDatabase) -> None:
    """A25: the schedule goes on from the end of that job, not from its fire."""
    declare(raw, overlap="after_completion")
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, cron_entry, attempt, outcome, finished_at) "
        "VALUES ('test.clean', '{}', 'clean', 1, 'succeeded', statement_timestamp())"
    )
    put(raw, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None, last_job_id=Job.objects.get().pk)
    tick(raw)
    assert (Job.objects.count(), entry().next_fire_at) == (1, latest(raw) + 10 * MINUTE)


def test_the_next_fire_after_a_job_that_has_just_ended_is_the_next_to_come(raw: RawDatabase) -> None:
    """A25: what passed while it ran is not made up for."""
    declare(raw, overlap="after_completion")
    put(raw, last_fire_at=latest(raw) - 30 * MINUTE, next_fire_at=latest(raw) - 20 * MINUTE)
    tick(raw)
    assert Job.objects.count() == 1
    end(raw)
    tick(raw)
    tick(raw)
    assert (Job.objects.count(), entry().next_fire_at) == (1, latest(raw) + 10 * MINUTE)


def test_a_last_job_that_is_gone_counts_as_ended_when_it_is_missed(raw: RawDatabase) -> None:
    """A25: pruned, or kept with a retention of 0."""
    declare(raw, overlap="after_completion")
    put(raw, last_fire_at=latest(raw) - 30 * MINUTE, last_job_id=1_000_000)
    tick(raw)
    assert (Job.objects.count(), entry().next_fire_at) == (0, latest(raw) + 10 * MINUTE)
    put(raw, next_fire_at=latest(raw))
    tick(raw)
    assert fires() == [latest(raw)]


def test_a_hundred_fires_in_a_row(raw: RawDatabase) -> None:
    """A26: it repeats for ever; each with the end of the one before."""
    declare(raw, expression="* * * * *", overlap="after_completion")
    for _ in range(100):
        put(raw, next_fire_at=latest(raw, "* * * * *"), last_fire_at=ago(raw, hours=1))
        tick(raw)
        end(raw)
    assert Job.objects.count() == 100


# Declaring


def test_declared_entries_are_brought_into_the_database(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """W36: at once when a worker starts, each minute by the leader, at once when one is elected."""
    definition = job(name="test.clean", cron=Cron("@daily"))(clean)
    leader = Leader(AUTHOR)
    sync = CronSync(declared_for("default"), leader)
    sync.tick(raw)
    assert (entry("test.clean").declared_expression, entry("test.clean").declared_zone) == ("@daily", "UTC")
    leader.tick(raw)
    put(raw, "test.clean", declared_expression="@weekly")
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@daily", "newly elected"
    put(raw, "test.clean", declared_expression="@weekly")
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@weekly"
    time(cron_firing.SYNC_SECONDS)
    leader.tick(raw)
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@daily"
    assert definition.name == "test.clean"


def test_a_worker_that_does_not_lead_overwrites_only_at_its_start(
    raw: RawDatabase, time: Callable[[float], None]
) -> None:
    """W36 W38: its code is the newest then; later the leader's counts, and what nobody else has is put back."""
    job(name="test.clean", cron=Cron("@daily"))(clean)
    declare(raw, "test.clean", expression="@weekly")
    sync = CronSync(declared_for("default"), Leader(OTHER))
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@daily"
    declare(raw, "test.clean", expression="@monthly")
    time(cron_firing.SYNC_SECONDS)
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@monthly"
    raw.query("DELETE FROM pgjobs_cron_entry")
    time(cron_firing.SYNC_SECONDS)
    sync.tick(raw)
    assert entry("test.clean").declared_expression == "@daily"


def test_nothing_is_asked_where_nothing_is_declared(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """W37."""
    leader = Leader(AUTHOR)
    leader.tick(raw)
    sync = CronSync(declared_for("default"), leader)
    with statements(raw) as asked:
        for _ in range(3):
            sync.tick(raw)
            time(cron_firing.SYNC_SECONDS)
    sync.leave(raw)
    assert asked == []


def test_entries_of_another_deployment_stay(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """W38: two applications with different schedules on one database; a name that this one never heard of fires too."""
    declare(raw, "theirs", job_name="their.job")
    put(raw, "theirs", created_at=ago(raw, hours=1))
    job(name="test.clean", cron=Cron("@daily"))(clean)
    leader = Leader(AUTHOR)
    leader.tick(raw)
    CronSync(declared_for("default"), leader).tick(raw)
    tick(raw)
    assert set(CronEntry.objects.values_list("name", flat=True)) == {"theirs", "test.clean"}
    assert Job.objects.get().name == "their.job"


def test_a_deploy_resets_nothing_that_is_not_declared(raw: RawDatabase) -> None:
    """W40: last fire, overrides and pause stay; so no fire is made twice."""
    declare(raw)
    kept: dict[str, Any] = {
        "created_at": ago(raw, days=3), "last_fire_at": latest(raw), "last_job_id": 5, "expression": "@hourly",
        "zone": "Asia/Tokyo", "paused_at": ago(raw), "paused_by": "ann", "paused_until": None,
    }  # fmt: skip
    put(raw, payload='{"args": [2], "kwargs": {}}', **kept)
    declare(raw, expression="@daily", payload='{"args": [3], "kwargs": {}}', options={"queue": "day"})
    row = entry()
    assert {column: getattr(row, column) for column in kept} == kept
    assert (row.payload, row.declared_payload) == ({"args": [2], "kwargs": {}}, {"args": [3], "kwargs": {}})
    assert (row.declared_expression, row.declared_options["queue"]) == ("@daily", "day")


def test_a_new_expression_missed_nothing_before_it_was_declared(raw: RawDatabase) -> None:
    """W40: the deploy at ten past does not fire what the new expression would have fired on the hour."""
    declare(raw, expression="0 0 1 1 *")
    put(raw, created_at=ago(raw, days=400), last_fire_at=ago(raw, days=300))
    declare(raw, expression="*/10 * * * *")
    tick(raw)
    assert (Job.objects.count(), entry().next_fire_at) == (0, latest(raw) + 10 * MINUTE)


def test_one_bad_entry_does_not_keep_the_others(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """W39: neither one that the settings forbid nor one that the database refuses."""
    definition = job(name="test.report")(report)
    for name in ("a", "b", "c"):
        Cron("@daily", definition.bind("x"), name=name)
    Cron("@daily", definition.using(queue="forbidden").bind("x"), name="d")
    whole = Cron.declared

    def declared(self: Cron) -> store.DeclaredCron:
        return whole(self)._replace(payload="no json") if self.name == "b" else whole(self)

    monkeypatch.setattr(Cron, "declared", declared)
    with override_settings(PGJOBS={"QUEUES": ["default"]}):
        CronSync(declared_for("default"), Leader(OTHER)).tick(raw)
    assert set(CronEntry.objects.values_list("name", flat=True)) == {"a", "c"}
    assert "cron entry cannot be declared, the others are cron=b" in caplog.text
    assert "cron entry cannot be declared cron=d" in caplog.text


def test_what_the_project_makes_for_an_entry_is_made_once(raw: RawDatabase, time: Callable[[float], None]) -> None:
    """I13: a description or a key that hangs must not stop the thread that rescues."""
    calls: list[str] = []

    def made(kind: str) -> str:
        calls.append(kind)
        return kind

    definition = job(name="test.report", key=made, key_scope="until_finished")(report)
    definition.describe(made)
    Cron("@daily", definition.bind("x"), name="daily")
    leader = Leader(AUTHOR)
    leader.tick(raw)
    sync = CronSync(declared_for("default"), leader)
    calls.clear()
    for _ in range(2):
        sync.tick(raw)
        raw.query("UPDATE pgjobs_cron_entry SET declared_options = '{}'")
        time(cron_firing.SYNC_SECONDS)
        leader.tick(raw)
    sync.tick(raw)
    assert (entry("daily").declared_options["key"], entry("daily").declared_options["description"]) == ("x", "x")
    assert calls == []


def test_an_entry_whose_key_cannot_be_made_is_not_declared(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    """Said once, when the worker starts; the others are declared."""
    answers = {"x": "x", "y": "y"}
    definition = job(name="test.report", key=lambda kind: answers[kind], key_scope="until_finished")(report)
    for kind in answers:
        Cron("@daily", definition.bind(kind), name=kind)
    del answers["x"]
    assert list(declared_for("default")) == ["y"]
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "cron entry cannot be declared cron=x" in told


def test_an_entry_goes_to_the_database_of_its_job(raw: RawDatabase) -> None:
    definition = job(name="test.report")(report)
    Cron("@daily", definition.using(database="other").bind("x"), name="there")
    Cron("@daily", definition.bind("x"), name="here")
    CronSync(declared_for("default"), Leader(OTHER)).tick(raw)
    assert list(CronEntry.objects.values_list("name", flat=True)) == ["here"]


def test_an_entry_whose_code_is_gone_is_marked_until_it_comes_back(
    raw: RawDatabase, time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """W38, bad input: visible, logged, not fired; any worker that has the code brings it back."""
    job(name="test.clean", cron=Cron("* * * * *"))(clean)
    sync = CronSync(declared_for("default"), Leader(OTHER))
    sync.tick(raw)
    declare(raw, "stays")
    put(raw, "test.clean", declared_at=ago(raw, seconds=cron_firing.MISSING_SECONDS + 1), created_at=ago(raw, hours=1))
    MarkMissing()(store.on("default"))
    assert [row.name for row in CronEntry.objects.exclude(missing_since=None)] == ["test.clean"]
    assert "declared by no worker's code any more" in caplog.text
    tick(raw)
    assert Job.objects.count() == 0
    time(cron_firing.SYNC_SECONDS)
    sync.tick(raw)
    assert entry("test.clean").missing_since is None
    tick(raw)
    assert Job.objects.count() == 1


@pytest.mark.parametrize(("lock", "marked"), [("UPDATE", ["free"]), ("KEY SHARE", ["free", "held"])])
def test_entries_without_code_are_marked_on_the_workers_own_connection_and_held_rows_are_left(
    raw: RawDatabase, other: RawDatabase, lock: str, marked: list[str]
) -> None:
    """W38: rescue shares that thread; who only points to the row is not in the way."""
    for name in ("free", "held"):
        declare(raw, name)
        put(raw, name, declared_at=ago(raw, seconds=cron_firing.MISSING_SECONDS + 1))
    other.query("BEGIN")
    other.query(f"SELECT name FROM pgjobs_cron_entry WHERE name = 'held' FOR {lock}")
    django = connections["default"]
    db = WorkerConnection("default", "test", statement_seconds=patience(10.0))
    try:
        db.connection.execute("SET lock_timeout = '100ms'")
        MarkMissing()(db)
        assert sorted(CronEntry.objects.exclude(missing_since=None).values_list("name", flat=True)) == marked
        assert connections["default"] is django
        other.rollback()
        MarkMissing()(db)
        assert not CronEntry.objects.filter(missing_since=None).exists()
        assert db.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert store.read_identity(db) == db.identity
    finally:
        db.close()


def test_a_new_declaration_replaces_all_of_the_old_one(raw: RawDatabase) -> None:
    """W36: whatever the code says now is what counts."""
    declare(raw)
    said = {
        "job_name": "test.other", "expression": "@daily", "zone": "Europe/Berlin", "payload": '{"args": [2]}',
        "misfire": "skip", "overlap": "skip",
    }  # fmt: skip
    declare(raw, **said, options={"priority": 7})
    row = entry()
    assert (row.job_name, row.declared_expression, row.declared_zone) == ("test.other", "@daily", "Europe/Berlin")
    assert (row.declared_payload, row.declared_options["priority"]) == ({"args": [2]}, 7)
    assert (row.misfire, row.overlap) == ("skip", "skip")


@pytest.mark.parametrize(
    "changed",
    [
        {"last_fire_at": "2001-01-01"}, {"last_job_id": 7}, {"expression": "@daily"}, {"zone": "Europe/Berlin"},
    ],
    ids=str,
)  # fmt: skip
def test_a_fire_is_planned_only_for_an_entry_that_stands_as_it_was_read(
    raw: RawDatabase, changed: dict[str, Any]
) -> None:
    """An operator or another leader was faster; each of these columns alone is reason enough."""
    declare(raw)
    [read] = store.list_crons(raw, everything=True)
    put(raw, **changed)
    assert not store.plan_cron(raw, read, latest(raw))
    [read] = store.list_crons(raw, everything=True)
    assert store.plan_cron(raw, read, latest(raw))


def test_a_declaration_seen_lately_is_not_written_again(raw: RawDatabase) -> None:
    """Many workers say the same each minute; the row is written by the first of them."""
    declare(raw)
    before = raw.value("SELECT xmin::text FROM pgjobs_cron_entry")
    assert store.refresh_crons(raw, ["clean", "unknown"], fresh_seconds=30) == {"clean"}
    assert raw.value("SELECT xmin::text FROM pgjobs_cron_entry") == before
    put(raw, declared_at=ago(raw, seconds=31))
    store.refresh_crons(raw, ["clean"], fresh_seconds=30)
    assert entry().declared_at > ago(raw, seconds=20)


# Plans


def test_the_look_at_overlaps_goes_by_the_entrys_unfinished_jobs(raw: RawDatabase) -> None:
    """However many jobs there are."""
    plan = "\n".join(
        row[0]
        for row in raw.query("EXPLAIN SELECT 1 FROM pgjobs_job AS j WHERE j.cron_entry = 'x' AND j.finished_at IS NULL")
    )
    assert "pgjobs_job_cron" in plan
