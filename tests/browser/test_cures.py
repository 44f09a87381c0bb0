"""Three incidents under a real worker: from the overview it takes five clicks to the cure, and no deploy."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from playwright.sync_api import Locator, Page, expect

from django_pgjobs import register_many
from django_pgjobs.models import Job, QueueState
from tests.browser.test_admin_pages import LogIn
from tests.browser.test_incidents import Operator
from tests.e2e import incidents
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import Workers, ended

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(patience(240)),
    pytest.mark.parametrize("page", ["light"], indirect=True),
]

INCIDENTS = {"PGJOBS_TEST_INCIDENTS": "1"}
MOST_CLICKS = 5
SOON = 60_000
"""Milliseconds in which the overview, whose figures its leader writes, has what has happened."""


@pytest.fixture
def called(page: Page, log_in: LogIn, worker: Workers) -> Operator:
    log_in(User.objects.create_superuser("root"))
    return Operator(page, MOST_CLICKS)


def look(operator: Operator) -> None:
    """Come to the overview, as by a bookmark."""
    operator.page.goto("/admin/pgjobs/overview/")


def row(operator: Operator, section: str, words: str) -> Locator:
    found = operator.page.locator(f"#pgjobs-{section} tbody tr", has_text=words).first
    expect(found).to_be_visible(timeout=SOON)
    return found


def left(**facts: Any) -> int:
    return Job.objects.filter(finished_at=None, **facts).count()


def abandoned(**facts: Any) -> int:
    return Job.objects.filter(outcome="abandoned", **facts).count()


def test_a_bank_that_is_down_is_waited_for_and_its_jobs_run_again(called: Operator, worker: Workers) -> None:
    """Twenty orders fail, the job is paused for an hour, what comes meanwhile waits, and each order is charged once."""
    worker(env=INCIDENTS)
    register_many(incidents.charges.bind(order) for order in range(20))
    wait_until(lambda: abandoned() == 20, 30, "all orders have failed")
    look(called)
    failed = row(called, "failures", "BankIsDown")
    expect(failed).to_contain_text("20", timeout=SOON)
    called.click(failed.get_by_role("link", name="Pause this job"))
    called.page.get_by_label("Reason").fill("the bank is down")
    called.click(called.page.get_by_text("1 hour", exact=True))
    called.click(called.page.get_by_role("button", name="Save", exact=True))
    wait_until(QueueState.objects.filter(until__gt=Now()).exists, 10, "the job is paused")
    register_many(incidents.charges.bind(order) for order in range(20, 30))
    wait_until(lambda: Job.objects.filter(hold="paused").count() == 10, 20, "what comes is held")
    # The bank is back, before the hour is over.
    worker.stage.open("bank")
    look(called)
    called.click(row(called, "failures", "BankIsDown").get_by_role("button", name="Retry all"))
    called.click(called.page.get_by_role("button", name="Yes"))
    expect(called.page.get_by_text("20 changed").first).to_be_visible()
    assert not worker.stage.count("charged")
    QueueState.objects.update(until=Now())  # the hour is over
    wait_until(lambda: not left(), 30, "all have ended")
    assert sorted(int(trace.words[1]) for trace in worker.stage.traces("charged")) == list(range(30))


def test_a_customer_who_floods_a_queue_is_held_to_his_share(called: Operator, worker: Workers) -> None:
    """Three hundred jobs of one stand before five of another, who has to wait for those alone that were let in."""
    worker(threads=4, env=INCIDENTS)
    register_many(incidents.draws.bind("globex") for _ in range(300))
    wait_until(lambda: worker.stage.count("draws", "globex") >= 4, 30, "globex has all threads")
    others = register_many(incidents.draws.bind("acme") for _ in range(5))
    look(called)
    queue = row(called, "queues", incidents.FLOODED)
    called.click(queue.get_by_role("link", name="Limit…"))
    called.page.get_by_label("Kind").select_option("job")
    called.page.get_by_label("Name").fill("tests.e2e.incidents.draws")
    called.page.get_by_label("At once").fill("1")
    called.page.get_by_label("Reason").fill("globex floods it")
    called.click(called.page.get_by_role("button", name="Save", exact=True))
    expect(called.page.get_by_text("is set").first).to_be_visible()
    ended(*Job.objects.filter(pk__in=list(others)), timeout=30)
    assert left() > 150, "globex has not had all its turns before them"
    worker.stage.open("over")
    look(called)
    called.page.goto("/admin/pgjobs/limitoverride/")
    called.click(called.page.get_by_role("button", name="Restore"))
    wait_until(lambda: not left(), 60, "all have ended")


def test_a_job_that_fills_its_memory_is_stopped_for_its_neighbours(called: Operator, worker: Workers) -> None:
    """Its process ends twice for each of the first; once the job is paused, its neighbours run undisturbed."""
    process = worker(threads=1, conf={"EXECUTOR_KILL_MEGABYTES": 300}, env=INCIDENTS)
    register_many(incidents.fills_memory.bind(report) for report in range(30))
    wait_until(lambda: abandoned() >= 1, 60, "one has been given up")
    look(called)
    failed = row(called, "failures", "fills_memory")
    expect(failed).to_contain_text("MemoryExceeded")
    called.click(failed.get_by_role("link", name="Pause this job"))
    called.click(called.page.get_by_text("8 hours", exact=True))
    called.click(called.page.get_by_role("button", name="Save", exact=True))
    expect(called.page.get_by_text("is paused").first).to_be_visible()
    small = register_many(incidents.is_small.bind(report) for report in range(50))
    ended(*Job.objects.filter(pk__in=list(small)), timeout=60)
    wait_until(lambda: not Job.objects.filter(state="running").exists(), 60, "none of them runs")
    calm = worker.stage.count("fills")
    assert left() == left(hold="paused") >= 2
    assert process.ready_executors()
    assert worker.stage.count("fills") == calm
