"""``pgjobs import`` of schedules: those of django-celery-beat and django-q2 become rows here, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection

from django_pgjobs import Unique, job, sql
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.models.crons import aware
from django_pgjobs.models.imports import ImportNote
from tests.db.importing_ground import deaths, mail, once, send, tables_of
from tests.plugins.explaining import numbered
from tests.plugins.fix_db import Background, RawDatabase, blocked_by, wait_until
from tests.plugins.shell import pgjobs

BEAT, Q2, OX = "django-celery-beat", "django-q2-schedules", "django-ox-schedules"
TABLES = ("periodictask", "crontabschedule", "intervalschedule", "clockedschedule", "periodictasks")


@job(name="shop.report", schedulable=True)
def report(kind: str = "short") -> str:
    return kind


@job(name="shop.replaced_by_key", unique=Unique("one", on_conflict="replace"))
def replaced(kind: str) -> str:
    return kind


@pytest.fixture(scope="module")
def scheduler_tables(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), tables_of(BEAT, Q2, "django-ox"):
        yield


@pytest.fixture(autouse=True)
def schedulers(scheduler_tables: None, committed: None) -> Iterator[None]:
    yield
    with connection.cursor() as cursor:
        cursor.execute(";".join(f"DELETE FROM django_celery_beat_{table}" for table in TABLES))
        cursor.execute("DELETE FROM django_q_schedule; DELETE FROM django_ox_oxschedule")


def insert(raw: RawDatabase, table: str, **values: Any) -> int:
    names = ", ".join(values)
    places = ", ".join(f"%({name})s" for name in values)
    found: int = raw.value(f"INSERT INTO {table} ({names}) VALUES ({places}) RETURNING id", values)
    return found


def beat(raw: RawDatabase, name: str = "nightly", **given: Any) -> int:
    values = {
        "name": name, "task": "shop.report", "args": "[]", "kwargs": "{}", "enabled": True, "total_run_count": 0,
        "date_changed": datetime(2026, 1, 5, 7, 0, 0, 5, tzinfo=UTC), "description": "", "one_off": False,
        "headers": "{}",
    }  # fmt: skip
    return insert(raw, "django_celery_beat_periodictask", **{**values, **given})


def crontab(raw: RawDatabase, text: str = "30 2 * * *", timezone: str = "Europe/Berlin") -> int:
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    fields = dict(zip(names, text.split(), strict=True))
    return insert(raw, "django_celery_beat_crontabschedule", **fields, timezone=timezone)


def q2(raw: RawDatabase, kind: str, name: str | None = "nightly", **given: Any) -> int:
    values: dict[str, Any] = {"name": name, "func": "shop.report", "schedule_type": kind, "repeats": -1}
    values["next_run"] = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    return insert(raw, "django_q_schedule", **{**values, **given})


def ox(raw: RawDatabase, name: str = "nightly", **given: Any) -> int:
    values: dict[str, Any] = {
        "name": name, "task_key": "shop.report", "trigger": "cron", "cron": "30 2 * * *", "phase_seconds": 0,
        "arguments": "{}", "enabled": True, "boundary_for": "", "boundary_generation": 0,
        **dict.fromkeys(("start_time", "created_at", "updated_at"), datetime(2026, 1, 5, 7, tzinfo=UTC)),
    }  # fmt: skip
    if "every_seconds" in given:
        values |= {"trigger": "interval", "cron": ""}
    return insert(raw, "django_ox_oxschedule", **{**values, **given})


def imported(source: str, *options: str) -> tuple[int, dict[str, Any]]:
    status, out, _ = pgjobs("import", source, "--format", "json", *options)
    return status, json.loads(out)


def reason(source: str) -> str:
    status, answer = imported(source, "--apply")
    assert (status, answer["taken"], answer["left"]) == (1, 0, 1)
    assert (CronEntry.objects.count(), Job.objects.count(), ImportNote.objects.count()) == (0, 0, 0)
    return str(answer["jobs"][0]["reason"])


def undone(run: str) -> dict[str, Any]:
    _, out, _ = pgjobs("import", "--undo", run, "--apply", "--format", "json")
    answer: dict[str, Any] = json.loads(out)
    return answer


def entry(source: str) -> CronEntry:
    status, answer = imported(source, "--apply")
    assert (status, answer["taken"]) == (0, 1), answer
    return CronEntry.objects.get()


@pytest.mark.parametrize(
    "name",
    [f"{verb}_{source}" for verb in ("lock", "read", "take", "return") for source in ("beat", "q2", "ox_schedules")],
)
def test_a_statement_prepares_on_the_tables_of_its_source(raw: RawDatabase, name: str) -> None:
    result = raw.raw.pgconn.prepare(b"", numbered(sql.statement(name)).encode())
    assert result.error_message == b""


def test_a_crontab_fires_here_in_its_zone_and_no_more_there(raw: RawDatabase) -> None:
    there = beat(raw, crontab_id=crontab(raw), kwargs='{"kind": "long"}', queue="mail", expire_seconds=60)
    found = entry(BEAT)
    assert (found.pk, found.job_name, found.zone or found.declared_zone) == ("nightly", "shop.report", "Europe/Berlin")
    fires = found.next_fires(2, after=datetime(2026, 3, 27, 12, tzinfo=UTC))
    assert [fire.isoformat() for fire in fires] == ["2026-03-28T01:30:00+00:00", "2026-03-29T01:00:00+00:00"]
    assert found.declared_payload["kwargs"] == {"kind": "long"}
    assert (found.declared_options["queue"], found.declared_options["expires_seconds"]) == ("mail", 60)
    assert raw.query("SELECT id, enabled FROM django_celery_beat_periodictask") == [(there, False)]
    assert raw.value("SELECT count(*) FROM django_celery_beat_periodictasks") == 1
    status, answer = imported(BEAT, "--apply")
    assert (status, answer["jobs"][0]["reason"]) == (1, "was imported before")


def test_the_process_of_beat_is_told_even_if_its_clock_is_fast(raw: RawDatabase) -> None:
    """It looks for an instant that is later than the last one it saw."""
    table = "django_celery_beat_periodictasks"
    raw.query(f"INSERT INTO {table} VALUES (1, '2041-05-06 07:08:09+00')")
    beat(raw, crontab_id=crontab(raw))
    _, answer = imported(BEAT, "--apply")
    assert raw.value(f"SELECT last_update FROM {table}").microsecond == 1
    undone(answer["run"])
    assert raw.value(f"SELECT last_update FROM {table}").microsecond == 2


def test_an_interval_keeps_its_phase(raw: RawDatabase) -> None:
    every = insert(raw, "django_celery_beat_intervalschedule", every=45, period="minutes")
    beat(raw, interval_id=every)
    fires = entry(BEAT).next_fires(2, after=datetime(2026, 1, 5, 7, tzinfo=UTC))
    assert [fire.isoformat() for fire in fires] == ["2026-01-05T07:45:00+00:00", "2026-01-05T08:30:00+00:00"]


def test_a_disabled_one_is_disabled_here(raw: RawDatabase) -> None:
    beat(raw, crontab_id=crontab(raw), enabled=False)
    assert not entry(BEAT).enabled


def test_bounds_come_too(raw: RawDatabase) -> None:
    start, end = datetime(2031, 1, 1, tzinfo=UTC), datetime(2031, 2, 1, tzinfo=UTC)
    beat(raw, crontab_id=crontab(raw), start_time=start, expires=end, one_off=True)
    found = entry(BEAT)
    assert found.starts_at
    assert found.ends_at
    assert (aware(found.starts_at), aware(found.ends_at), found.max_fires) == (start, end, 1)


def test_an_instant_becomes_a_job(raw: RawDatabase) -> None:
    instant = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)
    beat(raw, clocked_id=insert(raw, "django_celery_beat_clockedschedule", clocked_time=instant))
    status, answer = imported(BEAT, "--apply")
    assert (status, answer["taken"]) == (0, 1)
    found = Job.objects.get()
    assert (aware(found.run_at), found.pk, CronEntry.objects.count()) == (instant, answer["jobs"][0]["job_id"], 0)


@pytest.mark.parametrize(
    ("given", "text", "words"),
    [
        ({"task": "celery.backend_cleanup"}, "0 4 * * *", "cleans its own"),
        ({"task": "shop.gone"}, "0 4 * * *", "No job named"),
        ({"kwargs": '{"size": 1}'}, "0 4 * * *", "size"),
        ({"args": "[1"}, "0 4 * * *", "Expecting"),
        ({"args": "[" * 100_000}, "0 4 * * *", "decoding"),
        ({"task": "pgjobs.undo"}, "0 4 * * *", "own jobs"),
        ({"one_off": True, "total_run_count": 1}, "0 4 * * *", "once"),
        ({}, "0 4 1 * 1", "both match"),
        ({}, "*/90 * * * *", "90"),
        ({}, "", "counterpart"),
    ],
)
def test_what_has_no_counterpart_is_left(raw: RawDatabase, given: dict[str, Any], text: str, words: str) -> None:
    beat(raw, crontab_id=crontab(raw, text) if text else None, **given)
    assert words in reason(BEAT)
    assert raw.value("SELECT enabled FROM django_celery_beat_periodictask")


def test_an_entry_of_that_name_is_not_overwritten(raw: RawDatabase) -> None:
    report.schedule("0 0 * * *", name="nightly").register()
    beat(raw, crontab_id=crontab(raw))
    status, answer = imported(BEAT, "--apply")
    assert (status, answer["jobs"][0]["reason"]) == (1, "a schedule 'nightly' is here")
    assert CronEntry.objects.get().declared_expression == "0 0 * * *"


def test_what_differs_is_told(raw: RawDatabase) -> None:
    beat(raw, crontab_id=crontab(raw), priority=3, headers='{"a": 1}', task="shop.mail", args='["anna"]')
    _, answer = imported(BEAT)
    assert answer["jobs"][0]["differences"] == [
        "without priority 3, whose direction the broker decides",
        "without its headers",
        "the admin cannot change it: declare @job(schedulable=True)",
    ]
    assert (CronEntry.objects.count(), mail.name, send.name) == (0, "shop.mail", "shop.send")


def test_an_interval_of_ages_is_left(raw: RawDatabase) -> None:
    beat(raw, interval_id=insert(raw, "django_celery_beat_intervalschedule", every=2**31 - 1, period="days"))
    assert "days" in reason(BEAT)


def test_a_schedule_of_another_database_is_left(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a task whose backend names one."""
    plan = replace(send._plan, database="other")
    monkeypatch.setattr(type(send), "_plan", property(lambda definition: plan))
    beat(raw, crontab_id=crontab(raw), task="shop.send", args='["anna"]')
    assert reason(BEAT) == "its jobs go to database 'other'"


def test_empty_arguments_are_none(raw: RawDatabase) -> None:
    beat(raw, crontab_id=crontab(raw), args="", kwargs="")
    assert entry(BEAT).declared_payload == {"args": [], "kwargs": {}}


@pytest.mark.parametrize(
    ("task", "kwargs"), [("shop.once", '{"to": "bert"}'), ("shop.replaced_by_key", '{"kind": "there"}')]
)
def test_an_instant_whose_key_is_taken_here_is_left(raw: RawDatabase, task: str, kwargs: str) -> None:
    """Regardless of the policy of its job: an undo would delete the job that has the key, as if it had come."""
    kept = {once.register("bert").pk, replaced.register("here").pk}
    instant = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)
    beat(raw, "clocked", clocked_id=insert(raw, "django_celery_beat_clockedschedule", clocked_time=instant),
         task=task, kwargs=kwargs)  # fmt: skip
    beat(raw, crontab_id=crontab(raw))
    status, answer = imported(BEAT, "--apply")
    assert (status, answer["taken"], answer["left"]) == (1, 1, 1)
    assert "is taken by job" in answer["jobs"][0]["reason"]
    assert undone(answer["run"])["returned"] == 1
    assert {found.pk: found.payload["args"][0] for found in Job.objects.all()} == dict(
        zip(sorted(kept), ["bert", "here"], strict=True)
    )
    assert raw.value("SELECT count(*) FROM django_celery_beat_periodictask WHERE enabled") == 2


@pytest.mark.parametrize("source", [BEAT, Q2])
def test_a_name_that_is_taken_meanwhile_is_not_overwritten(
    raw: RawDatabase, db_connection: Callable[..., RawDatabase], background: Background, source: str
) -> None:
    beat(raw, crontab_id=crontab(raw))
    q2(raw, "D")
    other = db_connection(autocommit=False)
    other.query(
        "INSERT INTO pgjobs_cron_entry (name, origin, job_name, declared_expression, declared_zone, declared_payload,"
        """ declared_options) VALUES ('nightly', 'row', 'shop.report', '@yearly', 'UTC', '{"args": []}', '{}')"""
    )
    found = background(imported, source, "--apply")
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the import waits for the name")
    other.commit()
    status, answer = found.result()
    assert (status, answer["jobs"][0]["reason"]) == (1, "a schedule 'nightly' is here")
    assert CronEntry.objects.get().declared_expression == "@yearly"


@pytest.mark.parametrize("source", [BEAT, Q2])
def test_two_imports_at_once_take_a_schedule_once(
    raw: RawDatabase, db_connection: Callable[..., RawDatabase], background: Background, source: str
) -> None:
    """The second one sees what the first has noted while it waited; a look at the same time waits for nobody."""
    beat(raw, crontab_id=crontab(raw))
    q2(raw, "D")
    other = db_connection(autocommit=False)
    other.query("SELECT FROM django_celery_beat_periodictask FOR UPDATE")
    other.query("SELECT FROM django_q_schedule FOR UPDATE")
    both = [background(imported, source, "--apply") for _ in range(2)]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    wait_until(lambda: raw.value(waiting) == 2, 10, "both imports wait")
    assert imported(source)[1]["taken"] == 1
    other.commit()
    answers = [each.result()[1] for each in both]
    assert sorted(answer["taken"] for answer in answers) == [0, 1]
    reasons = [each["reason"] for answer in answers for each in answer["jobs"] if each["reason"]]
    assert reasons == (["was imported before"] if source == BEAT else [])
    assert CronEntry.objects.count() == ImportNote.objects.count() == 1


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("H", {}, ["05-06T07:08", "05-06T08:08"]),
        ("D", {}, ["05-06T07:08", "05-07T07:08"]),
        ("W", {}, ["05-06T07:08", "05-13T07:08"]),
        ("BW", {}, ["05-06T07:08", "05-20T07:08"]),
        ("M", {}, ["05-06T07:08", "06-06T07:08"]),
        ("BM", {}, ["05-06T07:08", "07-06T07:08"]),
        ("Q", {}, ["05-06T07:08", "08-06T07:08"]),
        ("I", {"minutes": 45}, ["05-06T07:08", "05-06T07:53"]),
        ("C", {"cron": "0 9 * * *"}, ["05-06T09:00", "05-07T09:00"]),
    ],
)
def test_types_of_q2_fire_when_they_would_there(
    raw: RawDatabase, settings: Any, kind: str, given: dict[str, Any], expected: list[str]
) -> None:
    settings.TIME_ZONE = "UTC"
    q2(raw, kind, **given)
    fires = entry(Q2).next_fires(2, after=datetime(2031, 5, 1, tzinfo=UTC))
    assert [fire.isoformat()[5:16] for fire in fires] == expected
    assert raw.value("SELECT count(*) FROM django_q_schedule") == 0


def test_arguments_of_q2_are_literals(raw: RawDatabase) -> None:
    q2(raw, "D", args="'long'")
    q2(raw, "D", "second", kwargs="kind='short'")
    q2(raw, "D", "third", kwargs="{'kind': 'x'}")
    q2(raw, "D", "evil", kwargs="kind=__import__('os').getpid()")
    q2(raw, "D", "deep", args="-" * 50_000 + "1")
    q2(raw, "D", "wide", args="1+" * 40_000 + "1")
    q2(raw, "D", "long", args="1," * 50_001)
    q2(raw, "O", None)
    _, answer = imported(Q2, "--apply")
    assert {each["name"] for each in answer["jobs"] if each["reason"]} == {"evil", "deep", "wide", "long"}
    payloads = {found.pk: found.declared_payload for found in CronEntry.objects.all()}
    assert payloads["nightly"]["args"] == ["long"]
    assert (payloads["second"]["kwargs"], payloads["third"]["kwargs"]) == ({"kind": "short"}, {"kind": "x"})
    assert aware(Job.objects.get().run_at) == datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "zone", "expected"),
    [
        ({}, "Europe/Berlin", ["2031-05-06T00:30", "2031-05-07T00:30"]),
        ({"every_seconds": 2700, "phase_seconds": 60}, "UTC", ["2031-05-05T12:01", "2031-05-05T12:46"]),
        ({"every_seconds": 172_800, "phase_seconds": 7200}, "Europe/Berlin", ["2031-05-07T00:00", "2031-05-09T00:00"]),
    ],
)
def test_schedules_of_ox_fire_when_they_would_there(
    raw: RawDatabase, settings: Any, given: dict[str, Any], zone: str, expected: list[str]
) -> None:
    settings.TIME_ZONE = zone
    ox(raw, **given)
    found = entry(OX)
    fires = found.next_fires(2, after=datetime(2031, 5, 5, 12, tzinfo=UTC))
    assert [fire.astimezone(UTC).isoformat()[:16] for fire in fires] == expected
    assert found.enabled
    assert found.starts_at
    assert aware(found.starts_at) == datetime(2026, 1, 5, 7, tzinfo=UTC)
    assert raw.query("SELECT enabled FROM django_ox_oxschedule") == [(False,)]
    assert raw.value("SELECT count(*) FROM django_ox_oxschedulechange") == 1


def test_a_key_of_ox_names_the_task_that_the_settings_declare(raw: RawDatabase, settings: Any) -> None:
    settings.TASKS = {
        "default": {"OPTIONS": {"SCHEDULABLE_TASKS": {"daily": "shop.report", "more": {"task": "shop.mail"}}}}
    }
    ox(raw, task_key="daily", arguments='{"kind": "x"}', starting_deadline_seconds=60, enabled=False)
    ox(raw, "mails", task_key="more", arguments='{"to": "anna"}')
    ox(raw, "gone", task_key="less")
    ox(raw, "six", task_key="daily", every_seconds=21_600)
    _, answer = imported(OX, "--apply")
    assert {each["name"] for each in answer["jobs"] if each["reason"]} == {"gone"}
    assert answer["jobs"][0]["differences"] == ["without its starting deadline: see misfire"]
    assert answer["jobs"][3]["differences"] == ["its fires keep their distance when the clocks change, not their hours"]
    found = CronEntry.objects.get(pk="nightly")
    assert (found.enabled, found.declared_payload["kwargs"]) == (False, {"kind": "x"})


@pytest.mark.parametrize("given", [{"repeats": 0}, {"intended_date_kwarg": "day"}, {"next_run": None}])
def test_a_schedule_of_q2_that_cannot_come_is_left(raw: RawDatabase, given: dict[str, Any]) -> None:
    q2(raw, "D", **given)
    assert reason(Q2)


def test_schedules_go_back_as_they_were(raw: RawDatabase) -> None:
    q2(raw, "D", repeats=3, kwargs="kind='x'")
    q2(raw, "O", None)
    beat(raw, "beat", crontab_id=crontab(raw))
    beat(raw, "off", crontab_id=crontab(raw), enabled=False)
    ox(raw, "ox")
    names = ("django_q_schedule", "django_celery_beat_periodictask", "django_ox_oxschedule")
    tables = "SELECT to_jsonb(t) FROM {} AS t ORDER BY id"
    before = [raw.query(tables.format(name)) for name in names]
    runs = [imported(source, "--apply")[1]["run"] for source in (Q2, BEAT, OX)]
    assert (CronEntry.objects.count(), Job.objects.count()) == (4, 1)
    for run in runs:
        status, _, _ = pgjobs("import", "--undo", run, "--apply")
        assert status == 0
    after = [raw.query(tables.format(name)) for name in names]
    assert after == before
    assert (CronEntry.objects.count(), Job.objects.count(), ImportNote.objects.count()) == (0, 0, 0)


FIRED = """
UPDATE pgjobs_cron_entry
SET fires_made = 1, last_fire_at = '2031-07-01 00:00:05+00', next_fire_at = '2031-07-02 00:00:05+00'
"""


def test_a_schedule_that_goes_back_does_not_repeat_what_has_fired_here(
    raw: RawDatabase, db_connection: Callable[..., RawDatabase], background: Background
) -> None:
    """Also what fires while the undo begins."""
    old = datetime(2026, 1, 5, 7, tzinfo=UTC)
    beat(raw, "beat", crontab_id=crontab(raw), last_run_at=old)
    q2(raw, "D", next_run=old)
    ox(raw, "ox", start_time=old)
    runs = [imported(source, "--apply")[1]["run"] for source in (BEAT, Q2, OX)]
    other = db_connection(autocommit=False)
    other.query(FIRED)
    undos = [background(undone, run) for run in runs]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    wait_until(lambda: raw.value(waiting) == 3, 10, "all wait for the fires")
    other.commit()
    assert [each.result()["returned"] for each in undos] == [1, 1, 1]
    assert raw.value("SELECT last_run_at FROM django_celery_beat_periodictask") == datetime(
        2031, 7, 1, 0, 0, 5, tzinfo=UTC
    )
    assert raw.value("SELECT next_run FROM django_q_schedule") == datetime(2031, 7, 2, 0, 0, 5, tzinfo=UTC)
    assert raw.value("SELECT start_time FROM django_ox_oxschedule") == datetime(2031, 7, 1, 0, 0, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (FIRED, "has fired"),
        (
            FIRED.replace("next_fire_at = '2031-07-02 00:00:05+00'", "next_fire_at = NULL, max_fires = NULL"),
            "has fired, and does not say when it fires next",
        ),
        ("DELETE FROM pgjobs_cron_entry", "gone"),
    ],
)
def test_a_schedule_stays_here_if_it_cannot_go_on_there(raw: RawDatabase, change: str, why: str) -> None:
    beat(raw, "beat", crontab_id=crontab(raw), one_off=True)
    q2(raw, "D", repeats=1)
    runs = [imported(source, "--apply")[1]["run"] for source in (BEAT, Q2)]
    raw.query(change)
    assert [undone(run)["kept"] for run in runs] == [{why: 1}, {why: 1}]
    assert raw.value("SELECT count(*) FROM django_q_schedule") == 0
    assert raw.value("SELECT count(*) FROM django_celery_beat_periodictask WHERE enabled") == 0


@pytest.mark.parametrize("source", [BEAT, Q2, OX])
def test_whatever_dies_a_schedule_fires_there_or_here(raw: RawDatabase, source: str) -> None:
    beat(raw, crontab_id=crontab(raw))
    q2(raw, "D")
    ox(raw)
    there = (
        "SELECT count(*) FROM "
        + {
            BEAT: "django_celery_beat_periodictask WHERE enabled",
            Q2: "django_q_schedule",
            OX: "django_ox_oxschedule WHERE enabled",
        }[source]
    )

    def check() -> None:
        assert raw.value(there) + CronEntry.objects.count() == 1
        assert ImportNote.objects.count() == CronEntry.objects.count()

    for _ in deaths(raw, lambda: imported(source, "--apply")):
        check()
    run = ImportNote.objects.get().run
    for _ in deaths(raw, lambda: pgjobs("import", "--undo", run, "--apply")):
        check()
    assert CronEntry.objects.count() == 0
