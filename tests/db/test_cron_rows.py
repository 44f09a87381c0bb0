"""Schedules made at run time: registered by name, removed, and read back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import transaction

from django_pgjobs import Cron, job
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.maintenance import cron_declaring
from django_pgjobs.maintenance.cron_declaring import CronSync, declared_for
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import Action, CronEntry, Job
from django_pgjobs.schedules import read_back
from django_pgjobs.steering import crons as steering_rows
from django_pgjobs.store import firing, scheduling
from tests.db.cron_ground import MINUTE, ago, declare, entry, latest, put, tick
from tests.db.cron_rows_ground import NAME, OTHER, definition, schedule, wider
from tests.plugins.fix_db import Background, RawDatabase, patience

__all__ = ["definition"]

pytestmark = pytest.mark.usefixtures("no_other_entries", "steady")

SOON = datetime(2030, 1, 2, tzinfo=UTC)


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


# Read back


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
