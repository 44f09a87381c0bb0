"""``crash_at``: what a project's test sees when the process dies at a point of a job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import TransactionTestCase

from django_pgjobs import Event, JobContext, job
from django_pgjobs.models import Attempt, Job, Memo
from django_pgjobs.models.attempts import Claim
from django_pgjobs.testing import crash_at, isolated_registry, run_job, run_jobs, send_event
from tests.db.run_jobs_ground import outcomes

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quiet")]

paid: Event[int] = Event("crash.paid")
said: list[Any] = []


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    said.clear()
    with isolated_registry():
        yield


def charge(order: int) -> int:
    said.append(f"charge {order}")
    return order * 10


def book(order: int) -> int:
    said.append(f"book {order}")
    return User.objects.create(username=f"user {order}").pk


def ship(order: int) -> str:
    said.append(f"ship {order}")
    return "shipped"


def ordering(**options: Any) -> Any:
    @job(takes_context=True, name="order", **options)
    def order(context: JobContext, number: int) -> list[Any]:
        charged = context.step(charge, number)
        context.step.using(atomic=True)(book, number)
        return [charged, context.step(ship, number)]

    return order


def test_what_was_remembered_is_not_done_again() -> None:
    registered = ordering().register(7)
    with crash_at("after_memo:charge") as crash:
        ran = run_jobs()
    assert crash.jobs == [registered.pk]
    assert outcomes(ran) == {"crashed": [registered.pk], "succeeded": [registered.pk]}
    assert said == ["charge 7", "book 7", "ship 7"]
    assert [(each.number, each.cause) for each in Attempt.objects.all()] == [(1, "lost")]
    assert "The lease ran out" in Attempt.objects.get().message
    assert not Claim.objects.exists()


def test_what_was_done_and_not_remembered_is_done_again() -> None:
    ordering().register(7)
    with crash_at("before_memo:charge"):
        run_jobs()
    assert said == ["charge 7", "charge 7", "book 7", "ship 7"]


@pytest.mark.parametrize(("point", "booked"), [("before_memo:book", 2), ("after_memo:book", 1)])
def test_an_atomic_step_is_done_and_remembered_or_neither(point: str, booked: int) -> None:
    """The name of a user is unique: what was done is gone, or the second time would fail."""
    registered = ordering().register(7)
    with crash_at(point):
        run_jobs()
    assert said.count("book 7") == booked
    assert User.objects.filter(username="user 7").count() == 1
    registered.refresh_from_db()
    assert registered.outcome == "succeeded"


def test_an_end_that_was_not_written_is_come_to_again() -> None:
    registered = ordering().register(7)
    with crash_at("before_settle"):
        assert outcomes(run_jobs()) == {"crashed": [registered.pk], "succeeded": [registered.pk]}
    assert said == ["charge 7", "book 7", "ship 7"]


def test_of_an_atomic_job_nothing_stays_before_its_end() -> None:
    @job(atomic=True)
    def books(order: int) -> None:
        book(order)

    registered = books.register(7)
    with crash_at("before_settle"):
        ran = run_jobs()
    assert outcomes(ran) == {"crashed": [registered.pk], "succeeded": [registered.pk]}
    assert (said, User.objects.count()) == (["book 7", "book 7"], 1)


def test_what_was_committed_stays() -> None:
    @job(takes_context=True)
    def writes(context: JobContext) -> None:
        User.objects.get_or_create(username="kept")
        context.step(charge, 7)

    writes.register()
    with crash_at("after_memo:charge"):
        run_jobs(limit=1)
    assert User.objects.filter(username="kept").exists()
    assert Job.objects.get().outcome is None


def waiting() -> Any:
    @job(takes_context=True, name="waits")
    def waits(context: JobContext) -> int:
        context.sleep(3600)
        return context.wait_for(paid, timeout=60)

    return waits


def test_a_suspension_that_was_not_written_is_come_to_again() -> None:
    registered = waiting().register()
    with crash_at("before_suspend"):
        ran = run_jobs()
    assert outcomes(ran) == {"crashed": [registered.pk], "suspended": [registered.pk]}
    assert registered.why().code == "sleeping"


def test_a_sleep_and_a_wait_that_are_over_are_points_too() -> None:
    registered = waiting().register()
    run_jobs()
    with crash_at("after_memo:sleep"):
        ran = run_jobs(skip_sleeps=True)
    assert outcomes(ran) == {"crashed": [registered.pk], "suspended": [registered.pk]}
    send_event(paid, payload=5)
    with crash_at("after_memo:crash.paid"):
        assert outcomes(run_jobs()) == {"crashed": [registered.pk], "succeeded": [registered.pk]}
    registered.refresh_from_db()
    assert registered.result == 5


def test_a_crash_costs_an_attempt_and_the_last_one_ends_the_job() -> None:
    """As in production: a job that kills its process is abandoned in the end, and its callback runs."""
    order = ordering(max_attempts=2)

    @order.on_abandon
    def tell(context: JobContext, number: int) -> None:
        said.append("abandoned")

    registered = order.register(7)
    with crash_at("before_memo:charge", times=2):
        ran = run_jobs()
    assert ran.crashed == [registered.pk] * 2
    registered.refresh_from_db()
    assert (registered.outcome, said) == ("abandoned", ["charge 7", "charge 7", "abandoned"])


async def acharge(order: int) -> int:
    await asyncio.sleep(0)
    return charge(order)


def test_an_async_job_dies_too_and_remembers_nothing_after_its_death() -> None:
    @job(takes_context=True)
    async def order(context: JobContext) -> int:
        try:
            return await context.astep(acharge, 7)
        finally:
            await context.astep(ship, 7)

    registered = order.register()
    with crash_at("after_memo:acharge"):
        ran = run_jobs(limit=1)
    assert ran.crashed == [registered.pk]
    assert list(Memo.objects.values_list("name", flat=True)) == ["acharge"]
    run_jobs()
    assert said == ["charge 7", "ship 7"]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_dead_process_writes_no_cursor(is_async: bool) -> None:
    """As after a real one, the rows since the cursor was written are done again."""

    @job(takes_context=True, name="walk", max_attempts=2)
    def walk(context: JobContext) -> None:
        for number in context.each(range(4)):
            said.append(number)
            context.step.using(key=number)(int)

    @job(takes_context=True, name="awalk", max_attempts=2)
    async def awalk(context: JobContext) -> None:
        async for number in context.aeach(range(4)):
            said.append(number)
            await context.astep.using(key=number)(int)

    (awalk if is_async else walk).register()
    with crash_at("before_memo:int[2]"):
        run_jobs()
    assert said == [0, 1, 2, 0, 1, 2, 3]
    assert [each.options for each in Job.objects.all()] == [{"each": {"each": 4}}]


def test_a_point_that_no_job_comes_to_fails_the_test() -> None:
    ordering().register(7)
    with pytest.raises(AssertionError, match="No job came to 'after_memo:chrage'"), crash_at("after_memo:chrage"):
        run_jobs()
    with pytest.raises(ZeroDivisionError), crash_at("after_memo:charge"):
        _ = 1 / 0
    with pytest.raises(ValueError, match="'after_memo:' is no point to crash at"), crash_at("after_memo:"):
        pass


class AutocommitTestCase(TransactionTestCase):
    def test_a_crash_in_autocommit(self) -> None:
        registered = ordering().register(7)
        with crash_at("after_memo:book"):
            run_job(registered)
        registered.refresh_from_db()
        assert registered.state == "ready"
        assert Memo.objects.count() == 2
        assert outcomes(run_jobs()) == {"succeeded": [registered.pk]}
        assert said == ["charge 7", "book 7", "ship 7"]
