"""The operator's actions in the admin, on one job and on many."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgjobs.models import Job
from tests.plugins.fix_admin import (
    LIST,
    act,
    client_with,
    html,
    make,
    make_one_of_each,
    now_plus,
    steer_url,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]


# --- actions on one ------------------------------------------------------------------------------------------------


def test_cancel_one_with_a_reason_under_view_and_cancel_permission_only() -> None:
    row = make()
    answer = client_with("cancel_job").post(
        steer_url(row, "cancel"), {"mode": "ask", "reason": "not <needed>"}, follow=True
    )
    row.refresh_from_db()
    assert (row.state, row.cancel_reason, row.cancel_mode) == ("cancelled", "not <needed>", "ask")
    assert re.fullmatch(r"auth\.User:\d+ anna", row.cancel_by)
    assert "Cancel (ask): 1 changed. Reason: not &lt;needed&gt;." in html(answer)
    assert "not &lt;needed&gt;" in html(answer)


@pytest.mark.parametrize("mode", ["ask", "interrupt", "kill"])
def test_to_cancel_a_running_job_is_a_request_to_its_worker(root: Client, mode: str) -> None:
    row = make_one_of_each()["running"]
    root.post(steer_url(row, "cancel"), {"mode": mode, "reason": ""})
    row.refresh_from_db()
    assert (row.state, row.cancel_mode) == ("running", mode)
    assert row.cancel_requested_at is not None


@pytest.mark.parametrize("action", ["retry", "abandon", "run_now"])
def test_no_action_overwrites_the_attempt_of_a_running_job(root: Client, action: str) -> None:
    """Its lease is live: a form sent by hand, or from an old page, changes nothing."""
    row = make_one_of_each()["running"]
    before = Job.objects.filter(pk=row.pk).values().get()
    root.post(steer_url(row, action), {"reason": "forced"})
    assert Job.objects.filter(pk=row.pk).values().get() == before


def test_retry_abandon_run_now_and_release_one(root: Client) -> None:
    rows = make_one_of_each()
    root.post(steer_url(rows["abandoned"], "retry"))
    root.post(steer_url(rows["parked"], "abandon"), {"reason": "hopeless"})
    root.post(steer_url(rows["scheduled"], "run_now"))
    root.post(steer_url(rows["running"], "release"))
    for row in rows.values():
        row.refresh_from_db()
    assert (rows["abandoned"].state, rows["abandoned"].max_attempts) == ("ready", 6)
    assert rows["parked"].state == "abandoned"
    assert "hopeless" in rows["parked"].error
    assert rows["scheduled"].run_at <= now_plus(5)
    assert rows["running"].release_requested_at is not None


def test_an_action_that_came_too_late_says_why(root: Client) -> None:
    row = make(outcome="succeeded", finished_at=now_plus(-1))
    answer = root.post(steer_url(row, "cancel"), {"mode": "ask", "reason": ""}, follow=True)
    assert "Cancel (ask): 0 changed, 1 skipped: 1 succeeded." in html(answer)


def test_what_an_operator_did_is_in_the_history(root: Client) -> None:
    row = make(outcome="abandoned", finished_at=now_plus(-1))
    root.post(steer_url(row, "retry"))
    assert "Retry: 1 changed." in str(LogEntry.objects.get(object_id=str(row.pk)))
    assert "Retry: 1 changed." in html(root.get(f"{LIST}{row.pk}/history/"))


@pytest.mark.parametrize(
    "data", [{}, {"mode": "gently"}, {"mode": "ask", "reason": "x" * 501}, {"mode": "ask", "reason": "a\0b"}]
)
def test_a_form_that_is_wrong_changes_nothing_and_says_so(root: Client, data: dict[str, str]) -> None:
    row = make()
    answer = root.post(steer_url(row, "cancel"), data, follow=True)
    assert 'class="error"' in html(answer)
    assert Job.objects.get().state == "ready"


def test_steering_needs_a_post_a_job_and_an_action(root: Client) -> None:
    row = make()
    assert root.get(steer_url(row, "cancel")).status_code == 405
    assert root.post(f"{LIST}{row.pk}/steer/delete/").status_code == 403
    assert root.post(f"{LIST}{10**30}/steer/retry/", follow=True).status_code == 200
    assert "There is no job 0." in html(root.post(f"{LIST}0/steer/retry/", follow=True))


def test_steering_needs_a_csrf_token() -> None:
    row = make()
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    assert client.post(steer_url(row, "cancel"), {"mode": "ask"}).status_code == 403
    assert Job.objects.get().state == "ready"


def test_after_an_action_the_lists_filters_are_still_known(root: Client) -> None:
    row = make()
    text = html(root.get(f"{LIST}{row.pk}/change/?_changelist_filters=state%3Dready"))
    url = re.search(r'action="([^"]+/steer/abandon/[^"]*)"', text)
    assert url is not None
    answer = root.post(url[1].replace("&amp;", "&"), {"reason": ""})
    assert answer["Location"] == f"{LIST}{row.pk}/change/?_changelist_filters=state%3Dready"


def test_retry_many_reports_what_was_skipped_and_why(root: Client) -> None:
    rows = make_one_of_each()
    answer = act(
        root, "retry", [rows[s] for s in ("abandoned", "cancelled", "parked", "running", "succeeded")], confirmed="yes"
    )
    assert "Retry: 3 changed, 2 skipped: 1 running, 1 succeeded." in html(answer)
    states = set(
        Job.objects.filter(pk__in=[rows[s].pk for s in ("abandoned", "cancelled", "parked")]).values_list("state")
    )
    assert states == {("ready",)}


@pytest.mark.parametrize("name", ["cancel", "abandon"])
def test_destructive_actions_ask_first(root: Client, name: str) -> None:
    rows = [make(), make()]
    page = act(root, name, rows)
    assert '<strong id="pgjobs-count">2</strong>' in html(page)
    assert 'name="reason"' in html(page)
    assert set(Job.objects.values_list("state", flat=True)) == {"ready"}


def test_cancel_many_after_the_question(root: Client) -> None:
    rows = [make(), make()]
    page = html(act(root, "cancel", rows))
    fields = dict(re.findall(r'<input type="hidden" name="(action|select_across|confirmed)" value="([^"]*)"', page))
    chosen = re.findall(r'name="_selected_action" value="(\d+)"', page)
    answer = root.post(
        LIST, {**fields, "_selected_action": chosen, "mode": "ask", "reason": "sale is over"}, follow=True
    )
    assert "Cancel (ask): 2 changed. Reason: sale is over." in html(answer)
    assert set(Job.objects.values_list("state", "cancel_reason")) == {("cancelled", "sale is over")}


def test_a_wrong_answer_is_asked_again(root: Client) -> None:
    page = act(root, "cancel", [make()], confirmed="yes", mode="nuke")
    assert "Select a valid choice" in html(page)
    assert Job.objects.get().state == "ready"


@pytest.mark.parametrize("name", ["retry", "cancel"])
def test_all_pages_are_asked_about_and_done_in_bounded_batches(root: Client, name: str) -> None:
    fields: dict[str, Any] = {"outcome": "abandoned", "finished_at": now_plus(-1)} if name == "retry" else {}
    Job.objects.bulk_create([Job(name="many", queue="bulk", payload={}, **fields) for _ in range(2100)])
    other = make(queue="else", **fields)
    first = Job.objects.filter(queue="bulk")[:1]
    query = "?queue=bulk"
    page = act(root, name, first, query, select_across="1")
    assert '<strong id="pgjobs-count">2,100</strong>' in html(page)
    answer = act(root, name, first, query, select_across="1", confirmed="yes", mode="ask", reason="")
    assert "2,100 changed" in html(answer)
    other.refresh_from_db()
    assert other.state == (fields.get("outcome") or "ready")


def test_all_pages_leave_jobs_of_other_states_untouched_and_unlocked(root: Client) -> None:
    rows = make_one_of_each()
    with CaptureQueriesContext(connection) as queries:
        act(root, "retry", [rows["ready"]], "", select_across="1", confirmed="yes")
    locks = [query["sql"] for query in queries if "FOR NO KEY UPDATE" in query["sql"] and "SELECT" in query["sql"]]
    assert locks
    assert not any(re.search(rf"\b{rows['succeeded'].pk}\b", sql) for sql in locks)
    assert Job.objects.filter(state="ready").count() == 3 + 3


def test_nothing_chosen_changes_nothing(root: Client) -> None:
    make(outcome="abandoned", finished_at=now_plus(-1))
    root.post(LIST, {"action": "retry", "index": "0"})
    assert Job.objects.get().state == "abandoned"
