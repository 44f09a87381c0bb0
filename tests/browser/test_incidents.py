"""Five incidents of a night: each leads from the overview to its cause in at most three clicks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from playwright.sync_api import Locator, Page, expect

from django_pgjobs.models import Attempt, Heartbeat, Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.models.numbers import Minute
from django_pgjobs.states import TREND
from tests.browser.test_admin_pages import CLAIM, TRACEBACK, WORKER, LogIn, Picture, jobs_known  # noqa: F401
from tests.db.test_overview import beginning, lead

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

MOST_CLICKS = 3
NAME = "shop.jobs.charge"


def make(**fields: Any) -> Job:
    given: dict[str, Any] = {"name": NAME, "queue": "payments", "payload": {"args": ["4111", 7], "kwargs": {}}}
    (row,) = Job.objects.bulk_create([Job(**{**given, **fields})])
    return row


def beat(**facts: Any) -> None:
    given: dict[str, Any] = {
        "id": WORKER, "name": "web-1", "host": "h", "pid": 1, "processes": 1, "threads": 4, "async_slots": 1,
        "version": "1", "queues": ["payments"],
    }  # fmt: skip
    Heartbeat.objects.create(**{**given, **facts})


def claimed(row: Job, lease: int = 60) -> None:
    Claim.objects.create(
        claim_id=CLAIM, part=0, worker=WORKER, lease_expires_at=Now() + timedelta(seconds=lease),
        check_at=Now() + timedelta(seconds=lease), job_ids=[row.pk],
    )  # fmt: skip


def failed(row: Job, cause: str, **fields: Any) -> None:
    given = {"claim_id": CLAIM, "number": 1, "worker_name": "web-1", "started_at": Now(), "duration_seconds": 1}
    Attempt.objects.create(job=row, cause=cause, **{**given, **fields})


class Operator:
    """An operator who is called at 3 a.m., and whose clicks are counted."""

    def __init__(self, page: Page, most: int = MOST_CLICKS) -> None:
        self.page, self.clicks, self.most = page, 0, most

    def click(self, where: Locator) -> None:
        self.clicks += 1
        assert self.clicks <= self.most
        where.click()

    def sees(self, *words: str) -> None:
        for each in words:
            expect(self.page.get_by_text(each).locator("visible=true").first).to_be_visible()


def stuck_job() -> None:
    beat(running=1)
    progress = {"n": 3, "total": 40, "message": "waits for the bank"}
    since = Now() - timedelta(hours=2)
    claimed(make(claim_id=CLAIM, worker=WORKER, claimed_at=since, attempt=1, progress=progress))


def find_stuck_job(operator: Operator) -> None:
    operator.sees("2 h 00 min")
    operator.click(operator.page.locator("#pgjobs-workers").get_by_role("link", name="#"))
    operator.sees("Worker web-1 claimed it", "waits for the bank")
    expect(operator.page.locator(".pgjobs-ask summary", has_text="Cancel")).to_be_visible()


def growing_queue() -> None:
    beat(queues=["mail"])
    for number in range(30):
        make(run_at=Now() - timedelta(minutes=10 + number), created_at=Now() - timedelta(hours=1))


def find_growing_queue(operator: Operator) -> None:
    operator.sees("Queue payments has due jobs, but no worker that serves it was heard from lately.")
    operator.click(operator.page.locator(".pgjobs-alarm").get_by_role("link", name="Show").first)
    operator.click(operator.page.locator("#result_list tbody tr").first.get_by_role("link").first)
    operator.sees("does not serve queue payments")


def dead_worker() -> None:
    beat(last_beat_at=Now() - timedelta(seconds=40), running=1)
    claimed(make(claim_id=CLAIM, worker=WORKER, claimed_at=Now() - timedelta(minutes=2), attempt=1), lease=-5)


def find_dead_worker(operator: Operator) -> None:
    operator.sees("Worker web-1 was last heard from")
    operator.click(operator.page.locator("#pgjobs-workers").get_by_role("link", name="#"))
    operator.sees("lost it: its lease ran out")


def poison_job() -> None:
    beat()
    ended = {"outcome": "abandoned", "finished_at": Now(), "attempt": 1}
    row = make(error_class="crashed", error="crashed: killed by SIGKILL", **ended)
    failed(row, "crashed", message="killed by SIGKILL")


def find_poison_job(operator: Operator) -> None:
    row = operator.page.locator("#pgjobs-failures tbody tr", has_text="crashed")
    operator.click(row.get_by_role("link", name="ago"))
    operator.sees("Crashed", "killed by SIGKILL", "web-1")


def bad_deploy() -> None:
    beat(release="r2")
    now = beginning(60)
    for ago in range(30):
        bad = ago < 10
        Minute.objects.create(
            worker=TREND, minute=now - timedelta(minutes=ago), queue="", name="", release="r2" if bad else "r1",
            outcome="abandoned" if bad else "succeeded", jobs=5, run_seconds=1, wait_seconds=1, run_histogram=[1],
            wait_histogram=[1],
        )  # fmt: skip
    for number in range(5):
        ended = {"outcome": "abandoned", "finished_at": Now() - timedelta(minutes=number)}
        words = {"exception": "shop.errors.Declined", "message": "card refused", "traceback": TRACEBACK}
        failed(make(error_class="shop.errors.Declined", **ended), "failed", release="r2", **words)


def find_bad_deploy(operator: Operator) -> None:
    operator.sees("Release r2 since")
    row = operator.page.locator("#pgjobs-failures tbody tr", has_text="shop.errors.Declined")
    expect(row).to_contain_text("r2")
    operator.click(row.get_by_role("link", name="5", exact=True))
    operator.sees("5 jobs")
    operator.click(operator.page.locator("#result_list tbody tr").first.get_by_role("link").first)
    operator.sees("gateway.charge(card, amount)")


@pytest.mark.parametrize(
    ("happens", "find"),
    [
        (stuck_job, find_stuck_job), (growing_queue, find_growing_queue), (dead_worker, find_dead_worker),
        (poison_job, find_poison_job), (bad_deploy, find_bad_deploy),
    ],
    ids=["a stuck job", "a growing queue", "a dead worker", "a poison job", "a bad deploy"],
)  # fmt: skip
@pytest.mark.parametrize("page", ["light"], indirect=True)
def test_the_cause_is_three_clicks_away(
    page: Page, log_in: LogIn, happens: Callable[[], None], find: Callable[[Operator], None]
) -> None:
    happens()
    lead()
    log_in(User.objects.create_superuser("root"))
    page.goto("/admin/pgjobs/overview/")
    find(Operator(page))


def test_all_jobs_of_a_failure_are_retried_from_the_overview(page: Page, log_in: LogIn, picture: Picture) -> None:
    bad_deploy()
    lead()
    log_in(User.objects.create_superuser("root"))
    page.goto("/admin/pgjobs/overview/")
    page.get_by_role("button", name="Retry all").click()
    expect(page.locator("#pgjobs-count")).to_have_text("5")
    picture("retry-all")
    page.get_by_role("button", name="Yes").click()
    expect(page.get_by_text("5 changed").first).to_be_visible()
