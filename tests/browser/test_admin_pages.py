"""An operator's day in the admin, in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone
from playwright.sync_api import Page, expect

from django_pgjobs import job
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Attempt, Heartbeat, Job
from django_pgjobs.models.attempts import Claim

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

WORKER = UUID("00000000-0000-4000-8000-00000000000a")
CLAIM = UUID("00000000-0000-4000-8000-00000000000c")
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/jobs.py", line 12, in charge
    gateway.charge(card, amount)
shop.errors.Declined: card refused
"""


def charge(card: str, amount: int, note: str = "") -> None:
    """A job with a secret."""


@pytest.fixture(autouse=True)
def jobs_known() -> Iterator[None]:
    with registry.isolated():
        job(name="shop.jobs.charge", queue="payments", sensitive=("card",))(charge)
        yield


@pytest.fixture
def rows() -> dict[str, Job]:
    """Some jobs of every state."""
    now = timezone.now()
    common: dict[str, Any] = {"name": "shop.jobs.charge", "queue": "payments"}
    common["payload"] = {"args": ["4111 1111", 1990], "kwargs": {"note": "for order 17\nrush"}}
    ended = {
        "finished_at": now - timedelta(minutes=3),
        "attempt": 1,
        "duration_seconds": 0.318,
        "claim_id": UUID(int=9),
    }
    wanted: dict[str, dict[str, Any]] = {
        "ready": {"description": "order 17 of ACME", "priority": 10},
        "scheduled": {"run_at": now + timedelta(hours=2), "description": "order 18 of Wayne Enterprises"},
        "retrying": {
            "run_at": now + timedelta(minutes=4),
            "attempt": 2,
            "error": "Declined: card refused ← OSError: line",
        },
        "running": {"claim_id": CLAIM, "worker": WORKER, "claimed_at": now, "attempt": 1, "overdue_at": now},
        "parked": {
            "hold": "parked",
            "hold_reason": "No job named 'shop.jobs.chargee' is known here.",
            "name": "shop.gone",
        },
        "succeeded": {"outcome": "succeeded", "result": {"receipt": "R-1", "total": 1990}, **ended},
        "cancelled": {
            "outcome": "cancelled",
            "cancel_by": "auth.User:1 anna",
            "cancel_reason": "sale is over",
            **ended,
        },
        "abandoned": {"outcome": "abandoned", "error": "Declined: card refused", **ended, "attempt": 5},
    }
    wanted["running"]["progress"] = {"n": 30, "total": 40, "message": "lines"}
    wanted["cancelled"]["cancel_requested_at"] = now
    Job.objects.bulk_create([Job(**{**common, "outcome": "succeeded", **ended}) for _ in range(120)])
    made = Job.objects.bulk_create([Job(**{**common, **fields}) for fields in wanted.values()])
    rows = dict(zip(wanted, made, strict=True))
    Heartbeat.objects.create(
        id=WORKER,
        name="web-1",
        host="web-1.example.org",
        pid=71,
        processes=4,
        threads=4,
        async_slots=50,
        version="0.1.0",
    )
    later = now + timedelta(hours=1)
    Claim.objects.create(
        claim_id=CLAIM, part=0, worker=WORKER, lease_expires_at=later, check_at=later, job_ids=[rows["running"].pk]
    )
    for number in (1, 2):
        Attempt.objects.create(
            job=rows["retrying"], claim_id=UUID(int=number), number=number, cause="failed", worker_name="web-1",
            release="2026-11-20", started_at=now, duration_seconds=1.25, exception="shop.errors.Declined",
            message="card refused", traceback=TRACEBACK,
            chain=[["shop.errors.Declined", "card refused"], ["builtins.OSError", "line is down"]],
        )  # fmt: skip
    return rows


def operator(*permissions: str) -> User:
    user = User.objects.create_user("anna", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="pgjobs", codename__in=permissions))
    return user


LogIn = Callable[[User], User]
Picture = Callable[[str], None]


def test_filter_open_cancel_with_a_reason_and_read_the_message(
    page: Page, log_in: LogIn, rows: dict[str, Job], picture: Picture
) -> None:
    log_in(operator("view_job", "cancel_job", "retry_job"))
    page.goto("/admin/pgjobs/job/")
    picture("list")
    page.locator("#changelist-filter").get_by_role("link", name="Ready").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    page.locator("#result_list tbody th a").first.click()
    expect(page.get_by_text("4111 1111")).to_have_count(0)
    expect(page.get_by_text("••••")).to_be_visible()
    picture("job-ready")
    page.get_by_text("Cancel…").click()
    page.get_by_label("Reason").fill("ordered twice")
    picture("job-cancel")
    page.get_by_role("button", name="Cancel this job").click()
    expect(page.locator(".messagelist")).to_contain_text("Cancel (ask): 1 changed. Reason: ordered twice.")
    expect(page.locator(".pgjobs-state")).to_have_text("cancelled")
    expect(page.get_by_text("It was cancelled")).to_contain_text("ordered twice")
    picture("job-cancelled")
    rows["ready"].refresh_from_db()
    assert (rows["ready"].state, rows["ready"].cancel_reason) == ("cancelled", "ordered twice")


def test_the_history_of_failures_and_a_running_job(
    page: Page, log_in: LogIn, rows: dict[str, Job], picture: Picture
) -> None:
    log_in(User.objects.create_superuser("root"))
    page.goto(f"/admin/pgjobs/job/{rows['retrying'].pk}/change/")
    attempts = page.locator("#pgjobs-attempts tbody tr")
    expect(attempts).to_have_count(1)
    expect(attempts).to_contain_text("×2")
    expect(page.locator("pre", has_text="gateway.charge").first).to_be_visible()
    attempts.first.get_by_text("Traceback").first.click()
    expect(page.locator("pre", has_text="gateway.charge").first).to_be_hidden()
    picture("job-retrying")
    page.goto(f"/admin/pgjobs/job/{rows['running'].pk}/change/")
    expect(page.get_by_role("progressbar")).to_be_visible()
    picture("job-running")
    page.get_by_text("Release…").click()
    expect(page.get_by_text("its worker kills the process")).to_be_visible()
    picture("job-release")
    page.get_by_role("button", name="Release this job").click()
    expect(page.get_by_text("It was asked to release the job.")).to_be_visible()
    page.goto(f"/admin/pgjobs/job/{rows['succeeded'].pk}/change/")
    picture("job-succeeded")


def test_select_all_pages_and_cancel_after_the_question(
    page: Page, log_in: LogIn, rows: dict[str, Job], picture: Picture
) -> None:
    Job.objects.bulk_create([Job(name="shop.jobs.charge", queue="bulk", payload={}) for _ in range(130)])
    log_in(User.objects.create_superuser("root"))
    page.goto("/admin/pgjobs/job/?queue=bulk")
    page.locator("#action-toggle").check()
    page.get_by_role("button", name="Select all 130 jobs").click()
    page.select_option("select[name=action]", "cancel")
    page.locator(".actions button[name=index]").click()
    expect(page.locator("#pgjobs-count")).to_have_text("130")
    expect(page.locator("#pgjobs-filter")).to_have_text("queue bulk")
    expect(page.locator("#pgjobs-names")).to_have_text("130 × shop.jobs.charge")
    picture("confirm")
    page.get_by_label("Reason").fill("wrong import")
    page.get_by_role("button", name="Yes, I’m sure").click()
    expect(page.locator(".messagelist")).to_contain_text("Cancel (ask): 130 changed. Reason: wrong import.")
    assert Job.objects.filter(queue="bulk", state="cancelled", cancel_reason="wrong import").count() == 130
    rows["ready"].refresh_from_db()
    assert rows["ready"].state == "ready"


def test_search_says_how_far_it_looked_and_finds_an_id(
    page: Page, log_in: LogIn, rows: dict[str, Job], picture: Picture
) -> None:
    log_in(User.objects.create_superuser("root"))
    page.goto("/admin/pgjobs/job/")
    page.fill("#searchbar", "wayne")
    page.press("#searchbar", "Enter")
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    expect(page.get_by_role("link", name="the first 1,000,000 jobs")).to_be_visible()
    picture("search")
    page.fill("#searchbar", str(rows["parked"].pk))
    page.press("#searchbar", "Enter")
    expect(page.locator("#result_list .pgjobs-state")).to_have_text("parked")


def test_workers(page: Page, log_in: LogIn, rows: dict[str, Job], picture: Picture) -> None:
    log_in(User.objects.create_superuser("root"))
    page.goto("/admin/pgjobs/heartbeat/")
    expect(page.locator(".pgjobs-state")).to_have_text("running")
    picture("workers")
    page.locator("#result_list tbody th a").first.click()
    picture("worker")


def test_everything_works_without_javascript(unscripted: Page, rows: dict[str, Job]) -> None:
    page = unscripted
    page.goto(f"/admin/pgjobs/job/{rows['parked'].pk}/change/")
    page.get_by_text("Abandon…").click()
    page.get_by_role("textbox", name="Reason").locator("visible=true").fill("hopeless")
    page.get_by_role("button", name="Abandon this job").click()
    expect(page.locator(".messagelist")).to_contain_text("Abandon: 1 changed.")
    page.goto("/admin/pgjobs/job/?state=abandoned")
    page.locator("input[name=_selected_action]").first.check()
    page.select_option("select[name=action]", "retry")
    page.locator(".actions button[name=index]").click()
    expect(page.locator(".messagelist")).to_contain_text("Retry: 1 changed.")
