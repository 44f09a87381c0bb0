"""The example project's report waits for a person, who approves or refuses it in the admin."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.plugins.demo import Database, Site, command, made, served_by
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.timeout(patience(300))]

FILES = 20

Picture = Callable[[str], None]


@pytest.fixture(scope="module")
def database(django_db_setup: None) -> Iterator[Database]:
    """One for the demo."""
    with made() as database:
        yield database


@pytest.fixture(scope="module")
def site(database: Database) -> Iterator[Site]:
    """The demo, which has read the first files: its report waits for approval."""
    with subprocess.Popen(
        command("--limit", str(FILES)),
        env=database.environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as demo:
        try:
            yield served_by(demo)
        finally:
            demo.terminate()


@pytest.fixture
def site_url(site: Site) -> str:
    return site.url


@pytest.fixture
def edition(database: Database, site: Site) -> int:
    """A new edition, whose report waits for approval."""
    number: int = database.inside(
        f"""
from example_project.indexer.indexing import start_edition
from example_project.indexer.sources import source_files
answer = start_edition(source_files({FILES})).pk
"""
    )
    waits = f"SELECT FROM pgjobs_event WHERE name = 'library.approval:{number}'"
    wait_until(lambda: bool(database.query(waits)), 60, "the report waits for approval")
    return number


@pytest.fixture
def admin(page: Page, site: Site) -> Page:
    """A page on which the demo's user has logged in."""
    page.goto("/admin/")
    page.fill("#id_username", site.user)
    page.fill("#id_password", site.password)
    page.click("input[type=submit]")
    return page


def answer(page: Page, payload: str) -> None:
    """From the site's page to the job that waits, and send the event there."""
    page.goto("/")
    page.get_by_role("link", name="it waits for approval").click()
    expect(page.locator("h1, h2").filter(has_text="publish_report").first).to_be_visible()
    page.get_by_label("Payload (JSON)").fill(payload)
    page.get_by_role("button", name="Send event").click()
    page.get_by_role("button", name="Yes, send it").click()
    expect(page.get_by_text(re.compile(r"Sent library\.approval:\d+")).first).to_be_visible()


def test_a_person_approves_the_report_in_the_admin(admin: Page, edition: int, picture: Picture) -> None:
    answer(admin, '{"approved": true}')
    reloaded(admin, "succeeded")
    picture("example-approved")
    admin.goto("/")
    expect(admin.get_by_role("heading", name=f"Edition {edition}", exact=True)).to_be_visible()
    expect(admin.get_by_text(re.compile(r"approved \d+ \w+ \d{4}"))).to_be_visible()
    expect(admin.get_by_role("heading", name="Report of edition")).to_have_count(0)


def test_what_a_refused_report_has_published_is_undone_before_a_persons_eyes(
    admin: Page, edition: int, picture: Picture
) -> None:
    answer(admin, '{"approved": false, "reason": "odd figures"}')
    reloaded(admin, "abandoned")
    expect(admin.get_by_text("refused: odd figures").first).to_be_visible()
    job = admin.url
    for part in ("put_on_page", "store_totals"):
        admin.goto(f"/admin/pgjobs/job/?name=library.{part}.undo")
        expect(admin.locator("#result_list tbody tr").first).to_contain_text("succeeded")
    admin.goto(job)
    picture("example-refused")
    admin.goto("/")
    expect(admin.get_by_text("not published: library.publish_report: Abandon: refused: odd figures")).to_be_visible()


def reloaded(page: Page, state: str) -> None:
    """Reload the job's page until it says so."""

    def says() -> bool:
        page.reload()
        return page.locator(".pgjobs-state").first.text_content() == state

    wait_until(says, 30, f"the job has {state}")
