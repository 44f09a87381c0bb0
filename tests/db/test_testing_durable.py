"""What ``django_pgjobs.testing`` offers for durable functions, in a plain ``TestCase``'s transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_pgjobs import Backoff, Batch, Event, JobContext, job
from django_pgjobs.exceptions import WaitTimedOut
from django_pgjobs.models import Attempt, Job, Memo
from django_pgjobs.models.attempts import Claim
from django_pgjobs.testing import backdate, isolated_registry, run_job, run_jobs, send_event
from tests.db.run_jobs_ground import in_a_test_case, outcomes

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quiet")]

approval: Event[dict[str, str]] = Event("shop.approval")
said: list[Any] = []


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    said.clear()
    with isolated_registry():
        yield


def say(what: Any) -> Any:
    said.append(what)
    return what


async def asay(what: Any) -> Any:
    await asyncio.sleep(0)
    return say(what)


def flaky() -> str:
    if len(said) < 2:
        say("no")
        raise ValueError("not yet")
    return "done"


# Sleeps


def sleeper() -> Any:
    @job(takes_context=True, name="sleeper")
    def body(context: JobContext) -> str:
        context.sleep(timedelta(days=30))
        context.step(say, "slept")
        context.sleep(60)
        return "awake"

    return body


def test_sleeps_are_skipped_when_asked() -> None:
    registered = sleeper().register()
    assert outcomes(run_jobs()) == {"suspended": [registered.pk]}
    assert outcomes(run_jobs(skip_sleeps=True)) == {"suspended": [registered.pk], "succeeded": [registered.pk]}
    assert said == ["slept"]
    assert registered.attempts.count() == 0


def test_a_scheduled_job_that_sleeps_is_not_run_again_and_again() -> None:
    registered = sleeper().using(delay=3600).register()
    assert run_jobs(skip_sleeps=True).ran == []
    assert run_jobs(include_scheduled=True).suspended == [registered.pk]
    assert run_jobs(include_scheduled=True).ran == []


def test_a_moved_job_has_slept() -> None:
    registered = sleeper().register()
    run_jobs()
    backdate(registered, run_at=timedelta(days=29))
    assert run_jobs().ran == []
    backdate(registered, run_at=timedelta(days=1))
    assert run_jobs().suspended == [registered.pk]
    assert said == ["slept"]


def test_only_the_sleeps_of_the_asked_queues_are_skipped() -> None:
    sleeper().using(queue="other").register()
    run_jobs()
    assert run_jobs(queues="default", skip_sleeps=True).ran == []
    assert Memo.objects.filter(wake_at__gt=Job.objects.get().created_at + timedelta(days=29)).exists()


def test_pauses_before_a_step_is_tried_again_are_skipped_too() -> None:
    @job(takes_context=True)
    def tries(context: JobContext) -> str:
        return context.step.using(attempts=3, backoff=Backoff(3600))(flaky)

    registered = tries.register()
    assert outcomes(run_jobs()) == {"suspended": [registered.pk]}
    assert outcomes(run_jobs(skip_sleeps=True)) == {"suspended": [registered.pk], "succeeded": [registered.pk]}


def waiter() -> Any:
    @job(takes_context=True, name="waiter")
    def body(context: JobContext, order: int) -> Any:
        try:
            return context.wait_for(approval, order, timeout=timedelta(days=14))
        except WaitTimedOut:
            return "late"

    return body


def test_waits_for_events_stay() -> None:
    registered = waiter().register(7)
    assert outcomes(run_jobs(skip_sleeps=True)) == {"suspended": [registered.pk]}
    assert run_jobs(skip_sleeps=True).ran == run_jobs(include_scheduled=True).ran == []


def test_a_sleep_that_newer_code_has_left_out_does_not_end_the_wait_after_it() -> None:
    registered = sleeper().register()
    run_jobs()
    with isolated_registry():

        @job(takes_context=True, name="sleeper")
        def body(context: JobContext) -> Any:
            return context.wait_for(approval, 7, timeout=timedelta(days=60))

        run_job(registered)
        assert run_jobs(skip_sleeps=True).ran == []
        assert registered.why().code == "waiting_for_event"


# Events


def test_a_sent_event_makes_its_waiters_ready() -> None:
    registered, other = waiter().register(7), waiter().register(8)
    run_jobs()
    assert send_event(approval, 7, payload={"by": "ann"})
    assert not send_event("shop.approval:7", payload={"by": "bob"})
    ran = run_jobs()
    assert ran.ran == ran.succeeded == [registered.pk], "the other waits for another event"
    registered.refresh_from_db()
    assert registered.result == {"by": "ann"}
    assert send_event("shop.approval", 8, payload={})
    assert run_jobs().succeeded == [other.pk]


def test_a_moved_wait_has_timed_out() -> None:
    registered = waiter().register(7)
    run_jobs()
    backdate(registered, run_at=timedelta(days=14))
    assert run_jobs().succeeded == [registered.pk]
    registered.refresh_from_db()
    assert registered.result == "late"


def test_an_event_that_comes_too_late_cuts_no_sleep_short() -> None:
    @job(takes_context=True, name="patient")
    def body(context: JobContext) -> str:
        try:
            context.wait_for(approval, 7, timeout=timedelta(days=14))
        except WaitTimedOut:
            context.sleep(timedelta(days=30))
        return "awake"

    registered = body.register()
    run_jobs()
    backdate(registered, run_at=timedelta(days=14))
    assert outcomes(run_jobs()) == {"suspended": [registered.pk]}
    assert send_event(approval, 7, payload={"by": "ann"})
    assert run_jobs().ran == []
    assert registered.why().code == "sleeping"


# Released, undone


def test_released_are_jobs_whose_gate_or_event_came_during_the_run() -> None:
    @job
    def sends() -> None:
        approval.send(7, payload={"by": "ann"})

    @job(max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    @job
    def after() -> None: ...

    waits = waiter().register(7)
    run_jobs()
    sender = sends.register()
    behind = after.using(after=sender).register()
    never = after.using(after=fails.register()).register()
    batch = Batch("two")
    with batch:
        batch.add_many([after.bind(), after.bind()])
    ran = run_jobs()
    assert sorted(ran.unblocked) == sorted([waits.pk, behind.pk]), "a batch's row ends with its members and never runs"
    batch.job.refresh_from_db()
    assert batch.job.state == "succeeded"
    assert never.pk in ran.cancelled
    assert run_jobs().unblocked == []


def test_a_wait_that_timed_out_is_not_released() -> None:
    registered, _ = waiter().register(7), waiter().register(8)
    run_jobs()
    backdate(registered, run_at=timedelta(days=14))
    ran = run_jobs()
    assert (ran.succeeded, ran.unblocked) == ([registered.pk], [])


def ordering() -> Any:
    @job(takes_context=True, name="refund", max_attempts=1)
    def refund(context: JobContext, what: Any) -> None:
        if what == "stuck":
            raise ValueError("no")
        say(f"undo {what}")

    @job(takes_context=True, name="order", max_attempts=1)
    def order(context: JobContext, what: str) -> None:
        context.step.using(undo=refund)(say, what)
        raise ValueError("no stock")

    return order


def test_undone_are_jobs_whose_undo_succeeded() -> None:
    order = ordering()
    failed, stuck = order.register("charge"), order.register("stuck")
    ran = run_jobs()
    assert sorted(ran.abandoned)[:2] == [failed.pk, stuck.pk]
    assert ran.undone == [failed.pk]
    assert said == ["charge", "stuck", "undo charge"]


# Async


@in_a_test_case
@pytest.mark.parametrize("inside", [False, True])
def test_an_async_job_remembers_and_goes_on(inside: bool) -> None:
    """A coroutine, a plain function and an atomic one are steps; sleep, event, version and gather have twins."""

    @job(name="double")
    def double(number: int) -> int:
        return number * 2

    def makes(name: str) -> int:
        return User.objects.create(username=say(name)).pk

    @job(takes_context=True, name="async.order")
    async def order(context: JobContext) -> list[Any]:
        found = [await context.astep(asay, "async"), await context.astep(say, "plain")]
        made = await context.astep.using(atomic=True)(makes, "ann")
        await context.asleep(3600)
        verdict = await context.await_for(approval, 7, timeout=60)
        doubled = await context.agather([double.bind(1), double.bind(2)])
        return [*found, made, verdict["by"], await context.aversion("mail", 2), *doubled]

    registered = order.register()
    if inside:
        send_event(approval, 7, payload={"by": "ann"})
    ran = run_jobs(skip_sleeps=True)
    if not inside:
        assert len(ran.suspended) == 2
        send_event(approval, 7, payload={"by": "ann"})
        run_jobs()
    registered.refresh_from_db()
    user = User.objects.get(username="ann")
    assert registered.result == ["async", "plain", user.pk, "ann", 2, 2, 4]
    assert said == ["async", "plain", "ann"]


def test_two_steps_side_by_side_are_remembered_by_their_keys() -> None:
    @job(takes_context=True, name="both", max_attempts=2, backoff=Backoff(0))
    async def both(context: JobContext) -> list[Any]:
        steps = (context.astep.using(key=each)(asay, each) for each in ("a", "b", "c"))
        found = await asyncio.gather(*steps)
        if len(said) == 3:
            say("fails")
            raise ValueError("once")
        return found

    registered = both.register()
    ran = run_jobs()
    registered.refresh_from_db()
    assert (len(ran.retried), registered.result) == (1, ["a", "b", "c"])
    assert sorted(said) == ["a", "b", "c", "fails"]
    assert sorted(Memo.objects.values_list("name", flat=True)) == [f"asay[{each}]" for each in "abc"]


def test_two_steps_side_by_side_without_keys_are_refused() -> None:
    @job(takes_context=True, name="both", max_attempts=1)
    async def both(context: JobContext) -> None:
        await asyncio.gather(context.astep(asay, "a"), context.astep(asay, "b"))

    registered = both.register()
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert "'asay' is running: tell steps that run side by side apart by using(key=…)" in registered.error


def test_a_step_that_pauses_beside_another_loses_nothing_that_was_remembered() -> None:
    @job(takes_context=True, name="beside", max_attempts=1)
    async def beside(context: JobContext) -> list[Any]:
        tried = context.astep.using(attempts=5, backoff=Backoff(60))(flaky)
        done = [await context.astep(asay, "first")]
        return [*done, *await asyncio.gather(tried, context.astep.using(key=2)(asay, "second"))]

    registered = beside.register()
    run_jobs(skip_sleeps=True)
    registered.refresh_from_db()
    assert registered.result == ["first", "done", "second"]
    assert said.count("first") == 1
    assert Attempt.objects.filter(job=registered).count() == said.count("no")
    assert not Claim.objects.exists()
