"""An operator answers a durable function that waits, in a real browser."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from playwright.sync_api import Page, expect

from django_pgjobs import Event, JobContext, job
from django_pgjobs.models import Action, Job
from django_pgjobs.testing import run_jobs
from tests.browser.test_admin_pages import LogIn, Picture, operator

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

JOBS = "/admin/pgjobs/job/"

approval: Event[dict[str, str]] = Event("order.approval")

broken: set[str] = set()


def charge(order: int) -> dict[str, Any]:
    return {"receipt": f"R-{order}", "total": 1990, "lines": [{"sku": f"A-{n}", "amount": n} for n in range(5)]}


@job(name="shop.jobs.refund", queue="payments", takes_context=True, max_attempts=1)
def refund(context: JobContext, order: int) -> None:
    if "bank" in broken:
        raise ValueError("the bank is closed")


@job(name="shop.jobs.order", queue="payments", takes_context=True, max_attempts=1, description="Ship an order")
def ship(context: JobContext, order: int) -> str:
    context.step.using(undo=refund)(charge, order)
    verdict = context.wait_for(approval, order, timeout=timedelta(days=14))
    if verdict["by"] == "nobody":
        raise ValueError("refused")
    return verdict["by"]


@job(name="shop.jobs.remind", queue="payments", takes_context=True)
def remind(context: JobContext) -> None:
    context.sleep(timedelta(days=3))


@pytest.fixture(autouse=True)
def nothing_is_broken() -> None:
    broken.clear()


def run_elsewhere() -> None:
    """Run jobs in a thread of their own: in ours runs Playwright's loop, where each context has its own connection."""

    def run() -> None:
        try:
            run_jobs()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


def started(call: Any) -> Job:
    row: Job = call.register()
    run_elsewhere()
    return row


def test_an_event_is_sent_from_the_page_of_the_job_that_waits_for_it(
    page: Page, log_in: LogIn, picture: Picture
) -> None:
    row, asleep = started(ship.bind(7)), started(remind.bind())
    log_in(operator("view_job", "view_eventstate", "view_action", "send_event"))
    page.goto(JOBS)
    page.locator("#changelist-filter").get_by_role("link", name="Sleeping").click()
    expect(page.locator("#result_list tbody th")).to_have_text([str(asleep.pk)])
    page.locator("#changelist-filter").get_by_role("link", name="Waiting for an event").click()
    expect(page.locator("#result_list tbody th")).to_have_text([str(row.pk)])
    picture("steps-list")
    page.locator("#result_list tbody th a").first.click()

    expect(page.get_by_text("Send the event below")).to_be_visible()
    steps = page.locator("#pgjobs-memos")
    expect(steps.locator("tbody tr")).to_have_count(2)
    steps.get_by_text("Show").click()
    expect(steps.get_by_text("R-7")).to_be_visible()
    picture("steps-job")

    page.get_by_label("Payload (JSON)").fill('{"by": "Änne"')
    page.get_by_role("button", name="Send event").click()
    expect(page.locator(".errorlist")).to_contain_text("This is not valid JSON: Expecting ',' delimiter, in line 1")
    expect(page.get_by_label("Payload (JSON)")).to_have_value('{"by": "Änne"')
    picture("steps-no-json")
    page.get_by_label("Payload (JSON)").fill('{"by": "Änne"}')
    page.get_by_role("button", name="Send event").click()
    page.get_by_role("button", name="Yes, send it").click()

    expect(page.locator(".messagelist li")).to_have_text("Sent order.approval:7.")
    expect(page.locator("#pgjobs-send")).to_have_count(0)
    expect(page.locator("#pgjobs-trail tbody")).to_contain_text("Send (order.approval:7)")
    run_elsewhere()
    page.reload()
    expect(page.locator(".pgjobs-state").first).to_have_text("succeeded")
    row.refresh_from_db()
    assert row.result == "Änne"
    assert Action.objects.get().verb == "send"

    page.goto("/admin/pgjobs/eventstate/")
    picture("events-list")
    page.get_by_role("link", name="order.approval:7").click()
    expect(page.locator(".pgjobs-facts")).to_contain_text("anna")
    picture("events-one")


def test_what_could_not_be_undone_is_undone_again(page: Page, log_in: LogIn, picture: Picture) -> None:
    row = started(ship.bind(8))
    broken.add("bank")
    approval.send(8, payload={"by": "nobody"})
    run_elsewhere()
    broken.clear()
    log_in(operator("view_job", "retry_job"))
    page.goto(f"{JOBS}{row.pk}/change/")
    expect(page.get_by_text("It is not retried, as its undo has begun.")).to_be_visible()
    picture("undo-failed")
    page.get_by_role("button", name="Undo again").click()
    expect(page.locator(".messagelist li")).to_have_text("Undo again: 1 changed.")
    run_elsewhere()
    page.get_by_role("link", name="pgjobs.undo").click()
    expect(page.locator(".pgjobs-state").first).to_have_text("succeeded")
    page.get_by_role("link", name=f"shop.jobs.order #{row.pk}").click()
    expect(page.get_by_role("button", name="Undo again")).to_have_count(0)
