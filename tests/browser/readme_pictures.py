"""Takes the README's pictures of the admin for ``make screenshots``: real pages of made-up jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone
from playwright.sync_api import Browser, Page

from django_pgjobs import job
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Attempt, Heartbeat, Job
from django_pgjobs.models.attempts import Claim

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "_static"
WORKER, CLAIM = UUID("00000000-0000-4000-8000-00000000000a"), UUID("00000000-0000-4000-8000-00000000000c")
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/jobs.py", line 12, in charge
    gateway.charge(card, amount)
shop.errors.Declined: card refused
"""


def send_welcome(user_id: int) -> None: ...


def charge(order: int, card: str) -> None: ...


def render_report(month: str) -> None: ...


@pytest.fixture
def shop() -> Iterator[Job]:
    """A small shop's jobs; the one that is returned has failed twice and is waiting for its third attempt."""
    now = timezone.now()
    with registry.isolated():
        job(name="shop.jobs.send_welcome", queue="mail")(send_welcome)
        job(name="shop.jobs.charge", queue="payments", sensitive=("card",))(charge)
        job(name="shop.jobs.render_report", queue="reports")(render_report)
        later = now + timedelta(hours=1)
        Heartbeat.objects.create(
            id=WORKER, name="worker-1", host="app-1", pid=71, processes=2, threads=4, async_slots=0, version="0.1.0"
        )
        rows = [Job(**fields) for fields in described(now)]
        Job.objects.bulk_create(rows)
        running = [row.pk for row in rows if row.claim_id == CLAIM]
        Claim.objects.create(
            claim_id=CLAIM, part=0, worker=WORKER, lease_expires_at=later, check_at=later, job_ids=running
        )
        failed = rows[4]
        Job.objects.filter(pk=failed.pk).update(created_at=now - timedelta(minutes=5, seconds=12))
        for number in (1, 2):
            began = now - timedelta(minutes=6 - number)
            Attempt.objects.create(
                job=failed, claim_id=UUID(int=number), number=number, cause="failed", worker_name="worker-1",
                release="2026-11-20", started_at=began, ended_at=began + timedelta(seconds=1.25), duration_seconds=1.25,
                exception="shop.errors.Declined", message="card refused", traceback=TRACEBACK,
            )  # fmt: skip
        yield failed


def described(now: Any) -> Iterator[dict[str, Any]]:
    """The fields of each job, the oldest first."""
    mail: dict[str, Any] = {"name": "shop.jobs.send_welcome", "queue": "mail"}
    pay: dict[str, Any] = {"name": "shop.jobs.charge", "queue": "payments"}
    report: dict[str, Any] = {"name": "shop.jobs.render_report", "queue": "reports"}

    def ended(outcome: str, minutes: int, seconds: float, **more: Any) -> dict[str, Any]:
        at = now - timedelta(minutes=minutes)
        common = {"attempt": 1, "run_at": at, "finished_at": at, "claim_id": UUID(int=9), "duration_seconds": seconds}
        return {**common, "outcome": outcome, **more}

    def arguments(*args: Any) -> dict[str, Any]:
        return {"payload": {"args": list(args), "kwargs": {}}}

    running = {"claim_id": CLAIM, "worker": WORKER, "claimed_at": now, "attempt": 1}
    yield {**mail, **ended("succeeded", 9, 0.318), **arguments(4), "description": "ann@example.org"}
    yield {**mail, **ended("succeeded", 7, 0.291), **arguments(5), "description": "bert@example.org"}
    yield {
        **pay, **ended("abandoned", 6, 1.2, attempt=5), **arguments(16, "4111"), "description": "order 16",
        "error": "Declined: card refused",
    }  # fmt: skip
    yield {
        **report, **ended("cancelled", 5, 0.0), **arguments("2026-09"), "description": "September",
        "cancel_by": "auth.User:1 ann", "cancel_reason": "printed already",
    }  # fmt: skip
    yield {
        **pay, **arguments(17, "4111"), "attempt": 2, "run_at": now + timedelta(minutes=4), "description": "order 17",
        "error": "Declined: card refused",
    }  # fmt: skip
    yield {
        **pay, **arguments(18, "4111"), "hold": "parked", "name": "shop.jobs.refund", "description": "order 18",
        "hold_reason": "No job named 'shop.jobs.refund' is known here.",
    }  # fmt: skip
    yield {**mail, **arguments(6), "run_at": now + timedelta(hours=2), "description": "carla@example.org"}
    progress = {"n": 30, "total": 40, "message": "pages"}
    yield {**report, **running, **arguments("2026-10"), "description": "October", "progress": progress}
    yield {**pay, **arguments(19, "4111"), "priority": 10, "description": "order 19"}


@pytest.fixture
def page(chromium: Browser, live_server: Any) -> Iterator[Page]:
    context = chromium.new_context(
        base_url=live_server.url, color_scheme="light", viewport={"width": 1180, "height": 640}
    )
    context.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    yield context.new_page()
    context.close()


def test_take_the_pictures(page: Page, shop: Job) -> None:
    """As an operator sees them who may steer jobs but not read sensitive arguments."""
    user = User.objects.create_user("ann", password="secret", is_staff=True)
    ours = Permission.objects.filter(content_type__app_label="pgjobs")
    user.user_permissions.set(ours.exclude(codename="view_payload"))
    page.goto("/admin/")
    page.fill("#id_username", "ann")
    page.fill("#id_password", "secret")
    page.click("input[type=submit]")
    page.goto("/admin/pgjobs/job/")
    page.screenshot(path=PICTURES / "admin-jobs.png")
    page.set_viewport_size({"width": 1180, "height": 1400})  # all of the page, so that nothing is scrolled
    page.goto(f"/admin/pgjobs/job/{shop.pk}/change/")
    whole = page.locator("#container").bounding_box()
    last = page.locator("#pgjobs-attempts").bounding_box()
    assert whole is not None
    assert last is not None
    clip = {"x": 0, "y": 0, "width": whole["width"], "height": last["y"] + last["height"] + 16}
    page.screenshot(path=PICTURES / "admin-job.png", clip=clip)  # type: ignore[arg-type]
