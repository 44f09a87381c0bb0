"""Waits of several tasks of one job: the job is suspended once, and all of them run from the same moment on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Max, Min
from django.utils import timezone

from django_pgjobs import Backoff, Event, JobContext, job
from django_pgjobs.exceptions import WaitTimedOut
from django_pgjobs.models import Attempt, EventState, Job, Memo
from django_pgjobs.testing import replay, run_job, run_jobs

pytestmark = pytest.mark.django_db

said: list[Any] = []

decided: Event[str] = Event("beside.decided")


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    said.clear()


@job(name="beside.double")
def double(number: int) -> int:
    return number * 2


async def slowly(what: str) -> str:
    await asyncio.sleep(0.05)
    said.append(what)
    return what


def flaky(what: str) -> str:
    said.append(what)
    if said.count(what) < 2:
        raise ValueError("not yet")
    return what


async def all_of(*tasks: Coroutine[Any, Any, Any]) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        made = [group.create_task(task) for task in tasks]
    return [task.result() for task in made]


async def sleeps(context: JobContext) -> Any:
    return await all_of(*(context.asleep(60, name=f"nap {n}") for n in range(4)))


async def steps_before_sleeps(context: JobContext) -> Any:
    async def task(n: int) -> None:
        await context.astep.using(key=n)(slowly, f"step {n}")
        await context.asleep(60, name=f"nap {n}")

    return await all_of(*(task(n) for n in range(2)), context.asleep(60, name="nap 2"))


async def kinds(context: JobContext) -> Any:
    return await all_of(
        context.asleep(60, name="nap"),
        context.await_for(decided, 7, timeout=600),
        context.await_for("here", timeout=600),
        context.agather([double.bind(4)], name="doubled"),
        context.astep.using(attempts=2, backoff=Backoff(300))(flaky, "tried"),
    )


async def same_event(context: JobContext) -> Any:
    return await all_of(*(context.await_for(decided, 7, timeout=seconds) for seconds in (600, 60)))


async def gathers(context: JobContext) -> Any:
    return await asyncio.gather(*(context.agather([double.bind(n)], name=f"g{n}") for n in range(3)))


BODIES: dict[str, Callable[[JobContext], Coroutine[Any, Any, Any]]] = {
    body.__name__: body for body in (sleeps, steps_before_sleeps, kinds, same_event, gathers)
}


@job(name="beside.body", takes_context=True, max_attempts=1)
async def beside(context: JobContext, what: str) -> Any:
    said.append("begins")
    return await BODIES[what](context)


def begun(what: str) -> Job:
    registered = beside.register(what)
    run_job(registered)
    registered.refresh_from_db()
    return registered


def goes_on(registered: Job) -> Job:
    run_job(registered)
    registered.refresh_from_db()
    return registered


def over(**which: Any) -> None:
    Memo.objects.filter(finished_at=None, **which).update(wake_at=timezone.now() - timedelta(seconds=1))


@pytest.mark.parametrize("what", ["sleeps", "steps_before_sleeps"])
def test_sleeps_side_by_side_are_over_together(what: str) -> None:
    registered = begun(what)
    naps = Memo.objects.filter(kind="sleep")
    found = naps.aggregate(Min("wake_at"), Max("wake_at"))
    assert naps.count() == (4 if what == "sleeps" else 3)
    assert found["wake_at__max"] - found["wake_at__min"] < timedelta(seconds=1)
    assert registered.run_at == found["wake_at__min"]
    over()
    registered = goes_on(registered)
    assert (registered.outcome, said.count("begins")) == ("succeeded", 2)
    assert said.count("step 1") == what.count("steps"), "no step was cut off, and called again"
    assert not Attempt.objects.exists()


def test_each_kind_of_wait_ends_by_itself_and_the_others_go_on() -> None:
    registered = begun("kinds")
    assert dict(Memo.objects.values_list("name", "kind")) == {
        "nap": "sleep", "beside.decided:7": "event", f"job:{registered.pk}:here": "event", "doubled": "gather",
        "flaky": "step",
    }  # fmt: skip
    assert registered.run_at == Memo.objects.get(name="nap").wake_at
    assert [attempt.message for attempt in Attempt.objects.all()] == ["step flaky: not yet"]
    assert {found.name: found.waits for found in EventState.objects.all()}.keys() >= {
        "beside.decided:7", f"job:{registered.pk}:here",
    }  # fmt: skip
    wakes = dict(Memo.objects.values_list("name", "wake_at"))

    decided.send(7, payload="yes")
    registered.refresh_from_db()
    assert registered.run_at <= timezone.now()
    registered = goes_on(registered)
    assert registered.run_at == wakes["nap"]
    assert Memo.objects.get(name="beside.decided:7").finished_at is not None
    left = dict(Memo.objects.filter(finished_at=None).exclude(kind="step").values_list("name", "wake_at"))
    assert left == {name: at for name, at in wakes.items() if name in left}, "none of them began anew"
    assert len(left) == 3

    assert said.count("tried") == 1, "the step is not tried before its time, as the job goes on for something else"
    step = Memo.objects.get(name="flaky")
    assert (step.failures, step.error) == (1, "ValueError: step flaky: not yet")
    assert step.wake_at is not None
    assert wakes["flaky"] is not None
    assert abs(step.wake_at - wakes["flaky"]) < timedelta(seconds=1)

    registered.send("here", payload="no")
    run_jobs()
    assert Memo.objects.get(name="doubled").finished_at is not None
    over(name="nap")
    registered = goes_on(registered)
    assert (registered.outcome, said.count("tried")) == (None, 1)
    ended = goes_on(registered)
    assert ended.result == [None, "yes", "no", [8], "tried"]
    assert replay(ended) == ended.result


def test_two_tasks_that_wait_for_one_event_get_it_both() -> None:
    registered = begun("same_event")
    assert registered.run_at < timezone.now() + timedelta(seconds=70)
    decided.send(7, payload="yes")
    assert goes_on(registered).result == ["yes", "yes"]


def test_gathers_side_by_side_register_their_jobs_together() -> None:
    registered = begun("gathers")
    assert Job.objects.filter(name=double.name).count() == 3
    run_jobs(skip_sleeps=True)
    registered.refresh_from_db()
    assert registered.result == [[0], [2], [4]]


@job(name="beside.catches", takes_context=True, max_attempts=1)
async def catches(context: JobContext) -> Any:
    async def patient(name: str, seconds: float) -> str:
        try:
            return str(await context.await_for(name, timeout=seconds))
        except WaitTimedOut:
            await context.asleep(60, name=f"after {name}")
            return f"{name}: nobody"

    return await all_of(patient("one", 60), patient("two", 600))


def test_a_wait_that_has_timed_out_leaves_the_others() -> None:
    registered = catches.register()
    run_job(registered)
    over(name=f"job:{registered.pk}:one")
    assert goes_on(registered).outcome is None
    assert set(Memo.objects.filter(finished_at=None).values_list("name", flat=True)) == {
        "after one", f"job:{registered.pk}:two",
    }  # fmt: skip
    registered.send("two", payload="came")
    over(name="after one")
    assert goes_on(registered).result == ["one: nobody", "came"]


@job(name="beside.late", takes_context=True, max_attempts=1)
async def late(context: JobContext) -> Any:
    return await all_of(context.asleep(900, name="long"), context.asleep(60, name="short"))


def test_a_job_sleeps_if_one_of_its_sleeps_is_over_before_its_deadline() -> None:
    registered = late.using(deadline=timezone.now() + timedelta(seconds=300)).register()
    run_job(registered)
    assert registered.why().code == "sleeping"
    over(name="short")
    assert goes_on(registered).outcome == "abandoned"
