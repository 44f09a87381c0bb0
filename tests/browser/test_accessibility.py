"""No page of ours has a serious fault of accessibility, light or dark, by the rules of axe-core."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from playwright.sync_api import Page

from django_pgjobs import job
from django_pgjobs.maintenance.cron_declaring import CronRows
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import Action, CronEntry, Heartbeat, Job, QueueState
from django_pgjobs.queues import Queue
from django_pgjobs.store.database import on
from tests.browser.test_admin_pages import LogIn, jobs_known, rows  # noqa: F401 (fixtures)
from tests.browser.test_overview import fleet  # noqa: F401 (a fixture)
from tests.plugins.fix_db import AUTHOR

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

LISTS = (
    "overview/", "overview/?span=month", "job/", "job/?state=running", "job/?state=cancelled", "job/?q=error:Declined",
    "heartbeat/", "queuestate/", "queuestate/add/", "cronentry/", "cronentry/add/", "action/", "eventstate/",
)  # fmt: skip

DJANGOS = {
    "label-title-only",  # its search bar and the box that ticks all rows
    "scrollable-region-focusable",  # its box around a wide list
}
"""Rules that pages of Django's own admin break."""

SERIOUS = ("serious", "critical")


def report(tenant_id: int) -> None: ...


@pytest.fixture
def filled(fleet: dict[str, Job]) -> dict[str, Job]:  # noqa: F811
    """The fleet, with pauses, a cron entry and actions."""
    definition: Any = job(name="shop.report", queue="mail", schedulable=True)(report)
    definition.schedule("0 7 * * 1-5", name="report:acme").register(tenant_id=7)
    CronRows(Leader(AUTHOR)).tick(on("default"))
    Queue("payments").pause(by="auth.User:1 anna", reason="the bank moves")
    fleet["abandoned"].retry(by="auth.User:1 anna", reason="the bank is back")
    fleet["scheduled"].reschedule(delay=60, by="auth.User:1 anna")
    return fleet


def faults(page: Page) -> list[str]:
    """What axe finds in our part of the page."""
    found = Axe().run(page, context="#content", options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]})
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:160]}"
        for rule in found.response["violations"]
        if rule["impact"] in SERIOUS and rule["id"] not in DJANGOS
        for node in rule["nodes"]
    ]


def test_no_page_has_a_serious_fault(page: Page, log_in: LogIn, filled: dict[str, Job]) -> None:
    log_in(User.objects.create_superuser("root"))
    paths = [*LISTS, *(f"job/{row.pk}/change/" for row in filled.values())]
    models: list[Any] = [Heartbeat, CronEntry, Action, QueueState]
    paths += [f"{model._meta.model_name}/{quote(model.objects.first().pk)}/change/" for model in models]
    wrong: dict[str, list[str]] = {}
    for path in paths:
        answer = page.goto(f"/admin/pgjobs/{path}")
        assert answer is not None
        assert answer.status == 200, path
        wrong[path] = faults(page)
    found = {path: each for path, each in wrong.items() if each}
    assert not found, "\n".join(f"{path}: {fault}" for path, each in found.items() for fault in each)


def test_the_question_before_an_action_has_none(page: Page, log_in: LogIn, filled: dict[str, Job]) -> None:
    log_in(User.objects.create_superuser("root"))
    page.goto("/admin/pgjobs/job/")
    page.locator("#action-toggle").check()
    page.select_option("select[name=action]", "cancel")
    page.get_by_role("button", name="Go").or_(page.get_by_role("button", name="Run")).first.click()
    assert page.locator("#pgjobs-count").is_visible()
    found = faults(page)
    assert not found, "\n".join(found)
