"""An event that was sent by mistake is taken back, as long as no job has gone on with it."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.management import CommandError
from django.db import transaction
from django.test import Client
from django.urls import reverse

from django_pgjobs import Event, JobContext, job
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Action, EventState, Job, Memo
from django_pgjobs.steering import events
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_admin import client_with, html, said
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.django_db

approval: Event[Any] = Event("withdrawn.approval")
NAME = "withdrawn.approval:7"


@job(name="withdrawn.order", takes_context=True, max_attempts=1)
def order(context: JobContext, number: int = 7) -> Any:
    return context.wait_for(approval, number, timeout=timedelta(days=14))


def waiting() -> Job:
    row: Job = order.register()
    run_jobs()
    return row


def event_url(page: str) -> str:
    return reverse(f"admin:pgjobs_eventstate_{page}", args=["withdrawn.approval_3A7"])


def test_a_job_that_was_woken_waits_on_and_gets_what_is_sent_later() -> None:
    row = waiting()
    row.refresh_from_db()
    until, attempt = row.run_at, row.attempt
    assert approval.send(7, payload="wrong", by="bob")
    row.refresh_from_db()
    assert row.run_at < until, "it is woken"
    assert approval.withdraw(7, by="anna", reason="the wrong order")
    event = EventState.objects.get()
    assert (event.sent_at, event.payload, event.sent_by, event.read_at) == (None, None, "", None)
    assert run_jobs().succeeded == []
    row.refresh_from_db()
    assert (row.outcome, row.run_at, row.attempt) == (None, until, attempt)
    assert Memo.objects.get(job=row).finished_at is None
    assert row.why().code == "waiting_for_event"
    action = Action.objects.get()
    assert (action.verb, action.via, action.kind, action.subject) == ("withdraw", "code", "event", NAME)
    assert (action.acted_by, action.reason, action.changed) == ("anna", "the wrong order", 1)
    assert approval.send(7, payload="right")
    assert run_jobs().succeeded == [row.pk]
    row.refresh_from_db()
    assert row.result == "right"


def test_what_a_job_has_read_counts() -> None:
    row = waiting()
    assert approval.send(7, payload="yes")
    run_jobs()
    first = EventState.objects.get().read_at
    assert first is not None
    assert not approval.withdraw(7)
    other = waiting()
    event = EventState.objects.get()
    assert (event.payload, event.read_at) == ("yes", first), "the second who reads changes nothing"
    for each in (row, other):
        each.refresh_from_db()
        assert each.result == "yes"
    assert not Action.objects.exists()


def test_an_event_that_comes_early_is_withdrawn_too() -> None:
    approval.send(7, payload="wrong")
    assert async_to_sync(approval.awithdraw)(7)
    assert not approval.withdraw(7), "it is not sent any more"
    assert not approval.withdraw(8), "nobody knows it"
    assert waiting().why().code == "waiting_for_event"
    assert Action.objects.count() == 1


def test_an_event_is_corrected_in_one_transaction() -> None:
    row = waiting()
    approval.send(7, payload="wrong")
    with transaction.atomic():
        assert approval.withdraw(7)
        assert approval.send(7, payload="right")
    assert run_jobs().succeeded == [row.pk]
    row.refresh_from_db()
    assert row.result == "right"


def test_a_transaction_that_is_rolled_back_withdraws_nothing() -> None:
    approval.send(7, payload="yes")
    with transaction.atomic():
        assert approval.withdraw(7)
        transaction.set_rollback(True)
    assert EventState.objects.get().payload == "yes"
    assert not Action.objects.exists()


@pytest.mark.parametrize("name", ["pgjobs.gathered:7", "a\nb", "x" * 201])
def test_a_name_that_no_event_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidJob):
        events.withdraw("default", name, by="anna", reason="")
    with pytest.raises(CommandError) as caught:
        pgjobs("withdraw-event", name)
    assert caught.value.returncode == 2


def test_the_shell_withdraws_an_event() -> None:
    assert pgjobs("withdraw-event", NAME) == (1, "", f"{NAME} was not sent, or a job has read it\n")
    assert pgjobs("send-event", NAME, "--payload", "1")[0] == 0
    done = pgjobs("withdraw-event", NAME, "--by", "bert", "--reason", "too early")
    assert done == (0, f"withdrawn {NAME}\n", "")
    action = Action.objects.get(verb="withdraw")
    assert (action.via, action.acted_by, action.reason) == ("shell", "bert", "too early")
    with pytest.raises(CommandError, match="cannot be undone: send the event again"):
        pgjobs("undo-action", action.pk)
    answer = pgjobs("withdraw-event", NAME, "--format", "json")
    assert (answer[0], json.loads(answer[1])) == (1, {"event": NAME, "withdrawn": False})
    pgjobs("send-event", NAME, "--payload", "2")
    waiting()
    assert pgjobs("withdraw-event", NAME) == (1, "", f"{NAME} was not sent, or a job has read it\n")


def test_an_event_is_withdrawn_on_its_page() -> None:
    row = waiting()
    client = client_with("send_event", "view_eventstate", "view_action")
    assert event_url("withdraw") not in html(client.get(event_url("change"))), "it is not sent"
    pgjobs("send-event", NAME, "--payload", '"wrong"')
    with pytest.raises(CommandError, match="an event is withdrawn on its own page, while no job has read it"):
        pgjobs("undo-action", Action.objects.get().pk)
    assert event_url("withdraw") in html(client.get(event_url("change")))
    answer = client.post(event_url("withdraw"), {"reason": "the wrong order"}, follow=True)
    assert said(answer) == [f"Withdrew {NAME}."]
    assert event_url("send") in html(answer), "it can be sent anew"
    action = Action.objects.get(verb="withdraw")
    assert (action.via, action.kind, action.subject, action.reason) == ("admin", "event", NAME, "the wrong order")
    assert action.acted_by.endswith(" anna")
    assert said(client.post(event_url("withdraw"), follow=True)) == [f"{NAME} was not sent, or a job has read it."]
    approval.send(7, payload="right")
    assert run_jobs().succeeded == [row.pk]
    page = html(client.get(event_url("change")))
    assert event_url("withdraw") not in page
    assert re.search(r"<th[^>]*>Read</th>\s*<td>(?!–)", page)
    assert said(client.post(event_url("withdraw"), follow=True)) == [f"{NAME} was not sent, or a job has read it."]
    assert Action.objects.filter(verb="withdraw").count() == 1


def test_a_withdrawal_needs_the_permission_a_post_and_a_token() -> None:
    approval.send(7, payload="yes")
    client = client_with("view_eventstate", "view_payload")
    assert event_url("withdraw") not in html(client.get(event_url("change")))
    assert client.post(event_url("withdraw")).status_code == 403
    assert client.get(event_url("withdraw")).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get())
    assert strict.post(event_url("withdraw")).status_code == 403
    assert EventState.objects.get().sent_at is not None


def test_a_reason_that_is_too_long_withdraws_nothing() -> None:
    approval.send(7, payload="yes")
    client = client_with("send_event", "view_eventstate")
    answer = client.post(event_url("withdraw"), {"reason": "x" * 1001}, follow=True)
    assert "at most 1000 characters" in said(answer)[0]
    assert EventState.objects.get().payload == "yes"
