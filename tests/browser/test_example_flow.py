"""The example project's flow in its own admin, after its own worker has read real files."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from example_project.indexer.sources import package_of, source_files
from tests.plugins.demo import Site, command, made, served_by
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.timeout(patience(300))]

FILES = 150
UNREADABLE = 3

Picture = Callable[[str], None]


@pytest.fixture(scope="module")
def site(django_db_setup: None) -> Iterator[Site]:
    """The demo, which has read the first files and serves its site; its report is approved."""
    with (
        made() as database,
        subprocess.Popen(
            command("--limit", str(FILES)),
            env=database.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as demo,
    ):
        try:
            served = served_by(demo)
            database.inside(
                """
from example_project.indexer.jobs import approval
from example_project.indexer.models import Edition
answer = approval.send(Edition.objects.get().pk, payload={"approved": True}, by="ann")
"""
            )
            flows = "SELECT FROM pgjobs_job WHERE name = 'pgjobs.flow' AND finished_at IS NOT NULL"
            wait_until(lambda: bool(database.query(flows)), 30, "the flow has ended")
            yield served
        finally:
            demo.terminate()


@pytest.fixture
def site_url(site: Site) -> str:
    return site.url


@pytest.fixture
def admin(page: Page, site: Site) -> Page:
    """A page on which the demo's user has logged in."""
    page.goto("/admin/")
    page.fill("#id_username", site.user)
    page.fill("#id_password", site.password)
    page.click("input[type=submit]")
    return page


def packages() -> int:
    """How many packages the files are from."""
    return len(set(map(package_of, source_files(FILES))))


def fact(page: Page, name: str) -> Locator:
    """The value of a fact in the section on the flow."""
    section = page.locator(".pgjobs-section", has=page.get_by_role("heading", name="Flow", exact=True))
    return section.locator("tr", has=page.locator("th", has_text=re.compile(f"^{name}$"))).locator("td")


def linked(page: Page, name: str) -> Locator:
    """The jobs that a fact leads to."""
    return fact(page, name).get_by_role("link", name=re.compile(r"#\d+$"))


def test_the_page_of_the_flow_has_its_figures_and_leads_to_what_failed(admin: Page, picture: Picture) -> None:
    admin.goto("/")
    nodes = FILES + packages() + 2
    expect(admin.get_by_text(f"{nodes} of {nodes} jobs of its flow have ended.")).to_be_visible()
    admin.get_by_role("link", name="its flow").click()
    expect(admin.locator(".pgjobs-state").first).to_have_text("abandoned")
    expect(admin.get_by_text(f"{UNREADABLE} of {nodes} members did not succeed.").first).to_be_visible()
    succeeded = nodes - UNREADABLE - 1
    figures = f"{succeeded} succeeded, {UNREADABLE} abandoned, 1 cancelled, 0 not ended"
    expect(fact(admin, "Members")).to_contain_text(figures)
    expect(linked(admin, "Failed members")).to_have_count(UNREADABLE)
    picture("example-flow")
    linked(admin, "Failed members").first.click()
    expect(admin.get_by_text("cannot be parsed").first).to_be_visible()
    expect(linked(admin, "Member of")).to_have_text(re.compile("^pgjobs.flow #"))
    expect(fact(admin, "Needed by")).to_contain_text(re.compile(r"library\.sum_package #\d+ .+ succeeded \(must end\)"))


def test_a_package_and_the_report_show_what_they_need_and_who_needs_them(admin: Page, picture: Picture) -> None:
    admin.goto("/admin/pgjobs/job/?name=library.sum_package")
    admin.locator("#result_list tbody tr", has_text="unreadable examples").get_by_role("link").first.click()
    expect(fact(admin, "Needs").get_by_text("(must end)")).to_have_count(UNREADABLE)
    expect(linked(admin, "Needs")).to_have_text([re.compile(r"^library\.index_file #\d+$")] * UNREADABLE)
    picture("example-package")
    linked(admin, "Needed by").click()
    expect(admin.locator(".pgjobs-state").first).to_have_text("succeeded")
    expect(linked(admin, "Needs")).to_have_text([re.compile(r"^library\.sum_package #\d+$")] * packages())
    expect(admin.get_by_text("store_totals").first).to_be_visible()
    picture("example-report")
    linked(admin, "Needed by").click()
    expect(admin.get_by_text("so it is not needed").first).to_be_visible()
    expect(admin.locator(".pgjobs-state").first).to_have_text("cancelled")
