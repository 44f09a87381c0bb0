"""The admin's lists on a laptop and on a phone: nothing that matters lies off the screen."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from django_pgjobs.models import Heartbeat, Job
from django_pgjobs.queues import Queue
from tests.browser.test_admin_pages import LogIn, Picture, jobs_known, rows  # noqa: F401 (fixtures)

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

LISTS = ("job/", "job/?state=running", "job/?state=cancelled", "heartbeat/", "queuestate/", "action/")


def name_of(path: str) -> str:
    return path.strip("/").replace("/?state=", "-")


@pytest.fixture
def filled(rows: dict[str, Job]) -> dict[str, Job]:  # noqa: F811
    """Rows of every state, actions, pauses and workers with long names."""
    rows["abandoned"].retry(by="auth.User:1 anna", reason="the bank is back")
    rows["scheduled"].reschedule(delay=60, by="auth.User:1 anna")
    rows["ready"].cancel(by="auth.User:1 anna", reason="the customer called and does not want it any more")
    others = Job.objects.filter(name="shop.jobs.charge").exclude(state__in=["ready", "running"])
    others.cancel(by="release script", reason="wrong import")
    Queue("payments").pause(by="auth.User:1 anna", reason="the bank moves its servers this weekend")
    for number in range(3):
        Heartbeat.objects.create(
            name=f"worker-7d9f8b6c5-x{number}kzq.shop-production-{number}", host="ip-10-0-17-231.eu-central-1.example",
            pid=4000 + number, processes=4, threads=4, async_slots=50, version="0.1.0", release="2026-11-22.3-abcdef12",
            queues=["payments", "mail", "reports"], running=17, finished=1_234_567,
        )  # fmt: skip
    return rows


def overhang(page: Page) -> int:
    """By how many pixels the page or its list can be scrolled sideways."""
    found: int = page.evaluate(
        "Math.max(...[document.scrollingElement, ...document.querySelectorAll('.results')]"
        ".map(each => each.scrollWidth - each.clientWidth))"
    )
    return found


@pytest.mark.parametrize("width", [1366, 400])
def test_no_list_is_wider_than_the_screen(
    page: Page, log_in: LogIn, filled: dict[str, Job], picture: Picture, width: int
) -> None:
    log_in(User.objects.create_superuser("root"))
    page.set_viewport_size({"width": width, "height": 900})
    over = {}
    for path in LISTS:
        page.goto(f"/admin/pgjobs/{path}")
        picture(f"{name_of(path)}-{width}")
        over[path] = overhang(page)
    assert {path: pixels for path, pixels in over.items() if pixels > 1} == {}


def test_errors_are_seen_on_a_phone_and_all_can_be_chosen(
    page: Page, log_in: LogIn, filled: dict[str, Job], picture: Picture
) -> None:
    log_in(User.objects.create_superuser("root"))
    page.set_viewport_size({"width": 400, "height": 900})
    page.goto("/admin/pgjobs/job/?state=retrying")
    error = page.get_by_text("Declined: card refused").first
    expect(error).to_be_visible()
    box = error.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 400
    page.locator("#action-toggle").check()
    expect(page.locator("input[name=_selected_action]").first).to_be_checked()
    page.goto(f"/admin/pgjobs/job/{filled['ready'].pk}/change/")
    expect(page.get_by_role("heading", name="Operator actions")).to_be_visible()
    picture("job-trail-400")
    assert overhang(page) <= 1


def test_the_trace_of_a_job_is_on_its_page(page: Page, log_in: LogIn, filled: dict[str, Job], picture: Picture) -> None:
    log_in(User.objects.create_superuser("root"))
    page.goto(f"/admin/pgjobs/job/{filled['ready'].pk}/change/")
    trail = page.locator("#pgjobs-trail tbody tr")
    expect(trail.first).to_contain_text("anna")
    expect(trail.first).to_contain_text("the customer called")
    picture("job-trail")
    trail.first.get_by_role("link").click()
    expect(page.locator(".field-shown_what")).to_contain_text("Cancel (ask)")
    picture("action")


def test_a_queue_that_nobody_knows_is_asked_about(page: Page, log_in: LogIn, picture: Picture) -> None:
    log_in(User.objects.create_superuser("root"))
    page.goto("/admin/pgjobs/queuestate/add/")
    expect(page.locator("#id_anyway")).to_be_hidden()
    page.select_option("#id_kind", "queue")
    page.fill("#id_name", "paiments")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".errorlist").first).to_contain_text("did you mean 'payments'?")
    picture("pause-unknown")
    page.locator("#id_anyway").check()
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".messagelist .warning")).to_contain_text("Queue paiments is paused. No job")
