"""Pages that keep themselves current do so for whoever looks, and while nobody is using them."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.utils import timezone
from playwright.sync_api import Page, expect

from django_pgjobs.models import Attempt, Job
from django_pgjobs.models.attempts import Claim
from tests.browser.test_admin_pages import LogIn, jobs_known, operator  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

RUNNING = "/admin/pgjobs/job/?state=running"
WAIT = 20_000


def start(number: int, description: str = "") -> Job:
    now = timezone.now()
    claimed = Job(
        name="shop.jobs.charge", payload={"args": [], "kwargs": {}}, attempt=1, description=description,
        claim_id=UUID(int=number), worker=UUID(int=1), claimed_at=now,
    )  # fmt: skip
    Job.objects.bulk_create([claimed])
    Claim.objects.create(
        claim_id=UUID(int=number), part=0, worker=UUID(int=1), lease_expires_at=now + timedelta(hours=1),
        check_at=now + timedelta(hours=1), job_ids=[claimed.pk],
    )  # fmt: skip
    return claimed


def end(claimed: Job, outcome: str, error: str = "") -> None:
    Claim.objects.filter(claim_id=str(claimed.claim_id)).delete()
    Job.objects.filter(pk=claimed.pk).update(outcome=outcome, finished_at=Now(), claim_id=None, error=error)


@pytest.mark.parametrize("rights", [("view_job",), ("view_job", "cancel_job", "reschedule_job"), ()])
def test_the_page_of_a_job_follows_it_to_its_end(page: Page, log_in: LogIn, rights: tuple[str, ...]) -> None:
    """Also for somebody to whom the form of *Cancel* is shown, which has a chosen radio button."""
    log_in(operator(*rights) if rights else User.objects.create_superuser("root"))
    job = start(1)
    page.goto(f"/admin/pgjobs/job/{job.pk}/change/")
    expect(page.locator(".pgjobs-state").first).to_have_text("worker silent")
    Attempt.objects.create(
        job=job, claim_id=UUID(int=1), number=1, cause="failed", started_at=timezone.now(), exception="shop.Declined",
        message="no money",
    )  # fmt: skip
    end(job, "abandoned", "Declined: no money")
    expect(page.locator(".pgjobs-state").first).to_have_text("abandoned", timeout=WAIT)
    expect(page.locator("#pgjobs-attempts")).to_contain_text("no money")
    expect(page.get_by_text("Cancel…")).to_have_count(0)


@pytest.mark.parametrize("pointed", [False, True])
def test_the_list_of_running_jobs_gains_and_loses_rows(page: Page, log_in: LogIn, pointed: bool) -> None:
    """Under the pointer rows stay where they are; and what has come can be ticked and counted like the rest."""
    log_in(operator("view_job", "cancel_job"))
    page.goto(RUNNING)
    rows = page.locator("#result_list tbody tr")
    expect(rows).to_have_count(0)
    first = start(1, "the first")
    expect(rows).to_have_count(1, timeout=WAIT)
    if pointed:
        rows.first.hover()
    start(2, "the second")
    expect(rows).to_have_count(2, timeout=WAIT)
    expect(rows.nth(0 if pointed else 1)).to_contain_text("the first")
    expect(page.locator("#pgjobs-paginator")).to_contain_text("2 jobs")
    page.locator("input.action-select").first.check()
    expect(page.locator(".action-counter").first).to_have_text("1 of 2 selected")
    page.locator("input.action-select").first.uncheck()
    page.locator("h1").first.click()
    end(first, "succeeded")
    expect(rows).to_have_count(1, timeout=WAIT)
    expect(rows).to_contain_text("the second")
