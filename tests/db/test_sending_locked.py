"""An operator's event beside transactions of others, and one that many jobs wait for."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from django_pgjobs import Event, JobContext, job
from django_pgjobs.models import Action, EventState
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.steering import events
from django_pgjobs.steering.events import Sent
from django_pgjobs.store import memos
from django_pgjobs.store.database import on, set_lock_timeout
from django_pgjobs.testing import run_job, run_jobs
from tests.plugins.fix_admin import LIST, said
from tests.plugins.fix_db import RawDatabase
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")

approval: Event[Any] = Event("locked.approval")


@job(name="locked.order", takes_context=True)
def order(context: JobContext) -> Any:
    return context.wait_for(approval, timeout=timedelta(days=14))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LOCK_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "held", ["UPDATE pgjobs_event SET waits = waits", "SELECT FROM pgjobs_job FOR NO KEY UPDATE"], ids=["event", "job"]
)
def test_an_event_that_stays_locked_is_not_sent(root: Client, other: RawDatabase, held: str) -> None:
    row = order.register()
    run_jobs()
    other.query(held)
    words = "locked.approval is locked by another transaction: try again"
    assert pgjobs("send-event", "--job", row.pk) == (1, "", f"{words}\n")
    answer = root.post(
        f"{LIST}{row.pk}/send/", {"event": "locked.approval", "payload": "1", "confirmed": "yes"}, follow=True
    )
    assert said(answer) == [f"{words}."]
    assert not EventState.objects.filter(sent_at__isnull=False).exists()
    assert not Action.objects.exists()
    other.rollback()
    assert pgjobs("send-event", "--job", row.pk)[0] == 0
    assert run_jobs().succeeded == [row.pk]


@pytest.mark.usefixtures("impatient")
def test_an_event_that_stays_locked_is_not_withdrawn(root: Client, other: RawDatabase) -> None:
    approval.send(payload="yes")
    other.query("UPDATE pgjobs_event SET waits = waits")
    words = "locked.approval is locked by another transaction: try again"
    assert pgjobs("withdraw-event", "locked.approval") == (1, "", f"{words}\n")
    assert said(root.post("/admin/pgjobs/eventstate/locked.approval/withdraw/", follow=True)) == [f"{words}."]
    assert EventState.objects.get().payload == "yes"
    assert not Action.objects.exists()
    other.rollback()
    assert pgjobs("withdraw-event", "locked.approval")[0] == 0


@pytest.mark.usefixtures("impatient")
def test_the_callers_transaction_keeps_its_own_patience(other: RawDatabase) -> None:
    order.register()
    run_jobs()
    with transaction.atomic():
        before = set_lock_timeout(on("default"), "7s")
        assert events.send_by_operator("default", "locked.approval", 1, by="anna") is Sent.SENT
        assert set_lock_timeout(on("default"), before) == "7s"
    other.query("UPDATE pgjobs_event SET waits = waits")
    with transaction.atomic():
        set_lock_timeout(on("default"), "7s")
        assert events.send_by_operator("default", "locked.approval", 2, by="anna") is Sent.BUSY
        assert set_lock_timeout(on("default"), before) == "7s"


def test_all_who_wait_are_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memos, "WAITERS_AT_ONCE", 2)
    monkeypatch.setattr(memos, "wake_waiters", partial(memos.wake_waiters, most=2))
    registered = [order.register() for _ in range(5)]
    for row in reversed(registered):  # they begin to wait in another order than that of their ids
        run_job(row)
    rows = [row.pk for row in registered]
    assert events.send_by_operator("default", "locked.approval", 1, by="anna") is Sent.SENT
    action = Action.objects.get()
    assert (action.changed, action.kind, action.subject) == (5, "event", "locked.approval")
    parts = ActionPart.objects.order_by("part").values_list("job_ids", flat=True)
    assert list(chain.from_iterable(parts)) == rows
    assert run_jobs().succeeded == rows
