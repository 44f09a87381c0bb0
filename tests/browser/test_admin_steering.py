"""An operator steers cron entries and pauses in the admin, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import FloatRect, Locator, Page, expect

from django_pgjobs import Cron, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.maintenance.cron_declaring import MISSING_SECONDS, CronSync, MarkMissing, declared_for
from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.maintenance.leader import Leader
from django_pgjobs.models import CronEntry, Job, QueueState
from django_pgjobs.queues import Queue
from django_pgjobs.store.database import on
from django_pgjobs.testing import run_jobs
from tests.browser.test_admin_pages import LogIn, Picture, operator
from tests.plugins.fix_db import AUTHOR

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

JOBS = "/admin/pgjobs/job/"
PAUSES = "/admin/pgjobs/queuestate/"
CRONS = "/admin/pgjobs/cronentry/"
DIGEST = f"{CRONS}daily digest/change/"

reminded: list[str] = []


def remind(to: str) -> None:
    reminded.append(to)


def charge(amount: int) -> None: ...


def digest(kind: str, token: str = "") -> None: ...


def _definition(name: str) -> JobDefinition[..., Any]:
    return cast("JobDefinition[..., Any]", registry.get(name))


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """Two jobs, and a third with the cron entries that a worker has brought into their rows."""
    reminded.clear()
    with registry.isolated():
        job(name="shop.jobs.remind", queue="mail")(remind)
        job(name="shop.jobs.charge", queue="payments")(charge)
        definition = job(name="shop.jobs.digest", queue="reports", sensitive=["token"])(digest)
        bound = definition.bind("daily", token="hunter2")
        Cron("0 3 * * *", bound, name="daily digest", tz="Europe/Paris", overlap="skip")
        Cron("*/10 * * * *", bound, name="stock levels")
        Cron("@hourly", bound, name="exchange rates")
        Cron("30 6 * * 1", bound, name="weekly letter")
        CronSync(declared_for("default"), Leader(AUTHOR)).tick(on("default"))
        yield


def entry(name: str = "daily digest") -> CronEntry:
    return CronEntry.objects.get(pk=name)


def row_of(page: Page, name: str) -> Locator:
    """The row of a list that begins with this name."""
    return page.locator("#result_list tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


def choose(page: Page, name: str, action: str) -> None:
    """Apply an action of a list to one row."""
    row_of(page, name).locator("input[name=_selected_action]").check()
    page.select_option("select[name=action]", action)
    page.locator(".actions button[name=index]").click()


def instants(place: Locator) -> list[datetime]:
    """The instants told in a place of the page."""
    return [datetime.fromisoformat(str(time.get_attribute("datetime"))) for time in place.locator("time").all()]


def box_of(place: Locator) -> FloatRect:
    """Where it is on the page."""
    box = place.bounding_box()
    assert box is not None
    return box


def said(page: Page) -> Locator:
    return page.locator(".messagelist li")


def test_a_queue_is_paused_until_an_instant_seen_on_its_jobs_and_resumed(
    page: Page, log_in: LogIn, picture: Picture
) -> None:
    waiting = _definition("shop.jobs.remind").register("ann")
    log_in(operator("view_job", "view_queuestate", "pause_queue"))
    page.get_by_role("link", name="Paused queues and jobs").first.click()
    page.get_by_role("link", name="Add paused queue or job").click()
    for name in ("kind", "name", "reason", "until"):
        expect(page.locator(f".field-{name} :is(label, legend)").first).to_have_text(f"{name.capitalize()}:")
    expect(page.locator(".submit-row input")).to_have_count(1)
    page.get_by_label("Kind").select_option("queue")
    page.get_by_label("Name").fill("mail")
    page.get_by_label("Reason").fill("the server moves")
    until = page.locator(".field-until")
    until.get_by_text("Today", exact=True).click()
    page.locator("#clocklink0").click()
    page.locator("#clockbox0").get_by_text("Midnight").click()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(until.locator(".errorlist")).to_have_text("This time is in the past.")
    expect(page.get_by_label("Reason")).to_have_value("the server moves")
    picture("pause-refused")
    assert not QueueState.objects.exists()

    page.locator("#calendarlink0").click()
    picture("pause-calendar")
    page.locator("#calendarbox0").get_by_text("Tomorrow").click()
    page.locator("#clocklink0").click()
    page.locator("#clockbox0").get_by_text("6 a.m.").click()
    chosen = f"{page.input_value('#id_until_0')} {page.input_value('#id_until_1')}"
    page.get_by_role("button", name="Save", exact=True).click()
    expect(said(page)).to_have_text("Queue mail is paused.")
    expect(row_of(page, "mail").locator(".field-shown_until")).to_have_text(chosen)
    expect(row_of(page, "mail").locator(".field-shown_until")).to_have_css("white-space", "nowrap")
    picture("pauses")
    [paused] = QueueState.objects.current()
    assert (paused.kind, paused.name, paused.reason) == ("queue", "mail", "the server moves")
    assert paused.until is not None
    assert f"{timezone.localtime(paused.until):%Y-%m-%d %H:%M:%S}" == chosen
    assert chosen.endswith("06:00:00")
    assert "anna" in paused.paused_by

    notice = page.locator(".pgjobs-pause")
    page.goto(f"{JOBS}?queue=payments")
    expect(notice).to_have_count(0)
    page.goto(JOBS)
    expect(notice).to_contain_text(f"Queue mail is paused by anna until {chosen}: the server moves.")
    picture("jobs-paused")
    page.locator("#result_list tbody th a").first.click()
    expect(notice).to_contain_text("Queue mail is paused")
    picture("job-paused")
    run_jobs()
    assert reminded == []

    notice.get_by_role("link", name="All pauses").click()
    choose(page, "mail", "resume")
    expect(said(page)).to_have_text("Resumed: queue mail.")
    assert list(QueueState.objects.current()) == []
    page.goto(f"{JOBS}{waiting.pk}/change/")
    expect(page.locator(".pgjobs-state").first).to_have_text("ready")
    expect(notice).to_have_count(0)
    run_jobs()
    assert reminded == ["ann"]


def test_a_job_is_paused_by_its_name_after_a_slip_of_the_pen(page: Page, log_in: LogIn, picture: Picture) -> None:
    held = _definition("shop.jobs.remind").register("ann")
    other = _definition("shop.jobs.charge").register(5)
    Queue("mail").pause(by="bert")
    log_in(operator("view_job", "view_queuestate", "pause_queue"))
    page.goto(f"{PAUSES}add/")
    page.get_by_label("Kind").select_option("job")
    page.get_by_label("Name").fill("shop.jobs.remnid")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".field-name .errorlist")).to_contain_text("did you mean 'shop.jobs.remind'?")
    picture("pause-misspelt")
    assert [state.name for state in QueueState.objects.current()] == ["mail"]
    page.get_by_label("Name").fill("shop.jobs.remind")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(said(page)).to_have_text("Job shop.jobs.remind is paused.")
    expect(row_of(page, "shop.jobs.remind").locator(".field-shown_kind")).to_have_text("job")
    assert [(state.kind, state.name) for state in QueueState.objects.current()] == [
        ("queue", "mail"),
        ("job", "shop.jobs.remind"),
    ]

    page.goto(f"{JOBS}{held.pk}/change/")
    expect(page.locator(".pgjobs-pause strong")).to_have_text(["mail", "shop.jobs.remind"])
    picture("job-paused-twice")
    page.goto(f"{JOBS}{other.pk}/change/")
    expect(page.get_by_role("heading", name="shop.jobs.charge").first).to_be_visible()
    expect(page.locator(".pgjobs-pause")).to_have_count(0)

    page.goto(PAUSES)
    choose(page, "mail", "resume")
    expect(row_of(page, "shop.jobs.remind")).to_be_visible()
    expect(row_of(page, "mail")).to_have_count(0)
    run_jobs()
    assert reminded == [], "its name is paused still"


def test_the_list_of_cron_entries_tells_what_fires_next_and_what_does_not_fire(
    page: Page, log_in: LogIn, picture: Picture
) -> None:
    """W38, W49: what is broken or no longer declared stays visible, and says why."""
    CronEntry.objects.filter(pk="stock levels").update(declared_expression="61 * * * *")
    long_ago = timezone.now() - timedelta(seconds=MISSING_SECONDS + 60)
    CronEntry.objects.filter(pk="exchange rates").update(declared_at=long_ago, created_at=long_ago)
    MarkMissing()(on("default"))
    Firer()(on("default"))
    last = entry().run_now()
    log_in(User.objects.create_superuser("root"))
    page.goto(CRONS)
    choose(page, "weekly letter", "pause")
    expect(said(page)).to_have_text("Pause: 1 entry.")
    assert entry("weekly letter").status == "paused"
    picture("crons")

    stands = {"daily digest": "on", "stock levels": "broken", "exchange rates": "missing", "weekly letter": "paused"}
    for name, word in stands.items():
        expect(row_of(page, name).locator(".field-shown_status .pgjobs-state")).to_have_text(word)
        expect(row_of(page, name).locator(".field-shown_next_fire time")).to_have_count(1 if word == "on" else 0)
    expect(row_of(page, "weekly letter").locator(".field-shown_status")).to_contain_text("root")
    [fire] = instants(row_of(page, "daily digest").locator(".field-shown_next_fire"))
    assert (fire.astimezone(ZoneInfo("Europe/Paris")).hour, fire > timezone.now()) == (3, True)
    expect(row_of(page, "daily digest").locator(".field-shown_next_fire")).to_have_css("white-space", "nowrap")
    expect(row_of(page, "daily digest").locator(".field-shown_last_job")).to_have_text(f"{last.pk} ready")

    page.get_by_role("link", name="stock levels").click()
    expect(page.locator(".field-shown_note")).to_contain_text("It does not fire: ")
    expect(page.locator(".field-shown_note")).to_contain_text(entry("stock levels").broken)
    expect(page.locator(".field-shown_fires .readonly")).to_have_text("–")
    expect(page.get_by_label("Arguments instead")).to_have_value("")
    picture("cron-broken")
    page.goto(CRONS)
    page.get_by_role("link", name="exchange rates").click()
    expect(page.locator(".field-shown_note")).to_contain_text("No worker has declared it since")
    picture("cron-missing")


def test_an_expression_is_overridden_and_one_that_will_not_do_changes_nothing(
    page: Page, log_in: LogIn, picture: Picture
) -> None:
    log_in(operator("view_cronentry", "change_cronentry"))
    page.goto(DIGEST)
    counts = page.locator(".field-shown_expression .readonly")
    page.get_by_label("Expression instead").fill("0 0 31 4 *")
    page.get_by_role("button", name="Save and continue editing").click()
    expect(page.locator(".field-expression .errorlist")).to_contain_text("never fires")
    expect(page.locator(".errorlist")).to_have_count(1)
    expect(page.get_by_label("Expression instead")).to_have_value("0 0 31 4 *")
    expect(counts).to_contain_text("0 3 * * * Europe/Paris")
    expect(page.locator(".field-shown_fires li")).to_have_count(10)
    picture("cron-refused")
    page.get_by_label("Expression instead").fill("15 5 * * *")
    page.get_by_label("Time zone instead").fill("Asia/Tokio")
    page.get_by_role("button", name="Save and continue editing").click()
    expect(page.locator(".field-zone .errorlist")).to_contain_text("there is no time zone")
    expect(counts).to_contain_text("0 3 * * * Europe/Paris")
    assert (entry().expression, entry().zone) == (None, None)

    page.get_by_label("Time zone instead").fill("Asia/Tokyo")
    page.get_by_role("button", name="Save and continue editing").click()
    expect(said(page)).to_contain_text("was changed successfully")
    expect(counts).to_contain_text("15 5 * * * Asia/Tokyo")
    expect(counts).to_contain_text("declared: 0 3 * * * Europe/Paris")
    fires = [fire.astimezone(ZoneInfo("Asia/Tokyo")) for fire in instants(page.locator(".field-shown_fires"))]
    assert {f"{fire:%H:%M}" for fire in fires} == {"05:15"}
    assert [(fire - fires[0]).days for fire in fires] == list(range(10))
    expect(page.locator(".field-shown_fires")).to_contain_text(timezone.get_current_timezone_name())
    picture("cron-overridden")
    assert (entry().expression, entry().zone, entry().payload) == ("15 5 * * *", "Asia/Tokyo", None)

    page.get_by_label("Expression instead").fill("")
    page.get_by_label("Time zone instead").fill("")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(row_of(page, "daily digest").locator(".field-shown_expression")).to_contain_text("0 3 * * * Europe/Paris")
    assert (entry().expression, entry().zone) == (None, None)


def test_an_entry_is_run_once_and_stopped_with_its_job(page: Page, log_in: LogIn, picture: Picture) -> None:
    """A25: no two of its jobs overlap. A55: stopped, it fires no more."""
    log_in(operator("view_cronentry", "run_cronentry", "view_job", "cancel_job"))
    page.goto(DIGEST)
    picture("cron")
    page.get_by_role("button", name="Run now").click()
    expect(said(page)).to_contain_text("Run now: 1 entry.")
    made = Job.objects.get()
    assert (made.cron_entry, made.queue, made.state) == ("daily digest", "reports", "ready")
    picture("cron-run")
    said(page).get_by_role("link", name=str(made.pk)).click()
    expect(page.get_by_text("Cron entry and fire")).to_be_visible()
    page.go_back()
    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".messagelist .error")).to_contain_text("its overlap policy forbids two")
    assert Job.objects.count() == 1

    page.get_by_text("Stop and cancel its jobs…").click()
    page.locator("#pgjobs-stop").get_by_label("Reason").fill("nobody reads it")
    for width in (768, 600, 1440):
        page.set_viewport_size({"width": width, "height": 1000})
        picture(f"cron-stop-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") == width, "the form juts out"
        stop, history = box_of(page.get_by_text("Stop and cancel its jobs…")), box_of(page.locator(".historylink"))
        assert history["x"] >= stop["x"] + stop["width"] or history["y"] >= stop["y"] + stop["height"], width
    page.locator("#pgjobs-stop").get_by_role("button").click()
    expect(page.locator(".field-shown_status")).to_contain_text("paused")
    expect(page.locator(".field-shown_note")).to_contain_text("nobody reads it")
    expect(page.locator(".field-shown_jobs")).to_contain_text("cancelled")
    picture("cron-stopped")
    made.refresh_from_db()
    assert (made.outcome, made.cancel_reason) == ("cancelled", "nobody reads it")
    assert (entry().status, entry().paused_reason) == ("paused", "nobody reads it")

    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".field-shown_status")).to_contain_text("on")
    assert entry().status == "on"


def test_who_may_only_look_finds_no_button(page: Page, log_in: LogIn, picture: Picture) -> None:
    Queue("mail").pause(by="bert", reason="the server moves")
    log_in(operator("view_cronentry", "view_queuestate"))
    for address, words in ((CRONS, "daily digest"), (DIGEST, "0 3 * * *"), (PAUSES, "the server moves")):
        page.goto(address)
        content = page.locator("#content")
        expect(content).to_contain_text(words)
        expect(content.locator("input:not([type=hidden]):not(#changelist-search *)")).to_have_count(0)
        expect(content.locator("button, select, textarea, summary, .addlink")).to_have_count(0)
    page.goto(DIGEST)
    expect(page.locator("#content")).not_to_contain_text("hunter2")
    picture("cron-looked-at")
    page.goto(PAUSES)
    page.locator("#result_list tbody th a").first.click()
    expect(page.locator("#content")).to_contain_text("the server moves")
    picture("pause-looked-at")


def test_all_of_it_works_without_javascript(unscripted: Page) -> None:
    page = unscripted
    page.goto(f"{PAUSES}add/")
    page.get_by_label("Kind").select_option("queue")
    page.get_by_label("Name").fill("mail")
    page.fill("#id_until_0", "2070-01-31")
    page.fill("#id_until_1", "08:00")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(said(page)).to_have_text("Queue mail is paused.")
    [paused] = QueueState.objects.current()
    assert paused.until is not None
    assert f"{timezone.localtime(paused.until):%Y-%m-%d %H:%M}" == "2070-01-31 08:00"
    choose(page, "mail", "resume")
    expect(said(page)).to_have_text("Resumed: queue mail.")
    assert list(QueueState.objects.current()) == []

    page.goto(DIGEST)
    page.get_by_text("Pause…").click()
    page.locator("#pgjobs-pause").get_by_label("Reason").fill("the printer burns")
    page.locator("#pgjobs-pause").get_by_role("button", name="Pause").click()
    expect(page.locator(".field-shown_note")).to_contain_text("the printer burns")
    assert (entry().status, entry().paused_reason) == ("paused", "the printer burns")
    page.get_by_role("button", name="Run now").click()
    expect(said(page)).to_contain_text("Run now: 1 entry.")
    assert Job.objects.get().cron_entry == "daily digest"
    page.get_by_label("Expression instead").fill("@hourly")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(row_of(page, "daily digest").locator(".field-shown_expression")).to_contain_text("@hourly")
    assert entry().expression == "@hourly"
