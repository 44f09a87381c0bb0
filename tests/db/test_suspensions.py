"""How a suspension leaves the body: through a ``TaskGroup``, through ``finally``, and not through a bare ``except``."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from django_pgjobs import Backoff, JobContext, job
from django_pgjobs.inspection.words import clock_time
from django_pgjobs.models import Attempt, Job, Memo
from django_pgjobs.testing import run_jobs

pytestmark = pytest.mark.django_db

said: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    said.clear()


async def look_up(page: int) -> int:
    return page * 10


async def fail_later() -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise ValueError("cannot be stopped") from None


@job(name="suspension.group", takes_context=True, max_attempts=1)
async def in_group(context: JobContext) -> int:
    async with asyncio.TaskGroup() as group:
        pages = [group.create_task(context.astep.using(key=page)(look_up, page)) for page in (1, 2)]
        group.create_task(context.asleep(3600))
    return sum(page.result() for page in pages)


@job(name="suspension.group_fails", takes_context=True, max_attempts=1)
async def group_fails(context: JobContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(fail_later())
        group.create_task(context.asleep(3600))


def test_a_task_group_wraps_the_suspension_of_a_task() -> None:
    registered = in_group.register()
    assert run_jobs().suspended == [registered.pk]
    registered.unblock()
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", 30)
    assert not Attempt.objects.exists()


def test_what_another_task_of_the_group_raises_is_a_failure() -> None:
    registered = group_fails.register()
    ran = run_jobs()
    assert ran.abandoned == [registered.pk]
    assert len(ran.errors) == 1
    assert not Memo.objects.exists()


@job(name="suspension.cleans_up", takes_context=True)
def cleans_up(context: JobContext) -> None:
    try:
        context.sleep(60)
    finally:
        said.append("cleaned up")


def test_finally_runs_at_each_suspension() -> None:
    registered = cleans_up.register()
    run_jobs()
    registered.unblock()
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, said) == ("succeeded", ["cleaned up"] * 2)


@job(name="suspension.swallows", takes_context=True, max_attempts=2, backoff=Backoff(60))
def swallows(context: JobContext) -> str:
    try:
        context.sleep(60)
    except:  # noqa: E722
        said.append("swallowed")
    return "went on"


def test_a_job_that_swallows_its_suspension_has_failed() -> None:
    registered = swallows.register()
    assert run_jobs().retried == [registered.pk]
    registered.refresh_from_db()
    assert (registered.attempt, registered.result, said) == (1, None, ["swallowed"])
    assert "SuspensionSwallowed" in registered.error


@job(name="suspension.cancelled", takes_context=True)
def cancelled_meanwhile(context: JobContext, knows: bool) -> None:
    Job.objects.filter(pk=context.id).cancel(by="anna")
    context._cancellation.requested = knows  # a worker sets it
    context.sleep(60)


@pytest.mark.parametrize("knows", [True, False])
def test_a_job_that_sleeps_after_a_cancel_request_is_cancelled_and_has_not_failed(knows: bool) -> None:
    registered = cancelled_meanwhile.register(knows)
    assert run_jobs().cancelled == [registered.pk]
    assert not Attempt.objects.exists()


@job(name="suspension.sleeps", takes_context=True)
def sleeps(context: JobContext) -> None:
    context.sleep(3600)


@job(name="suspension.waits", takes_context=True)
def waits(context: JobContext) -> None:
    context.wait_for("answer", timeout=3600)


@pytest.mark.parametrize("definition", [sleeps, waits])
def test_a_suspended_job_that_was_moved_says_when_it_wakes(definition: Any) -> None:
    registered = definition.register()
    run_jobs()
    asleep = Job.objects.get(pk=registered.pk)
    assert f"until {clock_time(asleep.run_at)}" in asleep.why().text
    registered.reschedule(run_at=asleep.run_at + timedelta(hours=2))
    assert f"until {clock_time(asleep.run_at + timedelta(hours=2))}" in asleep.why().text
    registered.reschedule(delay=0)
    run_jobs()  # it begins anew, and goes on waiting
    assert f"until {clock_time(asleep.run_at)}" in asleep.why().text
