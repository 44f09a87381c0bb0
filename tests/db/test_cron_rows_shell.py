"""Schedules made in the shell: ``pgjobs crons add``, ``change`` and ``delete``."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command

from django_pgjobs import Cron, job
from django_pgjobs.management import crons
from django_pgjobs.models import Action, CronEntry
from django_pgjobs.schedules import read_back, schedulable
from django_pgjobs.store import firing, scheduling
from django_pgjobs.store.database import on
from tests.plugins.fix_db import RawDatabase

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_other_entries")]
NAME = "report:acme"
ADD = ("add", NAME, "--job", "shop.report", "--tz", "Europe/Berlin")


def report(tenant_id: int, kind: str = "daily") -> None: ...


@pytest.fixture(autouse=True)
def definition(no_other_entries: None) -> Any:
    return job(name="shop.report", queue="slow", schedulable=True)(report)


def pgjobs(*arguments: object) -> str:
    out = StringIO()
    call_command("pgjobs", "crons", *map(str, arguments), stdout=out, stderr=out)
    return out.getvalue()


def wrong(*arguments: object) -> tuple[str, int]:
    with pytest.raises(CommandError) as caught:
        pgjobs(*arguments)
    return str(caught.value), caught.value.returncode


def entry() -> CronEntry:
    return CronEntry.objects.get(pk=NAME)


def test_a_schedule_is_added_changed_and_deleted(definition: Any) -> None:
    """A26: with a preview each time, and what nobody names stays."""
    text = pgjobs(*ADD, "--every", "2 weeks", "--anchor", "2026-01-05 07:00", "--kwargs", '{"tenant_id": 7}',
                  "--priority", 5, "--end", "2099-06-01", "--max-fires", 9,
                  "--by", "ann", "--reason", "asked")  # fmt: skip
    assert text.splitlines()[:2] == [
        f"{NAME}: created",
        "Every 2 weeks at 07:00 by the clocks of Europe/Berlin, counted from Monday, 5 January 2026.",
    ]
    assert len(text.splitlines()) == 5
    row = entry()
    assert (row.declared_payload, row.max_fires) == ({"args": [], "kwargs": {"tenant_id": 7}}, 9)
    assert (row.declared_options["queue"], row.declared_options["priority"]) == ("slow", 5)
    pgjobs("change", NAME, "--every", "3 weeks")
    assert entry().declared_expression == "every 3 weeks from 2026-01-05 07:00"
    pgjobs("change", NAME, "--anchor", "2026-01-06 08:00")
    assert entry().declared_expression == "every 3 weeks from 2026-01-06 08:00"
    told = json.loads(pgjobs("change", NAME, "--expression", "0 7 * * 1", "--disabled", "--max-fires", "none",
                             "--format", "json"))  # fmt: skip
    assert (told["written"], told["status"], len(told["next"])) == ("changed", "off", 3)
    row = entry()
    assert (row.declared_expression, row.declared_zone, row.max_fires) == ("0 7 * * 1", "Europe/Berlin", None)
    assert (row.ends_at and row.ends_at.year, row.declared_payload["kwargs"]) == (2099, {"tenant_id": 7})
    assert pgjobs("change", NAME).startswith(f"{NAME}: unchanged")
    pgjobs(
        "change", NAME, "--misfire", "all", "--misfire-limit", 3, "--queue", "mail", "--args", "[8]", "--kwargs", "{}"
    )
    pgjobs("change", NAME, "--misfire", "skip", "--enabled")
    row = entry()
    assert (row.misfire, row.declared_options["queue"], row.status) == ("skip", "mail", "on")
    assert row.declared_payload == {"args": [8], "kwargs": {}}
    assert pgjobs("delete", NAME, "--by", "eve") == "1 cron entry deleted\n"
    first, *_, last = Action.objects.order_by("pk")
    assert (first.verb, first.via, first.acted_by, first.reason) == ("add", "shell", "ann", "asked")
    assert (last.verb, last.via, last.acted_by, last.subject) == ("delete", "shell", "eve", NAME)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*ADD, "--expression", "0 0 31 4 *"), "never fires"),
        ((*ADD, "--every", "0 minutes"), "an interval must be whole seconds"),
        ((*ADD, "--expression", "@daily"), "missing 1 required positional argument: 'tenant_id'"),
        ((*ADD, "--every", "1 day", "--args", "[1]", "--start", "2030-01-02", "--end", "2030-01-01"), "must be after"),
        (("add", NAME, "--job", "shop.reprot", "--expression", "@daily"), "People may not schedule job 'shop.reprot'"),
        (("add", NAME, "--job", "shop.hidden", "--expression", "@daily"), "Those they may: shop.report."),
        (("add", "code", "--job", "shop.report", "--expression", "@daily"), "There is a cron entry code: change it"),
        (("change", "code", "--priority", "3"), "'code' is declared by code: change it there, or override it"),
        (("delete", "code"), "Nothing is deleted: code declares 'code'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence_and_changes_nothing(
    definition: Any, arguments: tuple[str, ...], says: str
) -> None:
    job(name="shop.hidden")(report)
    declared = Cron("@daily", definition.bind(1), name="code")
    firing.declare_cron(on("default"), declared.declared(), overwrite=True, fresh_seconds=0)
    text, status = wrong(*arguments)
    assert (says in text, status, "\n" in text) == (True, 2, False), text
    assert (CronEntry.objects.count(), Action.objects.count()) == (1, 0)


def test_a_name_that_there_is_not_is_told(definition: Any) -> None:
    for verb in ("change", "delete"):
        assert wrong(verb, "nobody") == ("There is no cron entry nobody.", 1)


@pytest.mark.parametrize("arguments", [("--args", "{}"), ("--kwargs", "7"), ("--kwargs", "{"), ("--priority", "high")])
def test_what_is_no_json_is_wrong_usage(arguments: tuple[str, str]) -> None:
    assert "must be a" in wrong(*ADD, "--expression", "@daily", *arguments)[0]
    assert CronEntry.objects.count() == 0


def test_the_list_is_of_entries_whose_names_begin_so(definition: Any) -> None:
    for name in (NAME, "report:zeta", "other"):
        definition.schedule("@daily", name=name).register(7)
    told = json.loads(pgjobs("list", "--prefix", "report:", "--format", "json"))["crons"]
    assert [(row["name"], row["origin"]) for row in told] == [(NAME, "row"), ("report:zeta", "row")]
    assert set(json.loads(pgjobs("next", "--prefix", "oth", "--format", "json"))["next"]) == {"other"}


@pytest.mark.django_db(transaction=True)
def test_nobody_changes_a_schedule_between_what_a_change_reads_and_what_it_writes(
    raw: RawDatabase, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody names stays: it must not be what somebody else has replaced meanwhile."""
    pgjobs(*ADD, "--expression", "@daily", "--kwargs", '{"tenant_id": 7}')

    def then_changed(row: CronEntry) -> Any:
        reading = read_back(row)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            raw.query("UPDATE pgjobs_cron_entry SET max_fires = 5")
        return reading

    raw.query("SET lock_timeout = '50ms'")
    monkeypatch.setattr(crons, "read_back", then_changed)
    assert pgjobs("change", NAME, "--end", "2099-06-01").startswith(f"{NAME}: changed")


@pytest.mark.django_db(transaction=True)
def test_an_addition_changes_nothing_that_somebody_else_has_just_added(
    raw: RawDatabase, definition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = definition.schedule("@hourly", name=NAME).check(tenant_id=1)

    def then_added(name: str) -> Any:
        assert scheduling.put_cron(raw, theirs)
        return schedulable(name)

    monkeypatch.setattr(crons, "schedulable", then_added)
    text, code = wrong(*ADD, "--expression", "@daily", "--kwargs", '{"tenant_id": 7}')
    assert (text, code) == (f"There is a cron entry {NAME}: change it, or choose another name.", 2)
    assert (entry().declared_expression, Action.objects.count()) == ("@hourly", 0)
