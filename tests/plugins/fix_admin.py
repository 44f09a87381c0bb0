"""The admin as tests see it: rows as workers leave them, people who are logged in, and what a page says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_pgjobs import job
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Heartbeat, Job
from django_pgjobs.models.attempts import Claim

LIST = "/admin/pgjobs/job/"

WORKER = UUID("00000000-0000-4000-8000-00000000000a")

CLAIM = UUID("00000000-0000-4000-8000-00000000000c")


def charge(card: str, amount: int, note: str = "") -> None:
    """A job with a secret."""


@pytest.fixture
def charge_known() -> Iterator[None]:
    """The job ``shop.charge`` is declared, and no other."""
    with registry.isolated():
        job(name="shop.charge", queue="payments", sensitive=("card",))(charge)
        yield


def make(**fields: Any) -> Job:
    """Store a job row as a worker would leave it."""
    given = {"name": "shop.charge", "payload": {"args": ["4111", 7], "kwargs": {}}, **fields}
    (row,) = Job.objects.bulk_create([Job(**given)])
    return Job.objects.get(pk=row.pk)


def now_plus(seconds: float) -> Any:
    moment = timezone.now()
    return moment + timedelta(seconds=seconds)


def make_one_of_each() -> dict[str, Job]:
    """One job of every state and label."""
    ended = {"finished_at": now_plus(-5), "attempt": 1, "duration_seconds": 0.25}
    rows = {
        "ready": make(run_at=now_plus(-10)),
        "scheduled": make(run_at=now_plus(3600)),
        "retrying": make(run_at=now_plus(3600), attempt=2, error="OSError: line is down"),
        "running": make(claim_id=CLAIM, worker=WORKER, claimed_at=now_plus(-1), attempt=1),
        "blocked": make(hold="blocked", hold_reason="waits for #1"),
        "parked": make(hold="parked", hold_reason="no such job here"),
        "limited": make(hold="limited"),
        "paused": make(hold="paused"),
        "succeeded": make(outcome="succeeded", result={"sum": 3}, **ended),
        "cancelled": make(outcome="cancelled", cancel_by="auth.User:1 anna", cancel_requested_at=now_plus(-6), **ended),
        "abandoned": make(outcome="abandoned", error="ValueError: <b>no</b>", **ended),
        "moving": make(hold="moving"),
    }
    far = now_plus(60)
    worker: dict[str, Any] = {"host": "h", "pid": 1, "processes": 1, "threads": 1, "async_slots": 1, "version": "1"}
    Heartbeat.objects.create(id=WORKER, name="web-1", queues=["elsewhere"], **worker)
    Claim.objects.create(
        claim_id=CLAIM, part=0, worker=WORKER, lease_expires_at=far, check_at=far, job_ids=[rows["running"].pk]
    )
    return rows


def user_with(*permissions: str, name: str = "anna") -> User:
    user = User.objects.create_user(name, password="secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="pgjobs", codename__in=permissions))
    return user


def client_with(*permissions: str) -> Client:
    client = Client()
    client.force_login(user_with("view_job", *permissions))
    return client


@pytest.fixture
def root() -> Client:
    """A superuser who is logged in."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def ids_on(page: Any) -> list[int]:
    return [row.pk for row in page.context["cl"].result_list]


def html(page: Any) -> str:
    text: str = page.content.decode()
    return text


def said(page: Any) -> list[str]:
    return [str(message) for message in get_messages(page.wsgi_request)]


def steer_url(row: Job, name: str) -> str:
    return reverse("admin:pgjobs_job_steer", args=[row.pk, name])


# --- actions on many -----------------------------------------------------------------------------------------------


def act(client: Client, name: str, rows: Any, query: str = "", **data: Any) -> Any:
    chosen = [row.pk for row in rows]
    return client.post(
        f"{LIST}{query}", {"action": name, "_selected_action": chosen, "index": "0", **data}, follow=True
    )
