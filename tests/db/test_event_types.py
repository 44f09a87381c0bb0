"""The payload of an event against the type that its ``Event`` declares, by every way to send one."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, TypedDict

import pytest
from django.core.management import CommandError
from django.test import Client
from django.urls import reverse

from django_pgjobs import Event, JobContext, job
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Action, EventState
from django_pgjobs.steering import events
from django_pgjobs.testing import run_jobs, send_event
from tests.plugins.fix_admin import html
from tests.plugins.shell import pgjobs

if TYPE_CHECKING:
    from decimal import Decimal

pytestmark = pytest.mark.django_db


class Verdict(TypedDict):
    approved: bool
    note: str


verdict: Event[Verdict] = Event("typed.verdict")
untyped = Event[Any]("typed.untyped")
by_call = Event[int]("typed.by_call")
unreadable: Event[Decimal] = Event("typed.unreadable")

LACKS = (
    "event 'typed.verdict:7': payload lacks 'approved', which Verdict has as bool. "
    "Send Verdict: {'approved': bool, 'note': str}."
)


@job(name="typed.refund", takes_context=True)
def refund(context: JobContext, n: int) -> bool:
    return context.wait_for(verdict, n, timeout=3600)["approved"]


def stored() -> list[str]:
    return list(EventState.objects.filter(sent_at__isnull=False).values_list("name", flat=True))


def test_code_cannot_send_another_payload() -> None:
    wrong: Any = {"ok": True}
    for send in (
        lambda: verdict.send(7, payload=wrong),
        lambda: send_event(verdict, 7, payload=wrong),
        lambda: send_event("typed.verdict:7", payload=wrong),
        lambda: events.send_by_operator("default", "typed.verdict:7", wrong, by="anna"),
    ):
        with pytest.raises(InvalidJob) as refused:
            send()
        assert str(refused.value) == LACKS
    with pytest.raises(InvalidJob, match="payload is None, not Verdict"):
        verdict.send(7)
    assert stored() == []
    assert not Action.objects.exists()
    assert verdict.send(7, payload={"approved": True, "note": ""}), (
        "the transaction is usable, and the first one counts"
    )


def test_the_shell_refuses_it_and_says_what_to_send() -> None:
    with pytest.raises(CommandError) as refused:
        pgjobs("send-event", "typed.verdict:7", "--payload", '{"ok": true}')
    assert str(refused.value) == LACKS
    assert stored() == []
    assert pgjobs("send-event", "typed.verdict:7", "--payload", '{"approved": true, "note": ""}')[0] == 0


def test_the_form_refuses_it_before_and_behind_the_question(root: Client) -> None:
    row = refund.register(7)
    run_jobs()
    for url in (
        reverse("admin:pgjobs_job_send", args=[row.pk]),
        reverse("admin:pgjobs_eventstate_send", args=["typed.verdict_3A7"]),
    ):
        for confirmed in ({}, {"confirmed": "yes"}):
            given = {"event": "typed.verdict:7", "payload": '{"ok": true}', **confirmed}
            page = html(root.post(url, given))
            assert "payload lacks &#x27;approved&#x27;, which Verdict has as bool" in page
            assert "Yes, send it" not in page
    assert stored() == []
    url = reverse("admin:pgjobs_job_send", args=[row.pk])
    right = {"event": "typed.verdict:7", "payload": '{"approved": true, "note": ""}'}
    assert "Yes, send it" in html(root.post(url, right))
    root.post(url, {**right, "confirmed": "yes"})
    run_jobs()
    row.refresh_from_db()
    assert row.result is True


def test_where_no_type_is_known_everything_is_sent() -> None:
    assert untyped.send(1, payload={"ok": True})
    assert unreadable.send(1, payload="1")  # type: ignore[arg-type]
    assert send_event("typed.nobody_declares_it:1", payload=3)
    local: Event[int] = Event("typed.local")
    assert local.send(1, payload="x")  # type: ignore[arg-type]
    assert stored() == ["typed.untyped:1", "typed.unreadable:1", "typed.nobody_declares_it:1", "typed.local:1"]


def test_the_type_in_the_call_counts_too() -> None:
    assert by_call.payload_type() is int
    with pytest.raises(InvalidJob, match=r"payload is 'x', not int\. Send int\."):
        by_call.send(1, payload="x")  # type: ignore[arg-type]
    assert by_call.send(1, payload=3)


def test_an_event_that_nobody_holds_any_more_declares_nothing() -> None:
    gone = Event[int]("typed.gone")
    with pytest.raises(InvalidJob, match="not int"):
        send_event("typed.gone:1", payload="x")
    del gone
    gc.collect()
    assert send_event("typed.gone:1", payload="x")
