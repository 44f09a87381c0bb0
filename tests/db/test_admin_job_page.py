"""The admin's page of one job: what it shows and hides, and what it offers to whom."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_pgjobs import job
from django_pgjobs.admin.actions import ACTIONS
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Attempt, Heartbeat, Job
from tests.plugins.fix_admin import (
    CLAIM,
    LIST,
    WORKER,
    charge,
    client_with,
    html,
    ids_on,
    make,
    make_one_of_each,
    now_plus,
    steer_url,
    user_with,
)
from tests.plugins.shell import printed

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]


# --- the page of a job ---------------------------------------------------------------------------------------------


def test_sensitive_arguments_are_hidden_without_the_permission() -> None:
    row = make(payload={"args": ["4111-secret", 7], "kwargs": {"note": "hello"}})
    text = html(client_with().get(f"{LIST}{row.pk}/change/"))
    assert "4111-secret" not in text
    assert "••••" in text
    assert '<th scope="row">card</th>' in text
    assert "&quot;hello&quot;" in text


def test_sensitive_arguments_are_shown_with_the_permission() -> None:
    row = make(payload={"args": ["4111-secret", 7], "kwargs": {}})
    assert "4111-secret" in html(client_with("view_payload").get(f"{LIST}{row.pk}/change/"))


def test_arguments_of_an_unknown_job_are_hidden_without_the_permission() -> None:
    row = make(name="old.code", payload={"args": ["4111-secret"], "kwargs": {"pw-secret": 1}})
    text = html(client_with().get(f"{LIST}{row.pk}/change/"))
    assert "secret" not in text
    assert "this process does not know the job" in text


def test_arguments_of_an_unknown_job_are_shown_with_the_permission() -> None:
    row = make(name="old.code", payload={"args": ["first"], "kwargs": {"second": 2}})
    text = html(client_with("view_payload").get(f"{LIST}{row.pk}/change/"))
    assert "first" in text
    assert "second" in text


def test_values_are_shown_as_they_were_given(root: Client) -> None:
    row = make(payload={"args": [{"$decimal": "1.10"}, {"$date": "2026-03-29"}], "kwargs": {}})
    text = html(root.get(f"{LIST}{row.pk}/change/"))
    assert "1.10" in text
    assert "2026-03-29" in text
    assert "$date" not in text


def test_page_tells_state_reason_result_worker_and_attempts(root: Client) -> None:
    Heartbeat.objects.create(
        id=WORKER, name="web-1", host="h", pid=1, processes=1, threads=1, async_slots=1, version="1"
    )
    row = make(
        outcome="cancelled", finished_at=now_plus(-1), cancel_requested_at=now_plus(-3), cancel_mode="kill",
        cancel_by="auth.User:7 <anna>", cancel_reason="wrong & late", worker=WORKER, claim_id=CLAIM, attempt=2,
        result={"sum": 3}, headers={"trace": "abc"}, timeout_seconds=90,
    )  # fmt: skip
    Attempt.objects.create(
        job=row, claim_id=CLAIM, number=1, cause="failed", worker_name="web-1", release="r7", duration_seconds=0.5,
        started_at=now_plus(-5), exception="builtins.OSError", message="down",
        chain=[["builtins.OSError", "down"], ["builtins.KeyError", "'x'"]], traceback="Traceback: <module>",
    )  # fmt: skip
    text = html(root.get(f"{LIST}{row.pk}/change/"))
    for part in ("Cancel (kill) requested", "by &lt;anna&gt;", "wrong &amp; late", "&quot;sum&quot;: 3", "r7"):
        assert part in text
    for part in (
        ">web-1</a>",
        "&quot;trace&quot;",
        "90.0 s",
        "500 ms",
        "builtins.KeyError",
        "caused by",
        "&lt;module&gt;",
    ):
        assert part in text


def test_the_page_tells_how_much_room_arguments_and_result_take() -> None:
    """As they are stored: 100,000 equal characters are compressed. Whoever may see the job sees it."""
    row = make(payload={"args": ["4111-secret", 7], "kwargs": {}}, result={"card": "x" * 100_000})
    client = client_with()
    text = html(client.get(f"{LIST}{row.pk}/change/"))
    found = dict(re.findall(r'<th scope="row">(Size of \w+)</th><td>([^<]+)</td>', text))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_column_size(payload), pg_column_size(result) FROM pgjobs_job WHERE id = %s", [row.pk])
        payload, result = cursor.fetchone()
    assert 50 < payload < 100
    assert 1024 < result < 10_000
    assert found == {"Size of arguments": f"{payload} bytes", "Size of result": f"{result / 1024:.1f} KB"}
    assert "4111-secret" not in text
    assert "Size of result" not in html(client.get(f"{LIST}{make().pk}/change/"))


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "UTC"])
def test_times_are_in_the_projects_zone(root: Client, settings: Any, zone: str) -> None:
    settings.TIME_ZONE = zone
    row = make()
    local = timezone.localtime(row.created_at) if timezone.is_aware(row.created_at) else row.created_at
    text = html(root.get(f"{LIST}{row.pk}/change/"))
    assert f"{local:%Y-%m-%d %H:%M:%S}" in text
    assert f"Timing ({timezone.get_current_timezone_name()})" in text


def test_progress_of_a_running_job(root: Client) -> None:
    row = make(claim_id=CLAIM, progress={"n": 3, "total": 4, "message": "<counting>"})
    text = html(root.get(f"{LIST}{row.pk}/change/"))
    assert '<progress value="0.750" max="1">' in text
    assert "3 / 4 &lt;counting&gt;" in text


def test_many_attempts_show_the_latest(root: Client) -> None:
    row = make(attempt=40)
    Attempt.objects.bulk_create(
        Attempt(job=row, claim_id=UUID(int=n), number=n, cause="failed", exception=f"E{n}.") for n in range(1, 41)
    )
    text = html(root.get(f"{LIST}{row.pk}/change/"))
    assert "E40." in text
    assert "E10." not in text
    assert "Showing only the latest attempts." in text


# --- read-only -----------------------------------------------------------------------------------------------------


def test_nobody_adds_changes_or_deletes(root: Client) -> None:
    row = make()
    assert root.get(f"{LIST}add/").status_code == 403
    assert root.post(f"{LIST}{row.pk}/change/", {"name": "x"}).status_code == 403
    assert root.post(f"{LIST}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    page = html(root.get(LIST))
    assert "delete_selected" not in page
    assert 'name="_save"' not in html(root.get(f"{LIST}{row.pk}/change/"))
    assert Job.objects.get().name == "shop.charge"


def test_without_the_view_permission_nothing_is_seen_or_done() -> None:
    row = make(outcome="abandoned", finished_at=now_plus(-1))
    client = Client()
    client.force_login(user_with("retry_job"))
    assert client.get(LIST).status_code == 403
    assert client.get(f"{LIST}{row.pk}/change/").status_code == 403
    assert client.post(steer_url(row, "retry")).status_code == 403
    assert Job.objects.get().state == "abandoned"


def test_the_public_is_asked_to_log_in(client: Client) -> None:
    row = make()
    for answer in (client.get(LIST), client.post(steer_url(row, "cancel"), {"mode": "ask"})):
        assert answer.status_code == 302
        assert "login" in answer["Location"]


def test_view_permission_alone_offers_no_action() -> None:
    rows = make_one_of_each()
    client = client_with()
    assert 'name="action"' not in html(client.get(LIST))
    for row in rows.values():
        assert "/steer/" not in html(client.get(f"{LIST}{row.pk}/change/"))


OFFERED = {
    "ready": {"cancel", "abandon"},
    "scheduled": {"run_now", "cancel", "abandon"},
    "retrying": {"run_now", "cancel", "abandon"},
    "running": {"release", "cancel", "stack"},
    "blocked": {"cancel", "abandon"},
    "parked": {"retry", "cancel", "abandon"},
    "limited": {"cancel", "abandon"},
    "paused": {"cancel", "abandon"},
    "moving": set(),
    "succeeded": set(),
    "cancelled": {"retry"},
    "abandoned": {"retry"},
}


def test_a_jobs_page_offers_what_its_state_allows(root: Client) -> None:
    for state, row in make_one_of_each().items():
        text = html(root.get(f"{LIST}{row.pk}/change/"))
        assert set(re.findall(r"/steer/(\w+)/", text)) == OFFERED[state], state


def test_the_page_of_a_parked_job_says_where_workers_find_jobs(root: Client) -> None:
    row = make(hold="parked", hold_reason="No job named 'shop.trips.order' is known to this process.")
    assert "Workers import jobs.py of each app and the modules of MODULES, and find tasks" in html(
        root.get(f"{LIST}{row.pk}/change/")
    )


def test_a_limited_job_that_is_not_due_can_be_run_now(root: Client) -> None:
    """Then it waits for its turn."""
    row = make(hold="limited", run_at=now_plus(3600))
    text = html(root.get(f"{LIST}{row.pk}/change/"))
    assert set(re.findall(r"/steer/(\w+)/", text)) == {"run_now", "cancel", "abandon"}
    assert "It is not due" in text
    root.post(steer_url(row, "run_now"))
    row.refresh_from_db()
    assert row.run_at <= now_plus(5)
    assert row.state == "limited"


def test_a_job_with_only_its_callback_left_offers_nothing(root: Client) -> None:
    row = make(ending="cancelled")
    text = html(root.get(f"{LIST}{row.pk}/change/"))
    assert "/steer/" not in text
    assert "Only its end is left: on_cancel, if it has one; then it is cancelled." in text


@pytest.mark.parametrize(
    ("permission", "offered"),
    [
        ("retry_job", {"retry", "retry_members"}),
        ("cancel_job", {"cancel"}),
        ("abandon_job", {"abandon"}),
        ("reschedule_job", {"run_now", "release", "unblock", "close"}),
    ],
)
def test_each_action_has_its_permission(permission: str, offered: set[str]) -> None:
    make_one_of_each()
    page = html(client_with(permission).get(LIST))
    actions = {*ACTIONS, "delete_selected"}
    assert {name for name in actions if f'<option value="{name}">' in page} == offered


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_without_its_permission_is_refused(name: str) -> None:
    rows = make_one_of_each()
    client = client_with("view_payload")
    before = list(Job.objects.order_by("pk").values())
    for row in rows.values():
        assert client.post(steer_url(row, name), {"mode": "ask", "reason": ""}).status_code == 403
    chosen = [row.pk for row in rows.values()]
    client.post(LIST, {"action": name, "_selected_action": chosen, "index": "0", "confirmed": "yes", "mode": "ask"})
    assert list(Job.objects.order_by("pk").values()) == before


def test_what_the_code_says_in_words_is_found_and_shown_by_admin_and_shell(root: Client) -> None:
    with registry.isolated():
        charged = job(name="shop.worded", description="Charge a card <b>")(charge).register("4111", 7)
    assert "Charge a card &lt;b&gt;" in html(root.get(reverse("admin:pgjobs_job_change", args=[charged.pk])))
    assert ids_on(root.get(LIST, {"q": "charge a card"})) == [charged.pk]
    assert "Charge a card <b>" in printed("show", charged.pk)[1]
    assert "Charge a card <b>" in printed("list")[1]


def test_the_page_names_the_callbacks_and_how_often_one_was_started(root: Client) -> None:
    with registry.isolated():
        worded = job(name="shop.worded")(charge)
        worded.on_abandon(lambda context, *args, **kwargs: None)
        worded.on_cancel(lambda context, *args, **kwargs: None)
        row = worded.register("4111", 7)
        for starts, words in (
            (0, "when it is abandoned"),
            (1, "when it is abandoned; started once"),
            (2, "when it is abandoned; started 2 times, as the starts before failed or were lost"),
        ):
            Job.objects.filter(pk=row.pk).update(ending="abandoned" if starts else None, ending_attempt=starts)
            text = html(root.get(f"{LIST}{row.pk}/change/"))
            found = dict(re.findall(r'<th scope="row">(On_\w+)</th><td>([^<]*)</td>', text))
            assert found == {"On_abandon": words, "On_cancel": "when it is cancelled"}


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "1e300"])
@pytest.mark.parametrize("column", ["timeout_seconds", "duration_seconds"])
@pytest.mark.parametrize("ended", [False, True])
def test_no_number_in_a_row_breaks_a_page_or_the_shell(root: Client, column: str, value: str, ended: bool) -> None:
    """Nothing of ours writes them, but the columns hold them."""
    one = make(**({"outcome": "succeeded", "finished_at": now_plus(-5)} if ended else {}))
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE pgjobs_job SET {column} = %s WHERE id = %s", [value, one.pk])
    assert root.get(f"{LIST}{one.pk}/change/").status_code == 200
    assert root.get(LIST).status_code == 200
    for arguments in (("show", str(one.pk)), ("list", "--all")):
        assert printed(*arguments)[0] == printed(*arguments, "--format", "json")[0] == 0
