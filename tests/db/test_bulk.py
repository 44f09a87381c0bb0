"""Actions on more jobs than a request changes: the job that changes them, its trail, and when it stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_pgjobs.admin import bulk
from django_pgjobs.admin.actions import ACTIONS
from django_pgjobs.models import Action, Heartbeat, Job
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.testing import run_job
from tests.plugins.fix_admin import LIST, client_with, html, make, now_plus, said, user_with

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("charge_known")]

ALL = {"select_across": "1", "confirmed": "yes"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten jobs are many, and three a batch."""
    monkeypatch.setattr(bulk, "AT_ONCE", 10)
    monkeypatch.setattr(bulk, "BATCH", 3)


def failed(number: int, **fields: Any) -> list[int]:
    return [make(outcome="abandoned", finished_at=now_plus(-60), **fields).pk for _ in range(number)]


def retried() -> list[int]:
    return sorted(Job.objects.filter(outcome=None).exclude(name=bulk.STEER).values_list("pk", flat=True))


def post(client: Client, query: str = "?state=abandoned", **data: str) -> Any:
    given = {"action": "retry", "_selected_action": "0", "index": "0", **ALL, **data}
    return client.post(LIST + query, given, follow=True)


def own() -> Job:
    found: Job = Job.objects.get(name=bulk.STEER)
    return found


def test_up_to_the_bound_the_request_changes_them_itself() -> None:
    ids = failed(10)
    assert said(post(client_with("retry_job")))[0].startswith("Retry: 10 changed.")
    assert retried() == ids
    assert not Job.objects.filter(name=bulk.STEER).exists()


def test_beyond_it_a_job_changes_them_and_one_action_tells_of_it() -> None:
    ids = failed(11)
    page = post(client_with("retry_job", "view_action"))
    assert page.redirect_chain[-1][0] == f"{LIST}{own().pk}/change/"
    assert "This job changes them" in said(page)[0]
    assert retried() == []
    run_job(own())
    assert retried() == ids
    ours = own()
    assert (ours.outcome, ours.result) == ("succeeded", {"changed": 11, "skipped": {}})
    assert (ours.progress or {})["n"] == (ours.progress or {})["total"] == 11
    [action] = Action.objects.all()
    assert (action.verb, action.via, action.changed, action.asked) == ("retry", "admin", 11, "state abandoned")
    assert "anna" in action.acted_by
    parts = ActionPart.objects.filter(action_id=action.pk).order_by("part")
    assert [len(part.job_ids) for part in parts] == [3, 3, 3, 2]
    assert [job_id for part in parts for job_id in part.job_ids] == ids


def test_the_question_says_that_a_job_will_do_it_and_whether_a_worker_would_run_it() -> None:
    failed(11)
    client = client_with("retry_job")
    asked = {"action": "retry", "_selected_action": "0", "select_across": "1"}
    question = html(client.post(LIST + "?state=abandoned", asked))
    assert 'id="pgjobs-bulk"' in question
    assert "No live worker would run it now." in question
    Heartbeat.objects.create(name="w", host="h", pid=1, processes=1, threads=1, async_slots=1, version="1")
    again = client.post(LIST + "?state=abandoned", asked)
    assert "No live worker" not in html(again)


def test_what_comes_after_the_confirmation_is_left_alone() -> None:
    ids = failed(11, queue="mail")
    other = failed(1, queue="else")
    running = make(queue="mail").pk
    post(client_with("retry_job"), "?state=abandoned&queue=mail")
    later = failed(1, queue="mail")
    Job.objects.filter(pk=running).update(outcome="abandoned", finished_at=now_plus(60))
    run_job(own())
    assert retried() == ids
    assert set(Job.objects.filter(outcome="abandoned").values_list("pk", flat=True)) == {*other, *later, running}


def test_words_of_a_search_choose_them_too() -> None:
    ids = failed(11, error_class="shop.Declined")
    failed(2, error_class="shop.Other")
    post(client_with("retry_job"), "?state=abandoned&q=error:Declined+since:1h")
    run_job(own())
    assert retried() == ids
    assert Action.objects.get().asked == "state abandoned, error Declined, since 1 h ago"


def interrupt_after(monkeypatch: pytest.MonkeyPatch, batches: int, then: Callable[[], None]) -> None:
    """Call ``then`` once that many batches are committed."""
    retry = ACTIONS["retry"]
    seen: list[int] = []

    def run(jobs: Any, **answers: Any) -> Any:
        if len(seen) == batches:
            seen.append(0)
            then()
        seen.append(1)
        return retry.run(jobs, **answers)

    monkeypatch.setitem(ACTIONS, "retry", replace(retry, run=run))


@pytest.mark.django_db(transaction=True)
def test_an_attempt_that_fails_half_way_is_followed_by_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = failed(11)

    def die() -> None:
        raise OSError("power is out")

    interrupt_after(monkeypatch, 2, die)
    post(client_with("retry_job"))
    run_job(own())
    assert retried() == ids[:6]
    Job.objects.filter(pk__in=ids[:6]).update(outcome="abandoned", finished_at=now_plus(-30))
    run_job(own())
    assert retried() == ids[6:], "none is changed twice"
    [action] = Action.objects.all()
    assert action.changed == 11
    assert own().outcome == "succeeded"


@pytest.mark.django_db(transaction=True)
def test_who_loses_the_permission_half_way_changes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = failed(11)
    client = client_with("retry_job")
    anna = User.objects.get(username="anna")
    interrupt_after(monkeypatch, 1, lambda: anna.user_permissions.remove(Permission.objects.get(codename="retry_job")))
    post(client)
    run_job(own())
    assert retried() == ids[:6], "the batch that had begun, and no other"
    assert own().outcome == "cancelled"
    assert "may not retry" in own().error + own().cancel_reason, vars(own())
    assert Action.objects.get().changed == 6


@pytest.mark.parametrize("change", [{"is_active": False}, {"is_staff": False}, None])
def test_the_job_of_somebody_who_is_gone_changes_nothing(change: dict[str, bool] | None) -> None:
    failed(11)
    post(client_with("retry_job"))
    User.objects.update(**change) if change else User.objects.all().delete()
    run_job(own())
    assert retried() == []
    assert own().outcome == "cancelled"


def test_only_who_may_do_it_registers_the_job() -> None:
    failed(11)
    page = post(client_with())
    assert page.status_code in (200, 403)
    assert not Job.objects.filter(name=bulk.STEER).exists()


def test_it_leaves_jobs_of_its_kind_alone() -> None:
    for _ in range(11):
        make(run_at=now_plus(-1))
    client = Client()
    client.force_login(user_with("view_job", "cancel_job", name="bo"))
    post(client, "", action="cancel", mode="ask", reason="wrong import")
    run_job(own())
    assert own().outcome == "succeeded"
    assert Job.objects.filter(outcome="cancelled").count() == 11
    assert Action.objects.get().reason == "wrong import"


def test_the_value_of_a_searched_argument_is_hidden_on_its_page() -> None:
    for _ in range(11):
        make(outcome="abandoned", finished_at=now_plus(-60), payload={"args": ["4111-1111", 7], "kwargs": {}})
    clerk = client_with("retry_job", "view_payload")
    post(clerk, "?state=abandoned&q=arg.card:4111-1111")
    viewer = Client()
    viewer.force_login(user_with("view_job", "view_action", name="bo"))
    page = f"{LIST}{own().pk}/change/"
    assert "4111-1111" in html(clerk.get(page))
    for url in (page, LIST, "/admin/pgjobs/action/"):
        assert "4111-1111" not in html(viewer.get(url)), url
