"""An operator works on batches and flows in the admin, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from django_pgjobs import Batch, Flow, job
from django_pgjobs.models import Action, Job
from django_pgjobs.testing import run_jobs
from tests.browser.test_admin_pages import LogIn, Picture, operator

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

JOBS = "/admin/pgjobs/job/"

unlucky: set[int] = set()


@job(name="shop.jobs.send", queue="mail", max_attempts=1, description="Send the newsletter")
def send(user: int) -> int:
    if user in unlucky:
        raise ValueError("the mailbox is full")
    return user


@job(name="shop.jobs.report", queue="reports", max_attempts=1)
def report(numbers: Any = None) -> None: ...


@pytest.fixture(autouse=True)
def nobody_is_unlucky() -> None:
    unlucky.clear()


def newsletter() -> Batch:
    """A batch of 30 members, three of which have failed, and a report behind it."""
    unlucky.update((7, 8, 9))
    with Batch("newsletter 7", succeeded=report.bind(), settled=report.using(priority=5).bind()) as batch:
        batch.add_many(send.bind(user) for user in range(30))
    run_jobs(queues=["mail", "default"])
    unlucky.clear()
    return batch


def said(page: Page) -> Locator:
    return page.locator(".messagelist li")


def flow_of(page: Page) -> Locator:
    """The section that shows what stands around the job."""
    return page.locator(".pgjobs-section", has=page.get_by_role("heading", name="Flow", exact=True))


def fact(page: Page, name: str) -> Locator:
    """One row of it."""
    return flow_of(page).locator("tr", has=page.get_by_role("rowheader", name=name, exact=True)).locator("td")


def test_failed_members_are_found_from_the_figures_of_their_batch_and_retried(
    page: Page, log_in: LogIn, picture: Picture
) -> None:
    batch = newsletter()
    log_in(operator("view_job", "retry_job", "view_action"))
    page.goto(f"{JOBS}{batch.job.pk}/change/")
    expect(page.get_by_text("Retry failed members lets it wait for them again.")).to_be_visible()
    expect(fact(page, "Members")).to_contain_text("27 succeeded, 3 abandoned, 0 cancelled, 0 not ended")
    expect(fact(page, "Failed members").get_by_role("link")).to_have_count(3)
    expect(fact(page, "Needed by").locator("div")).to_have_count(2)
    expect(page.locator(".pgjobs-actions .button")).to_have_text(["Retry failed members…", "Retry failed members"])
    picture("batch-failed")

    fact(page, "Members").get_by_role("link", name="3 abandoned").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(3)
    expect(page.locator("#result_list tbody .pgjobs-state")).to_have_text(["abandoned"] * 3)
    expect(page.locator("#changelist-filter")).to_contain_text(f"Members of {batch.job.pk}")
    picture("batch-members")
    page.locator("#result_list tbody th a").first.click()
    expect(page.get_by_text("the mailbox is full").first).to_be_visible()
    fact(page, "Member of").get_by_role("link", name="all members").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(30)
    page.locator("#result_list tbody th a").first.click()
    fact(page, "Member of").get_by_role("link", name=f"#{batch.job.pk}").click()

    page.get_by_text("Retry failed members…").click()
    page.locator("#pgjobs-retry_members").get_by_label("Reason").fill("room again")
    page.get_by_role("button", name="Retry failed members").click()
    expect(said(page)).to_have_text("Retry failed members: 3 changed. Reason: room again.")
    expect(page.locator(".pgjobs-state").first).to_have_text("blocked")
    expect(fact(page, "Members")).to_contain_text("27 succeeded, 0 abandoned, 0 cancelled, 3 not ended")
    expect(page.get_by_role("button", name="Retry failed members")).to_have_count(0)
    picture("batch-retried")
    run_jobs()
    page.reload()
    expect(page.locator(".pgjobs-state").first).to_have_text("succeeded")
    assert Action.objects.get().changed == 3


def test_a_flow_is_walked_by_its_links_and_a_node_is_unblocked(page: Page, log_in: LogIn, picture: Picture) -> None:
    flow = Flow("monthly report")
    first, second = flow.add(send.bind(1)), flow.add(send.bind(2))
    last = flow.add(report.bind(), after=[first, second], when="settled")
    made = flow.register()
    log_in(operator("view_job", "reschedule_job"))
    page.goto(f"{JOBS}{last.job_id}/change/")
    expect(page.get_by_text("It waits for 2 of the 2 jobs that it needs")).to_be_visible()
    expect(page.get_by_text("Unblock runs it all the same.")).to_be_visible()
    needed = [f"shop.jobs.send #{node.job_id} Send the newsletter ready (must end)" for node in (first, second)]
    expect(fact(page, "Needs").locator("div")).to_have_text(needed)
    picture("node-waits")
    fact(page, "Needs").get_by_role("link").first.click()
    expect(fact(page, "Needed by")).to_contain_text(f"shop.jobs.report #{last.job_id} blocked (must end)")
    fact(page, "Member of").get_by_role("link", name="pgjobs.flow").click()
    expect(fact(page, "Members")).to_contain_text("3 not ended")
    page.go_back()
    fact(page, "Needed by").get_by_role("link").click()

    page.get_by_text("Unblock…").click()
    form = page.locator("#pgjobs-unblock")
    expect(form).to_contain_text("it is abandoned")
    form.get_by_label("Reason").fill("the month is over")
    picture("node-unblock")
    form.get_by_role("button", name="Unblock").click()
    expect(said(page)).to_have_text("Unblock: 1 changed. Reason: the month is over.")
    expect(page.locator(".pgjobs-state").first).to_have_text("ready")
    expect(page.locator("#pgjobs-trail")).to_contain_text("Unblock")
    expect(page.get_by_text("Unblock…")).to_have_count(0)
    run_jobs(queues=["reports"])
    assert Job.objects.get(pk=last.job_id or 0).outcome == "succeeded"
    run_jobs()
    made.refresh_from_db()
    assert made.outcome == "succeeded"


def test_batches_that_nobody_closes_are_found_and_closed(page: Page, log_in: LogIn, picture: Picture) -> None:
    batches = [Batch(f"newsletter {number}").open() for number in range(3)]
    for batch in batches:
        batch.add(send.bind(1))
    run_jobs()
    log_in(operator("view_job", "reschedule_job", "cancel_job"))
    page.goto(JOBS)
    page.locator("#changelist-filter").get_by_role("link", name="Open batches").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(3)
    picture("batches-open")
    page.get_by_role("link", name=str(batches[0].job.pk), exact=True).click()
    expect(page.get_by_text("If no more are added, close it.")).to_be_visible()
    page.get_by_text("Cancel…").click()
    expect(page.locator("#pgjobs-cancel")).to_contain_text("are cancelled, too")
    expect(page.locator("#pgjobs-cancel").get_by_role("button")).to_have_text("Cancel it and its members")
    picture("batch-cancel")
    page.get_by_text("Close…").click()
    form = page.locator("#pgjobs-close")
    form.get_by_label("Reason").fill("its producer died")
    picture("batch-close")
    form.get_by_role("button", name="Close this batch").click()
    expect(said(page)).to_have_text("Close: 1 changed. Reason: its producer died.")
    expect(page.locator(".pgjobs-state").first).to_have_text("ready")
    run_jobs()
    assert batches[0].job.outcome == "succeeded"

    page.goto(f"{JOBS}?batch=open")
    expect(page.locator("#result_list tbody tr")).to_have_count(2)
    page.locator("#action-toggle").check()
    page.select_option("select[name=action]", "close")
    page.locator(".actions button[name=index]").click()
    expect(said(page)).to_contain_text("Close: 2 changed.")
    expect(page.locator("#result_list tbody tr")).to_have_count(0)


def test_who_may_only_look_finds_no_button_on_a_batch(page: Page, log_in: LogIn) -> None:
    failed, opened = newsletter(), Batch("open").open()
    log_in(operator("view_job"))
    for batch in (failed, opened):
        page.goto(f"{JOBS}{batch.job.pk}/change/")
        expect(flow_of(page)).to_be_visible()
        expect(page.locator(".pgjobs-actions .button")).to_have_count(0)


def test_it_works_without_javascript(unscripted: Page) -> None:
    page, batch = unscripted, newsletter()
    page.goto(f"{JOBS}{batch.job.pk}/change/")
    page.get_by_text("Retry failed members…").click()
    page.locator("#pgjobs-retry_members").get_by_label("Reason").fill("room again")
    page.get_by_role("button", name="Retry failed members").click()
    expect(said(page)).to_have_text("Retry failed members: 3 changed. Reason: room again.")
    page.get_by_text("Unblock…").click()
    page.locator("#pgjobs-unblock").get_by_label("Reason").fill("no time")
    page.get_by_role("button", name="Unblock").click()
    expect(said(page)).to_have_text("Unblock: 1 changed. Reason: no time.")
    run_jobs(queues=["default"])
    assert batch.job.outcome == "succeeded"
