"""Schedules in the admin: made, previewed, changed and deleted by form, each with its permission."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.forms import Textarea
from django.test import Client

from django_pgjobs import Cron, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Action, CronEntry, Job
from django_pgjobs.store import firing
from django_pgjobs.store.database import on
from tests.plugins.fix_admin import html

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_other_entries")]
LIST = "/admin/pgjobs/cronentry/"
NAME = "report:acme"
PAGE = f"{LIST}report_3Aacme/change/"
EDIT = f"{LIST}report_3Aacme/schedule/"
GIVEN = {
    "name": NAME, "expression": "0 7 * * 1", "tz": "Europe/Berlin", "misfire": "once", "overlap": "allow",
    "enabled": "on", "argument_tenant_id": "7", "argument_kind": "", "argument_more": '{"depth": 2}',
}  # fmt: skip


def report(tenant_id: int, kind: str = "daily", **more: Any) -> None: ...


def noting(tenant_id: int, kind: str = "daily", note: Any = "none") -> None: ...


def by_position(a: int, b: int = 5, *rest: int) -> None: ...


def other(a: int, /, b: list[int], *rest: int, token: str = "") -> None: ...


@pytest.fixture(autouse=True)
def definition(no_other_entries: None) -> Any:
    return job(name="shop.report", queue="slow", schedulable=True)(report)


def client_with(*permissions: str) -> Client:
    user = User.objects.create_user("anna", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="pgjobs", codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def entry() -> CronEntry:
    return CronEntry.objects.get(pk=NAME)


def steer(verb: str) -> str:
    return PAGE.replace("change/", f"steer/{verb}/")


def test_a_schedule_is_previewed_made_changed_and_deleted(root: Client) -> None:
    """Recorded with who, what and where; a preview saves nothing."""
    text = html(root.post(f"{LIST}add/", {**GIVEN, "_preview": "1"}))
    assert ("nothing is saved yet" in text, text.count("<li><time datetime=")) == (True, 10)
    assert CronEntry.objects.count() == 0
    assert root.post(f"{LIST}add/", {**GIVEN, "_save": "1"}).status_code == 302
    row = entry()
    assert row.declared_payload == {"args": [], "kwargs": {"tenant_id": 7, "depth": 2}}
    assert (row.declared_expression, row.declared_zone, row.declared_options["queue"]) == (
        "0 7 * * 1", "Europe/Berlin", "slow",
    )  # fmt: skip
    shown = html(root.get(EDIT))
    assert ('value="0 7 * * 1"' in shown, 'value="7"' in shown, "&quot;depth&quot;" in shown) == (True, True, True)
    changes = {"expression": "every 2 weeks", "start": "2030-01-05 07:00", "max_fires": "9", "priority": "3"}
    del_name = {key: value for key, value in GIVEN.items() if key != "name"}
    assert root.post(EDIT, {**del_name, **changes, "reason": "less often"}).status_code == 302
    row = entry()
    assert (row.declared_expression, row.max_fires, row.declared_options["priority"]) == ("every 2 weeks", 9, 3)
    text = html(root.get(PAGE))
    assert ("less often" in text, "0 / 9" in text, "expression: 0 7 * * 1 → every 2 weeks" in text) == (
        True,
        True,
        True,
    )
    assert "id_expression" not in text, "a row has no overrides"
    assert root.post(steer("remove"), {"reason": "gone"}).url == LIST  # type: ignore[attr-defined]
    assert CronEntry.objects.count() == 0
    told = Action.objects.order_by("pk").values_list("verb", "via", "reason")
    assert list(told) == [("add", "admin", ""), ("change", "admin", "less often"), ("delete", "admin", "gone")]
    assert LogEntry.objects.count() == 3
    assert LogEntry.objects.latest("pk").action_flag == DELETION


def test_a_change_of_something_else_keeps_its_bounds_and_the_fires_it_has_made(root: Client, definition: Any) -> None:
    """The form shows whole seconds; a schedule whose bounds change starts anew."""
    start = datetime(2026, 11, 1, 8, 30, 15, 123456, tzinfo=UTC)
    bound = definition.schedule("@hourly", name=NAME, start=start, end=start + timedelta(days=36_500), max_fires=10)
    bound.register(tenant_id=7)
    CronEntry.objects.update(fires_made=9)
    given = submitted(root.get(EDIT), priority="5")
    assert html(root.post(EDIT, {**given, "_preview": "1"})).count("<li><time datetime=") == 1
    assert root.post(EDIT, given).status_code == 302
    row = entry()
    assert (row.declared_options["priority"], row.starts_at, row.fires_made) == (5, start, 9)
    other = {**given, "max_fires": "11"}
    assert html(root.post(EDIT, {**other, "_preview": "1"})).count("<li><time datetime=") == 10
    assert root.post(EDIT, other).status_code == 302
    assert (entry().max_fires, entry().fires_made) == (11, 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"expression": "0 0 31 4 *"}, "never fires: no such date exists"),
        ({"expression": "every 0 minutes"}, "an interval must be whole seconds"),
        ({"tz": "Mars"}, "there is no time zone"),
        ({"argument_tenant_id": ""}, "This field is required"),
        ({"argument_tenant_id": "seven"}, "Enter a whole number"),
        ({"argument_more": "{"}, "Enter a valid JSON"),
        ({"argument_more": "[1]"}, "more must be a JSON object"),
        ({"argument_more": '{"tenant_id": 8}'}, "more repeats tenant_id"),
        ({"start": "2030-01-02", "end": "2030-01-01"}, "must be after the start"),
        ({"misfire": "all"}, "needs a misfire_limit"),
        ({"name": "code"}, "There is a cron entry of this name"),
        ({"queue": "no such queue"}, "queue"),
    ],
    ids=str,
)
def test_a_form_with_something_wrong_says_so_and_saves_nothing(
    root: Client, definition: Any, changes: dict[str, str], says: str
) -> None:
    declared = Cron("@daily", definition.bind(1), name="code")
    firing.declare_cron(on("default"), declared.declared(), overwrite=True, fresh_seconds=0)
    answer = root.post(f"{LIST}add/", {**GIVEN, **changes})
    assert answer.status_code == 200
    assert (says in html(answer), 'role="alert"' in html(answer)) == (True, True)
    assert (CronEntry.objects.count(), Action.objects.count()) == (1, 0)


def test_the_job_is_chosen_first_where_there_are_several(root: Client) -> None:
    job(name="shop.other", schedulable=True, sensitive=["token"])(other)
    text = html(root.get(f"{LIST}add/"))
    assert ("?job=shop.report" in text, "?job=shop.other" in text, "id_expression" in text) == (True, True, False)
    given = {**GIVEN, "argument_a": "1", "argument_b": "[2]", "argument_rest": "[3, 4]", "argument_token": "hunter2"}
    assert root.post(f"{LIST}add/?job=shop.other", given).status_code == 302
    assert entry().declared_payload == {"args": [1, [2], 3, 4], "kwargs": {"token": "hunter2"}}


def test_each_action_has_its_permission(definition: Any) -> None:
    """Who may only look sees no button; who may add may not delete."""
    looking = client_with("view_cronentry")
    definition.schedule("@daily", name=NAME).register(7)
    assert looking.get(f"{LIST}add/").status_code == 403
    assert looking.get(EDIT).status_code == 403
    text = html(looking.get(PAGE))
    assert ("pgjobs-change" in text, "pgjobs-remove" in text, "pgjobs-pause" in text) == (False, False, False)
    user = User.objects.get(username="anna")
    user.user_permissions.add(*Permission.objects.filter(codename__in=["add_cronentry", "run_cronentry"]))
    assert looking.get(f"{LIST}add/").status_code == 200
    assert [looking.post(steer("remove")).status_code, looking.post(steer("pause")).status_code] == [403, 302]
    user.user_permissions.add(*Permission.objects.filter(codename__in=["change_cronentry", "delete_cronentry"]))
    text = html(looking.get(PAGE))
    assert ("pgjobs-change" in text, "pgjobs-remove" in text) == (True, True)
    assert looking.get(EDIT).status_code == 200


def test_sensitive_arguments_stay_as_they_are_for_who_may_not_see_them(definition: Any) -> None:
    hidden = job(name="shop.other", schedulable=True, sensitive=["token"])(other)
    hidden.schedule("@daily", name=NAME).register(1, [2], token="hunter2")
    client = client_with("view_cronentry", "change_cronentry")
    assert "hunter2" not in html(client.get(EDIT))
    given = {key: value for key, value in GIVEN.items() if not key.startswith(("argument_", "name"))}
    assert client.post(EDIT, given).status_code == 302
    row = entry()
    assert (row.declared_expression, row.declared_payload["kwargs"]) == ("0 7 * * 1", {"token": "hunter2"})


def test_what_code_declares_or_does_not_expose_is_not_changed_by_form(root: Client, definition: Any) -> None:
    job(name="shop.hidden")(other).schedule("@daily", name=NAME).register(1, [2])
    answer = root.get(EDIT, follow=True)
    assert "People may not schedule job" in html(answer)
    assert root.get(f"{LIST}nobody/schedule/").status_code == 302
    assert root.post(steer("remove")).status_code == 302
    declared = Cron("@daily", definition.bind(1), name=NAME)
    firing.declare_cron(on("default"), declared.declared(), overwrite=True, fresh_seconds=0)
    assert "pgjobs-remove" not in html(root.get(PAGE))
    assert "Nothing is deleted" in html(root.post(steer("remove"), follow=True))


def test_nobody_adds_where_code_exposes_no_job(root: Client, definition: Any) -> None:
    registry._by_name.clear()
    assert f"{LIST}add/" not in html(root.get(LIST))
    assert root.get(f"{LIST}add/").status_code == 403


def test_the_page_shows_the_latest_ten_jobs_and_the_list_finds_by_how_a_name_begins(
    root: Client, definition: Any
) -> None:
    made = definition.schedule("@daily", name=NAME).register(7)
    definition.schedule("@daily", name="other:acme").register(7)
    jobs = [made.run_now() for _ in range(12)]
    text = html(root.get(PAGE))
    assert [f"/job/{one.pk}/change/" in text for one in jobs] == [False, False] + [True] * 10
    assert Job.objects.filter(cron_entry=NAME).count() == 12
    text = html(root.get(LIST, {"q": "report:"}))
    assert (NAME in text, "other:acme" in text) == (True, False)
    assert "other:acme" in html(root.get(LIST, {"q": "shop.rep"}))


@pytest.mark.parametrize(
    ("columns", "word"),
    [({"enabled": False}, "off"), ({"max_fires": 1, "fires_made": 1}, "ended"), ({"broken": "bad"}, "broken")],
)
def test_the_page_says_how_a_row_stands(root: Client, definition: Any, columns: dict[str, Any], word: str) -> None:
    definition.schedule("@daily", name=NAME).register(7)
    CronEntry.objects.filter(pk=NAME).update(**columns)
    text = html(root.get(PAGE))
    assert f">{word}<" in text
    assert ("or deploy code that fits it" in text) == (word == "broken")


def submitted(answer: Any, **changes: str) -> dict[str, str]:
    """Return what a browser posts of a form: it drops the line breaks of a one-line input."""
    form, given = answer.context["form"], {}
    for name, field in form.fields.items():
        value = form[name].value()
        if value in (None, False):
            continue
        text = "on" if value is True else str(value)
        one_line = not isinstance(field.widget, Textarea)
        given[name] = "".join(text.splitlines()) if one_line else text.replace("\n", "\r\n")
    return {**given, **changes}


@pytest.mark.parametrize(
    "arguments",
    [
        {"tenant_id": 7, "kind": " spaces stay "},
        {"tenant_id": 7, "kind": "two\nlines"},
        {"tenant_id": 7, "kind": ""},
        {"tenant_id": 7, "kind": None},
        {"tenant_id": True, "kind": "plain"},
        {"tenant_id": "7"},
        {"tenant_id": None},
        {"tenant_id": 7, "note": None},
        {"tenant_id": 7, "note": ""},
        {"tenant_id": 7, "note": []},
        {"tenant_id": 7, "note": "x" * 200_000},
        {"tenant_id": 7, "note": date(2026, 11, 23)},
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_form_that_is_saved_as_it_was_shown_keeps_every_argument(root: Client, arguments: dict[str, Any]) -> None:
    """An empty field is left out of the call, so a value that looks empty must not become the default."""
    noted = job(name="shop.noted", schedulable=True)(noting)
    before = noted.schedule("@daily", name=NAME).register(**arguments)
    assert root.post(EDIT, submitted(root.get(EDIT), expression="@hourly")).status_code == 302
    after = entry()
    assert (after.declared_expression, after.declared_payload) == ("@hourly", before.declared_payload)


def test_a_value_that_looks_empty_is_given_as_json(root: Client) -> None:
    job(name="shop.other", schedulable=True)(other)
    add = f"{LIST}add/?job=shop.other"
    assert "This field is required" in html(root.post(add, {**GIVEN, "argument_a": "1", "argument_b": ""}))
    assert root.post(add, {**GIVEN, "argument_a": "1", "argument_b": "[]"}).status_code == 302
    assert entry().declared_payload == {"args": [1], "kwargs": {"b": []}}


def test_an_argument_by_position_does_not_slip_into_the_place_of_an_empty_one(root: Client) -> None:
    job(name="shop.by_position", schedulable=True)(by_position)
    add = f"{LIST}add/?job=shop.by_position"
    text = html(root.post(add, {**GIVEN, "argument_a": "1", "argument_rest": "[3]"}))
    assert ("b is empty, but rest comes behind it by position" in text, CronEntry.objects.count()) == (True, 0)
    assert root.post(add, {**GIVEN, "argument_a": "1", "argument_b": "2", "argument_rest": "[3]"}).status_code == 302
    assert entry().declared_payload == {"args": [1, 2, 3], "kwargs": {}}


def test_who_may_only_add_is_not_sent_to_a_page_that_refuses_them(definition: Any) -> None:
    client = client_with("add_cronentry")
    answer = client.post(f"{LIST}add/", GIVEN, follow=True)
    assert (answer.status_code, answer.redirect_chain[-1][0]) == (200, "/admin/")
    assert CronEntry.objects.count() == 1


@pytest.mark.parametrize("each", [True, False])
def test_the_page_says_whether_other_databases_have_the_entry_too(root: Client, definition: Any, each: bool) -> None:
    """Who pauses one pauses that of one database."""
    declared = Cron("0 3 * * *", definition.bind(7), name=NAME, each_database=each).declared()
    firing.declare_cron(on("default"), declared, overwrite=True, fresh_seconds=0)
    assert ("For each database: this is the entry of default" in html(root.get(PAGE))) == each
    assert root.get(LIST).status_code == 200
