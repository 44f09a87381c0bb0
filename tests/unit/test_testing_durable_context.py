"""``testing.context()`` for durable functions: steps are called, sleeps are over, events come from the test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_pgjobs import Backoff, Event, JobContext, job
from django_pgjobs.exceptions import Cancel, InvalidJob, MembersFailed, StepFailed, UnstorableResult, WaitTimedOut
from django_pgjobs.testing import context, isolated_registry

approval: Event[dict[str, str]] = Event("order.approval")
said: list[Any] = []


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    said.clear()
    with isolated_registry():
        yield


def charge(order: int) -> dict[str, Any]:
    said.append(order)
    return {"id": order, "at": (1, 2)}


async def acharge(order: int) -> int:
    await asyncio.sleep(0)
    return order * 10


def fulfil(context: JobContext, order: int) -> list[Any]:
    charged = context.step(charge, order)
    context.sleep(timedelta(days=3))
    verdict = context.wait_for(approval, order, timeout=60)
    return [charged["id"], verdict["by"], context.version("mail", 2)]


def test_a_durable_function_is_called_to_its_end() -> None:
    running = context(events={"order.approval:7": {"by": "ann"}})
    assert fulfil(running, 7) == [7, "ann", 2]
    assert fulfil(context(events={"order.approval:7": {"by": "ann"}}, versions={"mail": 1}), 7)[2] == 1
    assert said == [7, 7]


def test_an_event_that_the_test_does_not_give_is_an_error_that_names_it() -> None:
    with pytest.raises(LookupError, match=r"waits for the event 'order.approval:7'.*did you mean 'order.approval:8'"):
        fulfil(context(events={"order.approval:8": {}}), 7)


def test_an_event_may_fail_to_come() -> None:
    with pytest.raises(WaitTimedOut):
        fulfil(context(events={"order.approval:7": WaitTimedOut(event="order.approval:7")}), 7)


def test_results_of_steps_come_back_as_from_the_database() -> None:
    assert context().step(charge, 7)["at"] == (1, 2)
    with pytest.raises(UnstorableResult, match="Step 'object'"):
        context().step.using(name="object")(object)
    with pytest.raises(InvalidJob, match="has no name of its own"):
        context().step(lambda: 1)


def test_a_key_is_one_step_and_calls_without_one_are_counted() -> None:
    running = context()
    for _ in range(2):
        running.step.using(key=7)(charge, 7)
    assert said == [7]
    running.step(charge, 8)
    running.step(charge, 8)
    assert said == [7, 8, 8]


@pytest.mark.parametrize("is_async", [False, True])
def test_attempts_of_a_step_follow_each_other_at_once(is_async: bool) -> None:
    def flaky(failures: int) -> str:
        said.append("try")
        if len(said) <= failures:
            raise ValueError("not yet")
        return "done"

    def call(failures: int) -> str:
        said.clear()
        options: Any = {"attempts": 3, "backoff": Backoff(3600), "name": "flaky"}
        if is_async:

            async def body() -> str:
                return await context().astep.using(**options)(flaky, failures)

            return async_to_sync(body)()
        return context().step.using(**options)(flaky, failures)

    assert call(2) == "done"
    with pytest.raises(StepFailed, match="Step 'flaky' failed: ValueError: not yet"):
        call(3)
    assert len(said) == 3


def test_a_step_without_attempts_and_one_that_cancels_the_job_raise_what_they_raise() -> None:
    def cancels() -> None:
        said.append("try")
        raise Cancel("no")

    with pytest.raises(Cancel):
        context().step.using(attempts=3)(cancels)
    with pytest.raises(ZeroDivisionError):
        context().step.using(name="divide")(divmod, 1, 0)
    assert said == ["try"]


def test_an_undo_that_does_not_take_the_arguments_of_the_step_is_refused() -> None:
    @job(takes_context=True)
    def refund(context: JobContext, order: int, amount: int) -> None: ...

    with pytest.raises(InvalidJob, match="undo"):
        context().step.using(undo=refund)(charge, 7)


def test_gather_calls_the_functions() -> None:
    @job
    def double(number: int) -> int:
        return number * 2

    @job(takes_context=True)
    async def slowly(context: JobContext, number: int) -> int:
        return await acharge(number) + context.attempt

    @job
    def fails() -> int:
        raise ValueError("no")

    running = context()
    assert running.gather([double.bind(1), double.bind(2)]) == [2, 4]
    assert running.gather([slowly.bind(1)]) == [11]
    ended = running.gather([double.bind(1), fails.bind()], settled=True)
    assert [(each.outcome, each.result, each.error) for each in ended] == [
        ("succeeded", 2, ""),
        ("abandoned", None, "ValueError: no"),
    ]
    with pytest.raises(MembersFailed, match="1 of 2 jobs did not succeed"):
        running.gather([double.bind(1), fails.bind()])


def test_the_async_twins_do_the_same() -> None:
    @job
    def double(number: int) -> int:
        return number * 2

    async def body(running: JobContext) -> list[Any]:
        both = await asyncio.gather(*(running.astep.using(key=n)(acharge, n) for n in (1, 2)))
        plain = await running.astep(charge, 3)
        await running.asleep(3600)
        verdict = await running.await_for(approval, 7, timeout=60)
        doubled = await running.agather([double.bind(4)])
        return [*both, plain["id"], verdict["by"], await running.aversion("mail", 3), *doubled]

    assert asyncio.run(body(context(events={"order.approval:7": {"by": "ann"}}))) == [10, 20, 3, "ann", 3, 8]


def test_two_calls_side_by_side_without_keys_are_refused() -> None:
    async def body() -> None:
        running = context()
        await asyncio.gather(running.astep(acharge, 1), running.astep(acharge, 2))

    with pytest.raises(InvalidJob, match=r"'acharge' is running: tell steps that run side by side apart"):
        asyncio.run(body())
