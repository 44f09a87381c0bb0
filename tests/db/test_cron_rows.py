"""Schedules made at run time: registered by name, fired by the leader, broken and mended with the code."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import transaction
from django.test import override_settings

from django_pgjobs import Cron, job, sql
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.maintenance import cron_declaring
from django_pgjobs.maintenance.cron_declaring import CronRows, CronSync, MarkMissing, declared_for
from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import Action, CronEntry, Job
from django_pgjobs.schedules import read_back
from django_pgjobs.steering import crons as steering_rows
from django_pgjobs.store import firing, scheduling
from django_pgjobs.store.database import on, statement
from django_pgjobs.store.finalising import Author
from tests.db.cron_ground import MINUTE, ago, declare, entry, fires, latest, put, tick
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, patience

pytestmark = [pytest.mark.usefixtures("no_other_entries", "steady")]
NAME = "report:acme"
SOON = datetime(2030, 1, 2, tzinfo=UTC)
OTHER = Author(UUID(int=9), "other")


def report(tenant_id: int, kind: str = "daily") -> None: ...


def wider(tenant_id: int, language: str, kind: str = "daily") -> None: ...


@pytest.fixture(autouse=True)
def definition(no_other_entries: None) -> Any:
    return job(name="shop.report", queue="slow", schedulable=True, tags=["reports"])(report)


def schedule(definition: Any, expression: str | None = "*/10 * * * *", **options: Any) -> CronEntry:
    made: CronEntry = definition.schedule(expression, **{"name": NAME, "tz": "UTC", **options}).register(tenant_id=7)
    return made


# Registering


def test_nobody_deletes_a_schedule_between_its_registration_and_the_answer(
    raw: RawDatabase, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is held until the entry is read, or the caller would get ``DoesNotExist``."""
    put_row = steering_rows.put

    def then_deleted(*args: Any, **options: Any) -> str:
        written = put_row(*args, **options)
        with suppress(psycopg.errors.LockNotAvailable):
            raw.query("DELETE FROM pgjobs_cron_entry")
        return written

    raw.query("SET lock_timeout = '50ms'")
    monkeypatch.setattr(steering_rows, "put", then_deleted)
    assert schedule(definition).written == "created"
    assert (schedule(definition).written, schedule(definition, "@daily").written) == ("unchanged", "changed")


def test_who_registers_a_broken_schedule_again_mends_it(raw: RawDatabase, definition: Any) -> None:
    """As it is: who registers has code that knows the job, and arguments that fit it."""
    schedule(definition)
    put(raw, NAME, broken="no worker's code knows shop.report", next_fire_at=None)
    assert (entry(NAME).status, schedule(definition).written, entry(NAME).status) == ("broken", "changed", "on")
    assert Action.objects.latest("pk").mode == "mended"
    assert schedule(definition).written == "unchanged"


def test_a_schedule_made_at_run_time_fires(raw: RawDatabase, definition: Any) -> None:
    """A24 A26: with the options of the call, and nothing before it was made."""
    bound = definition.using(queue="mail", priority=5, max_attempts=2, timeout=60, tags=["acme"], unique="acme")
    made = bound.schedule("*/10 * * * *", name=NAME, tz="UTC", by="ann").register(tenant_id=7, kind="weekly")
    assert (made.pk, made.origin, made.written, made.status) == (NAME, "row", "created", "on")
    tick(raw)
    assert (Job.objects.count(), entry(NAME).next_fire_at) == (0, latest(raw) + 10 * MINUTE)
    put(raw, NAME, created_at=ago(raw, hours=1), next_fire_at=latest(raw))
    tick(raw)
    fired = Job.objects.get()
    assert (fired.name, fired.payload) == ("shop.report", {"args": [], "kwargs": {"tenant_id": 7, "kind": "weekly"}})
    assert (fired.queue, fired.priority, fired.max_attempts, fired.timeout_seconds) == ("mail", 5, 2, 60.0)
    assert (fired.tags, fired.key, fired.cron_entry, fired.fire_at) == (("reports", "acme"), "acme", NAME, latest(raw))
    assert entry(NAME).fires_made == 1


def test_registering_is_idempotent_by_name(raw: RawDatabase, definition: Any) -> None:
    """The same stays as it is, to the last column; another one changes, and has missed nothing."""
    schedule(definition)
    tick(raw)
    before = raw.value("SELECT xmin::text FROM pgjobs_cron_entry")
    assert schedule(definition).written == "unchanged"
    assert raw.value("SELECT xmin::text FROM pgjobs_cron_entry") == before
    put(raw, NAME, created_at=ago(raw, days=400), fires_made=3, broken="bad")
    changed = schedule(definition, "0 0 1 1 *", by="ann")
    assert (changed.written, changed.fires_made, changed.broken, changed.next_fire_at) == ("changed", 0, "", None)
    tick(raw)
    assert Job.objects.count() == 0
    assert schedule(definition, "0 0 1 1 *", overlap="skip").written == "changed"
    assert CronEntry.objects.count() == 1


def test_who_changed_what_is_in_the_history(definition: Any, django_user_model: type[User], raw: RawDatabase) -> None:
    """Added, changed, deleted: with old and new values, but for arguments, which may be secret."""
    ann = django_user_model.objects.create(username="ann")
    schedule(definition, "0 7 * * 1", by=ann)
    schedule(definition, "0 8 * * 1", tz="Europe/Berlin", by="bob", reason="too early")
    schedule(definition, "0 8 * * 1", tz="Europe/Berlin", by="bob")
    definition.schedule("0 8 * * 1", tz="Europe/Berlin", name=NAME).register(8)
    entry(NAME).remove(by="eve", reason="cancelled")
    told = [
        (action.verb, action.acted_by.split(" ")[-1], action.mode, action.reason, action.kind, action.subject)
        for action in Action.objects.order_by("pk")
    ]
    assert told == [
        ("add", "ann", "shop.report 0 7 * * 1 UTC", "", "cron", NAME),
        ("change", "bob", "expression: 0 7 * * 1 → 0 8 * * 1; zone: UTC → Europe/Berlin", "too early", "cron", NAME),
        ("change", "", "arguments", "", "cron", NAME),
        ("delete", "eve", "", "cancelled", "cron", NAME),
    ]


def test_registering_joins_the_callers_transaction(raw: RawDatabase, definition: Any) -> None:
    """Rolled back, it is not there; refused, the transaction goes on."""
    with transaction.atomic():
        schedule(definition)
        transaction.set_rollback(True)
    assert (CronEntry.objects.count(), Action.objects.count()) == (0, 0)
    declare(raw, "taken")
    with transaction.atomic():
        with pytest.raises(InvalidJob, match="cron entry 'taken' is declared by code: give the schedule another name"):
            schedule(definition, name="taken")
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'tenant_id'"):
            definition.schedule("@daily", name=NAME).register()
        with pytest.raises(InvalidJob, match=r"schedule 'report:acme': job 'shop\.report': "):
            definition.schedule("@daily", name=NAME).register(object())
        assert schedule(definition).written == "created"
    assert CronEntry.objects.count() == 2


def test_a_name_of_this_code_is_taken_before_any_worker_has_declared_it(definition: Any) -> None:
    Cron("@daily", definition.bind(1), name=NAME)
    with pytest.raises(InvalidJob, match="is declared by code"):
        schedule(definition)
    assert CronEntry.objects.count() == 0


def test_code_that_declares_the_name_of_a_row_is_logged_and_changes_nothing(
    raw: RawDatabase, definition: Any, caplog: pytest.LogCaptureFixture, time: Callable[[float], None]
) -> None:
    schedule(definition)
    Cron("@yearly", definition.bind(1), name=NAME)
    sync = CronSync(declared_for("default"), Leader(OTHER))
    for _ in range(3):
        sync.tick(raw)
        time(cron_declaring.SYNC_SECONDS)
    assert (entry(NAME).declared_expression, entry(NAME).origin) == ("*/10 * * * *", "row")
    assert caplog.text.count("a schedule made at run time has its name cron=report:acme") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": None}, "job 'shop.report': a schedule needs a name, such as 'report:acme'"),
        ({"name": "a\nb"}, "name must be printable"),
        ({"expression": "0 0 31 4 *"}, "schedule 'report:acme': the expression '0 0 31 4 .*' never fires"),
        ({"expression": None, "every": 0}, "schedule 'report:acme': an interval must be whole seconds"),
        ({"tz": "Mars"}, "there is no time zone 'Mars'"),
        ({"start": datetime(2030, 1, 1)}, "start must be an aware datetime"),
        ({"start": SOON + timedelta(days=1), "end": SOON}, "must be after the start"),
        (
            {"expression": "0 0 1 6 *", "start": SOON, "end": SOON + timedelta(days=30)},
            "'0 0 1 6 .*' never fires from 2030-01-02T00:00:00.00:00 to 2030-02-01",
        ),
        ({"max_fires": 0}, "max_fires must be an integer from 1 to 2147483647, not 0"),
        ({"enabled": "yes"}, "enabled must be True or False"),
        ({"misfire": "all"}, "needs a misfire_limit"),
        ({"overlap": "perhaps"}, "overlap must be one of"),
        ({"repeat": 3}, "unknown option 'repeat'"),
        ({"expression": Cron("@daily"), "tz": "UTC"}, "the Cron says tz itself"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_at_the_call(definition: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidJob, match=says):
        definition.schedule(**{"expression": "@daily", "name": NAME, **options})


def test_a_preview_from_an_instant_without_a_time_zone_is_refused(definition: Any) -> None:
    for expression in ("@hourly", "every 2 hours"):
        with pytest.raises(ValueError, match="give it a time zone"):
            definition.schedule(expression, name=NAME).next_fires(after=datetime(2030, 1, 2))


@pytest.mark.parametrize("options", [{"delay": 5}, {"bypass": True}, {"run_at": SOON}])
def test_options_that_contradict_a_schedule_are_refused(definition: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="makes no sense"):
        definition.using(**options).schedule("@daily", name=NAME)


def test_a_schedule_takes_a_cron_from_code(definition: Any) -> None:
    nightly = Cron("0 3 * * *", tz="Asia/Tokyo", misfire="all", misfire_limit=3)
    made = definition.schedule(nightly, name=NAME).register(7)
    assert (made.declared_expression, made.declared_zone, made.misfire) == ("0 3 * * *", "Asia/Tokyo", "all(3)")
    whole = Cron("0 3 * * *", definition.bind(7), name="alone")
    with pytest.raises(InvalidJob, match="'alone' has a call of its own"):
        definition.schedule(whole, name=NAME)


@pytest.mark.django_db(transaction=True)
def test_all_of_it_from_asynchronous_code(definition: Any) -> None:
    async def make() -> list[Any]:
        made = await definition.schedule("@daily", name=NAME).aregister(7)
        again = await definition.using(priority=3).schedule("@daily", name=NAME).aregister(7)
        row = await CronEntry.objects.aget(pk=NAME)
        return [made.written, again.written, await row.aremove(by="ann"), await CronEntry.objects.all().aremove()]

    assert async_to_sync(make)() == ["created", "changed", 1, 0]


# Bounds


def test_nothing_fires_before_the_start_nor_after_the_end(raw: RawDatabase, definition: Any) -> None:
    """Both included; after its end it is no longer looked at."""
    last = latest(raw)
    schedule(definition, misfire="all", misfire_limit=50, start=last - 30 * MINUTE, end=last - 10 * MINUTE)
    put(raw, NAME, created_at=ago(raw, hours=5), in_force_since=None)
    for _ in range(4):
        tick(raw)
    assert fires() == [last - 30 * MINUTE, last - 20 * MINUTE, last - 10 * MINUTE]
    row = entry(NAME)
    assert (row.status, row.next_fire_at, row.next_fires()) == ("ended", None, [])
    assert firing.list_crons(raw, everything=False) == []


def test_the_statement_itself_keeps_the_bounds(
    raw: RawDatabase, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that read the row before they changed fires nothing outside; the sabotaged twins do."""
    last = latest(raw)
    columns: dict[str, Any] = {
        "starts_at": last + MINUTE, "ends_at": last - MINUTE, "max_fires": 0, "enabled": False,
        "paused_at": last, "missing_since": last,
    }  # fmt: skip
    whole = statement("fire_cron")
    for number, (column, value) in enumerate(columns.items()):
        name = f"bound:{number}"
        if column == "missing_since":
            declare(raw, name)
        else:
            schedule(definition, name=name)
        [read] = firing.list_crons(raw, everything=False)
        put(raw, name, **{column: value})
        assert firing.fire_cron(raw, read, [last], None, notify=False) == [], column
        lines = [line for line in whole.splitlines() if not re.search(rf"^AND .*e\.{column}\b", line)]
        assert len(lines) == len(whole.splitlines()) - 1
        monkeypatch.setattr(sql, "statement", {"fire_cron": "\n".join(lines)}.__getitem__)
        assert firing.fire_cron(raw, read, [last], None, notify=False) != [], column
        monkeypatch.undo()
        put(raw, name, enabled=False)


def test_it_makes_no_more_fires_than_it_may(raw: RawDatabase, definition: Any) -> None:
    """Counted since its timing last changed, whatever changed besides."""
    last = latest(raw)
    schedule(definition, misfire="all", misfire_limit=50, max_fires=3)
    put(raw, NAME, created_at=ago(raw, hours=5))
    firer = Firer()
    for _ in range(3):
        firer(raw)
    assert (len(fires()), entry(NAME).status, entry(NAME).next_fires()) == (3, "ended", [])
    assert schedule(definition, misfire="once", max_fires=3).fires_made == 3
    firer(raw)
    assert len(fires()) == 3
    row = schedule(definition, misfire="once", max_fires=4)
    assert (row.fires_made, row.status, len(row.next_fires(9))) == (0, "on", 4)
    firer(raw)
    assert entry(NAME).next_fire_at == last + 10 * MINUTE


def test_a_schedule_that_is_off_does_not_fire_and_forgets_what_it_missed(raw: RawDatabase, definition: Any) -> None:
    """An operator's pause is another thing: registering does not end it."""
    assert schedule(definition, enabled=False).status == "off"
    put(raw, NAME, created_at=ago(raw, hours=5))
    firer = Firer()
    firer(raw)
    entry(NAME).pause(by="ann")
    assert schedule(definition).status == "paused"
    firer(raw)
    entry(NAME).resume()
    firer(raw)
    assert (fires(), entry(NAME).next_fire_at) == ([], latest(raw) + 10 * MINUTE)


def test_what_may_not_fire_is_put_aside_until_that_changes(raw: RawDatabase, definition: Any) -> None:
    """Paused, off, missing or used up: nobody reads them again and again; a pause that ends by itself is seen."""
    for number, expression in enumerate(["*/10 * * * *"] * 4):
        schedule(definition, expression, name=f"many:{number}")
    declare(raw, "code")
    put(raw, "many:0", paused_at=ago(raw))
    put(raw, "many:1", paused_at=ago(raw), paused_until=ago(raw, hours=-1), next_fire_at=ago(raw, minutes=5))
    put(raw, "many:2", enabled=False)
    put(raw, "many:3", max_fires=1, fires_made=1)
    put(raw, "code", missing_since=ago(raw))
    assert len(firing.shelve_crons(raw, seconds=3600)) == 5
    assert firing.shelve_crons(raw, seconds=3600) == []
    assert entry("many:1").check_at == entry("many:1").paused_until
    tick(raw)
    assert not CronEntry.objects.exclude(next_fire_at=None).exists()
    for name in ("many:0", "many:1"):
        entry(name).resume()
    schedule(definition, name="many:2", enabled=True)
    schedule(definition, name="many:3", max_fires=2)
    firing.refresh_crons(raw, ["code"], fresh_seconds=0)
    tick(raw)
    assert CronEntry.objects.exclude(next_fire_at=None).count() == 5


# Removing


def test_a_schedule_is_removed_and_its_jobs_stay(raw: RawDatabase, definition: Any) -> None:
    """A26: cancel by its name; it fires no more, also if the leader has just read it."""
    schedule(definition)
    put(raw, NAME, created_at=ago(raw, hours=1))
    [read] = firing.list_crons(raw, everything=False)
    entry(NAME).run_now()
    assert entry(NAME).remove() == 1
    assert firing.fire_cron(raw, read, [latest(raw)], None, notify=False) == []
    tick(raw)
    assert (CronEntry.objects.count(), Job.objects.count()) == (0, 1)


def test_what_code_declares_is_not_removed_but_what_it_no_longer_declares_is(raw: RawDatabase, definition: Any) -> None:
    schedule(definition)
    declare(raw, "code")
    with pytest.raises(InvalidJob, match="Nothing is deleted: code declares 'code', and would declare it again"):
        CronEntry.objects.all().remove()
    assert CronEntry.objects.count() == 2
    put(raw, "code", missing_since=ago(raw))
    assert CronEntry.objects.all().remove() == 2


def test_a_row_is_registered_anew_instead_of_overridden(definition: Any) -> None:
    with pytest.raises(InvalidJob, match="was made at run time: no code declares values to override"):
        schedule(definition).override(expression="@daily")


# Broken and mended


def confirm(raw: RawDatabase, leader: Leader | None = None) -> None:
    """Look as a worker that has just started."""
    CronRows(leader or Leader(OTHER)).tick(raw)


def deploy(func: Callable[..., None] | None) -> None:
    """Be a process with other code."""
    registry._by_name.clear()
    if func is not None:
        job(name="shop.report", queue="slow", schedulable=True)(func)


def test_a_schedule_is_never_missing(raw: RawDatabase, definition: Any) -> None:
    schedule(definition)
    put(raw, NAME, declared_at=ago(raw, days=3), missing_since=None)
    MarkMissing()(on("default"))
    assert entry(NAME).missing_since is None
    put(raw, NAME, missing_since=ago(raw), created_at=ago(raw, hours=1))
    assert entry(NAME).status == "on", "a worker of an older version marked it"
    tick(raw)
    assert Job.objects.count() == 1


def test_arguments_that_do_not_fit_new_code_break_it_at_once_and_fitting_code_mends_it(
    raw: RawDatabase, definition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker that starts with the new code finds it; the leader does not fire it meanwhile."""
    caplog.set_level(logging.INFO)
    schedule(definition)
    put(raw, NAME, created_at=ago(raw, hours=1))
    deploy(wider)
    confirm(raw)
    reason = "its arguments do not fit its job shop.report: The stored arguments do not fit: shop.report() missing 1 "
    assert entry(NAME).broken.startswith(reason)
    assert (entry(NAME).status, "'language'" in entry(NAME).broken) == ("broken", True)
    for _ in range(2):
        tick(raw)
        confirm(raw)
    assert Job.objects.count() == 0
    assert caplog.text.count("cron entry is broken") == 1
    deploy(report)
    confirm(raw)
    assert (entry(NAME).broken, "cron entry is mended cron=report:acme" in caplog.text) == ("", True)
    tick(raw)
    assert fires() == [latest(raw)], "as after an outage"


def test_a_job_that_no_worker_knows_breaks_it_and_the_next_deploy_mends_it(
    raw: RawDatabase, definition: Any, time: Callable[[float], None]
) -> None:
    """As the leader sees it, once nobody has confirmed the job for minutes: another application may know it."""
    schedule(definition)
    confirm(raw)
    deploy(None)
    leader = Leader(AUTHOR)
    leader.tick(raw)
    rows = CronRows(leader)
    rows.tick(raw)
    assert entry(NAME).broken == ""
    raw.query("UPDATE pgjobs_known_job SET confirmed_at = confirmed_at - interval '301 seconds'")
    time(cron_declaring.SYNC_SECONDS)
    leader.tick(raw)
    rows.tick(raw)
    assert entry(NAME).broken == "", "it is new: workers with its code may start"
    put(raw, NAME, declared_at=ago(raw, seconds=301))
    CronRows(Leader(OTHER)).tick(raw)
    assert entry(NAME).broken == "", "only the leader says so"
    time(cron_declaring.SYNC_SECONDS)
    leader.tick(raw)
    rows.tick(raw)
    assert entry(NAME).broken == "no worker's code knows its job shop.report"
    tick(raw)
    assert entry(NAME).status == "broken"
    deploy(report)
    confirm(raw)
    assert entry(NAME).broken == ""


@pytest.mark.parametrize(("seconds", "broken"), [(43_200, False), (86_401, True)])
def test_in_one_of_many_schemas_a_job_is_unknown_after_a_day(
    raw: RawDatabase, definition: Any, seconds: int, broken: bool
) -> None:
    """Workers of two deployments visit it in turns, each after five minutes, and lead there."""
    schedule(definition)
    confirm(raw)
    deploy(None)
    raw.query("UPDATE pgjobs_known_job SET confirmed_at = confirmed_at - make_interval(secs => %s)", [seconds])
    put(raw, NAME, declared_at=ago(raw, seconds=seconds))
    leader = Leader(AUTHOR)
    leader.tick(raw)
    with override_settings(PGJOBS={"SCHEMAS": lambda: ["tenant"]}):
        CronRows(leader).tick(raw)
    assert bool(entry(NAME).broken) is broken


def test_old_workers_do_not_undo_what_the_newest_code_says(
    raw: RawDatabase, definition: Any, time: Callable[[float], None]
) -> None:
    """Beside a deploy; but once no worker with the newest code is left, the old ones count again."""
    schedule(definition)
    old = CronRows(Leader(OTHER))
    old.tick(raw)
    deploy(wider)
    confirm(raw)
    deploy(report)
    time(cron_declaring.SYNC_SECONDS)
    old.tick(raw)
    assert entry(NAME).broken
    raw.query("UPDATE pgjobs_known_job SET confirmed_at = confirmed_at - interval '301 seconds'")
    time(cron_declaring.SYNC_SECONDS)
    old.tick(raw)
    assert entry(NAME).broken == ""


def test_an_old_worker_that_becomes_the_leader_does_not_undo_what_the_newest_code_says(
    raw: RawDatabase, definition: Any
) -> None:
    """The leader drains first at a deploy, so an old worker is often elected beside new ones."""
    deploy(wider)
    newest: Any = registry.find("shop.report")
    newest.schedule("@hourly", name=NAME).register(tenant_id=7, language="en")
    CronRows(Leader(OTHER)).tick(raw)
    deploy(report)
    leader = Leader(AUTHOR)
    old = CronRows(leader)
    old.started = True
    leader.tick(raw)
    assert leader.leads
    old.tick(raw)
    assert entry(NAME).broken == ""


def test_many_schedules_are_checked_in_turns(
    raw: RawDatabase, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        schedule(definition, name=f"many:{number}")
    deploy(wider)
    monkeypatch.setattr(cron_declaring, "BATCH", 2)
    monkeypatch.setattr(cron_declaring, "TURN_SECONDS", 0.0)
    rows = CronRows(Leader(OTHER))
    counts = []
    for _ in range(4):
        rows.tick(raw)
        counts.append(CronEntry.objects.exclude(broken="").count())
    assert counts == [2, 4, 6, 7]


@pytest.mark.parametrize("changed", ["fingerprint", "declared_payload"])
def test_a_judgement_of_a_schedule_that_has_changed_meanwhile_is_dropped(
    raw: RawDatabase, definition: Any, changed: str
) -> None:
    schedule(definition)
    [read] = scheduling.list_unchecked_crons(raw, "shop.report", "other", most=10)
    put(raw, NAME, **{changed: "[]"})
    assert scheduling.judge_crons(raw, "shop.report", "other", [(read, "bad")]) == []
    assert entry(NAME).broken == ""
    [read] = scheduling.list_unchecked_crons(raw, "shop.report", "other", most=10)
    assert scheduling.judge_crons(raw, "shop.report", "other", [(read, "bad")]) == [(NAME, "bad")]


# Beside others


def test_ten_evaluators_make_one_fire(
    raw: RawDatabase, definition: Any, db_connection: Callable[..., RawDatabase], background: Background
) -> None:
    """W46: as of entries that code declares."""
    schedule(definition, max_fires=5)
    put(raw, NAME, created_at=latest(raw) - MINUTE)
    firers = [background(Firer(), db_connection()) for _ in range(10)]
    for one in firers:
        one.result(patience(10))
    assert (len(fires()), entry(NAME).fires_made) == (1, 1)


def test_two_who_register_one_name_at_once_make_one_row(
    raw: RawDatabase, definition: Any, db_connection: Callable[..., RawDatabase], background: Background
) -> None:
    """The second waits for the first, and then changes it or leaves it."""
    schedule(definition, name="other")
    raw.query("DELETE FROM pgjobs_cron_entry WHERE name = 'other'")
    row = definition.schedule("@daily", name=NAME)._row((7,), {})
    first, second, third = db_connection(autocommit=False), db_connection(), db_connection()
    assert scheduling.put_cron(first, row) is True
    assert scheduling.put_cron(third, row._replace(name="another")) is True, "nobody waits for another name"
    waiting = background(scheduling.put_cron, second, row)
    first.commit()
    assert waiting.result(patience(10)) is None
    assert CronEntry.objects.filter(pk=NAME).count() == 1


def test_a_row_that_somebody_holds_is_not_waited_for(raw: RawDatabase, definition: Any, other: RawDatabase) -> None:
    """Rescue shares this thread."""
    schedule(definition)
    deploy(wider)
    other.query("BEGIN")
    other.query("SELECT name FROM pgjobs_cron_entry FOR UPDATE")
    raw.query("SET lock_timeout = '100ms'")
    confirm(raw)
    firing.shelve_crons(raw, seconds=1)
    scheduling.orphan_crons(raw, "shop.report", "bad", older_seconds=-1, most=5)
    other.rollback()
    assert entry(NAME).broken == ""


def test_the_row_reads_back_as_it_was_written(definition: Any) -> None:
    """To change a part of it in the admin or the shell."""
    bound = definition.using(queue="mail", priority=5, unique="k1", tags=["acme"], description="mine")
    made = bound.schedule("every 2 days", name=NAME, misfire="all", misfire_limit=2, max_fires=9).register(7, kind="x")
    assert read_back(made).write().written == "unchanged"
    reading = read_back(made)
    reading.options["priority"] = 6
    assert reading.write().written == "changed"
    assert entry(NAME).declared_options == {**made.declared_options, "priority": 6}
    assert cast("Any", read_back(entry(NAME))).kwargs == {"kind": "x"}


def test_only_jobs_that_code_exposes_are_read_back(raw: RawDatabase, definition: Any) -> None:
    hidden = job(name="shop.hidden")(wider)
    made = hidden.schedule("@daily", name="hidden").register(1, "en")
    with pytest.raises(InvalidJob, match=r"People may not schedule job 'shop.hidden': declare it .* shop.report\."):
        read_back(made)
    declare(raw, "code")
    with pytest.raises(InvalidJob, match="'code' is declared by code: change it there, or override it"):
        read_back(entry("code"))


def test_the_next_fire_comes_after_the_end_of_the_job_by_after_completion(raw: RawDatabase, definition: Any) -> None:
    """A24 A25: every ten minutes with a job of fifteen is every twenty; after success and after abandonment."""
    schedule(definition, overlap="after_completion")
    for outcome in ("succeeded", "abandoned"):
        put(raw, NAME, created_at=ago(raw, hours=2), in_force_since=None, last_fire_at=None, last_job_id=None)
        put(raw, NAME, next_fire_at=None)
        tick(raw)
        made = Job.objects.latest("pk")
        put(raw, NAME, last_fire_at=latest(raw) - 20 * MINUTE)
        tick(raw)
        assert Job.objects.latest("pk") == made, "it is not finished"
        raw.query(
            "UPDATE pgjobs_job SET outcome = %s, finished_at = %s WHERE id = %s",
            [outcome, latest(raw) - 5 * MINUTE, made.pk],
        )
        tick(raw)
        assert Job.objects.latest("pk").fire_at == latest(raw)
        raw.query("UPDATE pgjobs_job SET outcome = 'succeeded', finished_at = now() WHERE finished_at IS NULL")


def test_each_fire_has_all_its_attempts_and_stopping_ends_it(raw: RawDatabase, definition: Any) -> None:
    """A27 A53 A55: whatever became of the last job; cancelled by the schedule's name while its job waits."""
    definition.using(max_attempts=3).schedule("*/10 * * * *", name=NAME, tz="UTC").register(7)
    for _ in range(2):
        put(raw, NAME, created_at=ago(raw, hours=1), last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
        tick(raw)
        raw.query("UPDATE pgjobs_job SET attempt = 2")
    put(raw, NAME, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
    tick(raw)
    made = Job.objects.latest("pk")
    assert (made.attempt, made.max_attempts) == (0, 3)
    assert entry(NAME).stop(by="ann").changed == 3
    put(raw, NAME, last_fire_at=latest(raw) - 10 * MINUTE, next_fire_at=None)
    tick(raw)
    assert Job.objects.count() == 3
