"""A Chromium page on a live server, logged in where a test asks for it.

The browser is the system's (``PGJOBS_TEST_CHROMIUM`` names another). ``PGJOBS_TEST_SCREENSHOTS`` is a directory in
which every test leaves pictures of what it saw, for people to judge the looks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    found = os.environ.get("PGJOBS_TEST_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.fail("No Chromium found; on Debian: apt-get install chromium")
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright keeps an event loop in this thread, which Django takes for asynchronous code.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def site_url(live_server: Any) -> str:
    """Where the site is served; a module may name another."""
    return str(live_server.url)


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, chromium: Browser, site_url: str) -> Iterator[Page]:
    """A page in each of the colour schemes; an error of the page's JavaScript fails the test."""
    context = chromium.new_context(
        base_url=site_url, color_scheme=request.param, viewport={"width": 1440, "height": 1000}
    )
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []


@pytest.fixture
def log_in(page: Page) -> Callable[..., User]:
    """Log a user in by the form: a superuser, or one with these permissions."""

    def log_in(user: User) -> User:
        user.set_password("secret")
        user.save()
        page.goto("/admin/")
        page.fill("#id_username", user.username)
        page.fill("#id_password", "secret")
        page.click("input[type=submit]")
        return user

    return log_in


@pytest.fixture
def unscripted(chromium: Browser, live_server: Any) -> Iterator[Page]:
    """A superuser's page without JavaScript."""
    User.objects.create_superuser("root", password="secret")
    context = chromium.new_context(base_url=live_server.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/admin/")
    page.fill("#id_username", "root")
    page.fill("#id_password", "secret")
    page.click("input[type=submit]")
    yield page
    context.close()


@pytest.fixture
def picture(page: Page, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Take a picture of the page, if pictures are wanted."""
    folder = os.environ.get("PGJOBS_TEST_SCREENSHOTS")

    def picture(name: str) -> None:
        if folder:
            scheme = request.node.callspec.params.get("page", "")
            page.screenshot(path=Path(folder) / f"{name}-{scheme}.png", full_page=True)

    return picture
