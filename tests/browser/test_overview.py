"""The overview in a browser: light and dark, on a phone, without a script, and live."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from playwright.sync_api import Page, expect

from django_pgjobs.models import Heartbeat, Job, LeaderTerm
from django_pgjobs.models.numbers import Depth, Minute
from django_pgjobs.states import TREND
from tests.browser.showcase import showcase  # noqa: F401 (a fixture)
from tests.browser.test_admin_pages import LogIn, Picture, jobs_known, rows  # noqa: F401 (fixtures)
from tests.browser.test_admin_widths import overhang
from tests.db.test_overview import beginning, lead

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PAGE = "/admin/pgjobs/overview/"


@pytest.fixture
def fleet(rows: dict[str, Job]) -> dict[str, Job]:  # noqa: F811
    """Rows of every state, an hour of charts with a new release in it, failures, and a leader's figures."""
    now = beginning(60)
    for ago in range(60):
        minute, many = now - timedelta(minutes=ago), 40 + ago % 7 * 5
        release = "2026-11-22.3" if ago < 17 else "2026-11-20.1"
        for outcome, jobs in (("succeeded", many), ("abandoned", 12 if ago < 17 else 0), ("retried", 5)):
            if jobs:
                Minute.objects.create(
                    worker=TREND, minute=minute, queue="", name="", outcome=outcome, release=release, jobs=jobs,
                    run_seconds=1, wait_seconds=1, run_histogram=[0, 1, 4, 20, 30, 10, 4, 1, ago % 3],
                    wait_histogram=[30, 20, 4, 1, 0, 0, ago % 5],
                )  # fmt: skip
        for queue, ready in (("payments", abs(30 - ago)), ("mail", ago % 11)):
            Depth.objects.create(minute=minute, queue=queue, ready=ready, scheduled=0, running=0, held=0)
    Job.objects.filter(outcome="abandoned").update(error_class="shop.errors.Declined", finished_at=Now())
    lead()
    return rows


def test_it_is_read_at_a_glance_and_on_a_phone(
    page: Page,
    log_in: LogIn,
    showcase: None,  # noqa: F811
    picture: Picture,
) -> None:
    log_in(User.objects.create_superuser("root"))
    page.goto("/admin/pgjobs/")
    page.get_by_role("link", name="Overview").first.click()
    expect(page.get_by_role("heading", name="Failures within 24 hours")).to_be_visible()
    expect(page.locator("#pgjobs-tiles a").first).to_contain_text("due")
    picture("overview")
    assert overhang(page) <= 1
    page.set_viewport_size({"width": 400, "height": 900})
    picture("overview-400")
    assert overhang(page) <= 1
    page.get_by_role("link", name="30 days").click()
    expect(page.locator('[aria-current="true"]')).to_have_text("30 days")


def test_it_stays_current_until_somebody_pauses_it(page: Page, log_in: LogIn, fleet: dict[str, Job]) -> None:
    log_in(User.objects.create_superuser("root"))
    page.goto(PAGE)
    due = page.locator("#pgjobs-tiles .pgjobs-ready strong")
    before = int(due.inner_text())
    Job.objects.bulk_create([Job(name="shop.jobs.charge", payload={"args": [], "kwargs": {}})])
    lead()
    expect(due).to_have_text(str(before + 1), timeout=15_000)
    page.get_by_role("button", name="live").click()
    expect(page.get_by_role("button", name="paused")).to_be_visible()
    Heartbeat.objects.all().delete()
    LeaderTerm.objects.all().delete()


def test_it_is_complete_without_a_script(unscripted: Page, showcase: None) -> None:  # noqa: F811
    unscripted.goto(PAGE)
    for heading in ("Queues", "Failures within 24 hours", "Charts", "Workers", "Cron entries"):
        expect(unscripted.get_by_role("heading", name=heading)).to_be_visible()
    if folder := os.environ.get("PGJOBS_TEST_SCREENSHOTS"):
        unscripted.screenshot(path=Path(folder) / "overview-unscripted.png", full_page=True)
    unscripted.get_by_text("The same as a table").click()
    expect(
        unscripted.get_by_role("cell", name="2026").or_(unscripted.get_by_role("cell", name="40")).first
    ).to_be_visible()
    unscripted.get_by_role("link", name="Refresh").click()
    expect(unscripted.get_by_role("heading", name="Overview")).to_be_visible()


def test_it_works_under_a_strict_policy(page: Page, log_in: LogIn, fleet: dict[str, Job]) -> None:
    """``default-src 'self'``: no inline script, no inline style, nothing from elsewhere."""
    broken: list[str] = []
    page.on("console", lambda message: broken.append(message.text) if message.type == "error" else None)
    # Browsers ask for it at some time, and it is not of ours.
    page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
    log_in(User.objects.create_superuser("root"))

    def strictly(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": "default-src 'self'"})

    page.route("**/admin/pgjobs/**", strictly)
    for path in (PAGE, "/admin/pgjobs/job/", "/admin/pgjobs/job/?state=running", "/admin/pgjobs/queuestate/"):
        page.goto(path)
    page.goto(f"/admin/pgjobs/job/{fleet['running'].pk}/change/")
    expect(page.get_by_role("button", name="live")).to_be_visible()
    assert broken == []
