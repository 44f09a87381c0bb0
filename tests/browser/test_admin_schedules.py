"""A person makes, previews, runs, pauses, breaks, mends and deletes a schedule in the admin, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from django_pgjobs import job
from django_pgjobs.definition.registry import registry
from django_pgjobs.maintenance.cron_declaring import CronRows
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store.database import on
from django_pgjobs.testing import run_jobs
from tests.browser.test_admin_pages import LogIn, operator
from tests.plugins.fix_db import AUTHOR

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
CRONS = "/admin/pgjobs/cronentry/"
PAGE = f"{CRONS}report_3Aacme/change/"

sent: list[int] = []


def report(tenant_id: int, kind: str = "daily") -> None:
    sent.append(tenant_id)


def wider(tenant_id: int, language: str) -> None: ...


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    sent.clear()
    with registry.isolated():
        job(name="shop.report", queue="mail", schedulable=True)(report)
        yield


def deploy(func: Any) -> None:
    """Start a worker with this code."""
    registry._by_name.clear()
    job(name="shop.report", queue="mail", schedulable=True)(func)
    CronRows(Leader(AUTHOR)).tick(on("default"))


def fill(page: Page, **values: str) -> None:
    for name, value in values.items():
        page.fill(f"#id_{name}", value)


def live_through(page: Page) -> None:
    """Make, preview, run now, pause, break, mend, delete."""
    page.goto(CRONS)
    page.get_by_role("link", name="Add cron entry").first.click()
    fill(page, name="report:acme", expression="every 0 minutes", tz="Europe/Berlin", argument_tenant_id="7")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("an interval must be whole seconds")).to_be_visible()
    fill(page, expression="every 2 weeks from 2026-01-05 07:00")
    page.get_by_role("button", name="Preview").click()
    preview = page.get_by_role("region", name="Preview")
    expect(preview).to_contain_text("Every 2 weeks at 07:00 by the clocks of Europe/Berlin")
    expect(preview.locator("li")).to_have_count(10)
    assert not CronEntry.objects.exists()
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".messagelist li")).to_have_text("Schedule made.")

    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".messagelist li")).to_contain_text("Run now: 1 entry.")
    run_jobs()
    assert sent == [7]
    page.reload()
    expect(page.locator(".field-shown_jobs")).to_contain_text("succeeded")

    page.locator("summary", has_text="Pause").click()
    page.fill("#pgjobs-pause-reason", "holidays")
    page.locator("#pgjobs-pause").get_by_role("button").click()
    expect(page.locator(".field-shown_status")).to_contain_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".field-shown_status")).to_contain_text("on")

    deploy(wider)
    page.reload()
    expect(page.locator(".field-shown_status")).to_contain_text("broken")
    expect(page.locator(".field-shown_note")).to_contain_text("language")
    page.get_by_role("link", name="Change", exact=True).click()
    fill(page, argument_tenant_id="7", argument_language="de", reason="speaks German now")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".messagelist li")).to_have_text("Schedule changed.")
    expect(page.locator(".field-shown_status")).to_contain_text("on")
    expect(page.locator(".field-shown_actions")).to_contain_text("speaks German now")

    page.locator("summary", has_text="Delete").click()
    page.locator("#pgjobs-remove").get_by_role("button").click()
    expect(page.locator(".messagelist li")).to_contain_text("Delete: 1 entry.")
    assert (CronEntry.objects.count(), Job.objects.count()) == (0, 1)


def test_a_person_leads_a_schedule_from_its_making_to_its_end(page: Page, log_in: LogIn) -> None:
    permissions = ("view", "add", "change", "delete", "run")
    log_in(operator("view_job", *(f"{verb}_cronentry" for verb in permissions)))
    live_through(page)


def test_the_same_without_script(unscripted: Page) -> None:
    live_through(unscripted)


def test_a_person_with_few_permissions_sees_no_way_to_what_is_refused(page: Page, log_in: LogIn) -> None:
    definition: Any = registry.get("shop.report")
    definition.schedule("@daily", name="report:acme").register(7)
    log_in(operator("view_cronentry"))
    page.goto(CRONS)
    expect(page.get_by_role("link", name="Add cron entry")).to_have_count(0)
    page.goto(PAGE)
    expect(page.locator(".field-shown_status")).to_contain_text("on")
    expect(page.locator(".pgjobs-actions button")).to_have_count(0)
    expect(page.get_by_role("link", name="Change", exact=True)).to_have_count(0)
