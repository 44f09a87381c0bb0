"""Under which names a durable function remembers: two different things never get one, or it is said."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import wraps
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import TransactionTestCase
from django.utils import timezone

from django_pgjobs import Event, JobContext, Next, job
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Job, Memo
from django_pgjobs.testing import run_job, run_jobs

pytestmark = pytest.mark.django_db

said: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    said.clear()


def echo(value: Any) -> Any:
    said.append(value)
    return value


def fails_with(value: Any) -> Any:
    echo(value)
    raise ValueError(value)


async def aecho(value: Any) -> Any:
    return echo(value)


@job(name="names.double")
def double(number: int) -> int:
    return number * 2


@job(name="names.apart", takes_context=True, max_attempts=1)
def apart(context: JobContext) -> list[Any]:
    return [
        context.step.using(name="n", key=1)(echo, "number 1"),
        context.step.using(name="n", key="1")(echo, "text 1"),
        context.step.using(name="n[1]")(echo, "named n[1]"),
        context.step.using(name="n")(echo, "first"),
        context.step.using(name="n")(echo, "second"),
        context.step.using(name="n#2")(echo, "named n#2"),
        context.step.using(name='n["1"]')(echo, "named so"),
    ]


def test_steps_whose_names_look_alike_are_called_each() -> None:
    registered = apart.register()
    run_jobs()
    registered.refresh_from_db()
    assert registered.result == said
    assert len(set(said)) == 7
    assert set(Memo.objects.values_list("name", flat=True)) == {
        "n[1]", 'n["1"]', "n\\[1]", "n", "n#2", "n\\#2", 'n\\["1"]',
    }  # fmt: skip


@job(name="names.twice", takes_context=True, max_attempts=1)
def twice(context: JobContext) -> None:
    context.step.using(key="a")(echo, 1)
    context.step.using(key="a")(echo, 2)


@job(name="names.again", takes_context=True, max_attempts=1)
def again(context: JobContext) -> Any:
    try:
        context.step.using(key="a")(fails)
    except ValueError:
        return context.step.using(key="a", name="fails")(echo, 2)


def fails() -> None:
    raise ValueError("not yet")


def test_a_key_that_is_used_twice_is_refused() -> None:
    registered = twice.register()
    run_jobs()
    registered.refresh_from_db()
    assert "'echo[a]' was called before in this run of the job: give each call a key of its own" in registered.error
    assert said == [1]


def test_a_key_whose_step_raised_may_be_used_again() -> None:
    registered = again.register()
    run_jobs()
    registered.refresh_from_db()
    assert registered.result == 2


async def both(*tasks: Any) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        made = [group.create_task(task) for task in tasks]
    return [task.result() for task in made]


async def two_steps(context: JobContext, first: str, second: str) -> Any:
    await context.astep.using(key=first)(aecho, first)
    return await context.astep(aecho, second)


async def after(task: asyncio.Task[Any], context: JobContext) -> Any:
    await task
    return await context.astep(aecho, "c")


@job(name="names.side_by_side", takes_context=True, max_attempts=1)
async def side_by_side(context: JobContext, what: str) -> Any:
    match what:
        case "gathers":
            return await both(*(context.agather([double.bind(n)]) for n in (1, 2)))
        case "named gathers":
            return await both(*(context.agather([double.bind(n)], name=f"g{n}") for n in (1, 2)))
        case "sleeps":
            return await both(*(context.asleep(n) for n in (1, 2)))
        case "named sleeps":
            return await both(*(context.asleep(n, name=f"s{n}") for n in (1, 2)))
        case "steps":
            task = asyncio.create_task(two_steps(context, "a", "b"))
            return await both(after(task, context))
        case "steps of two functions":
            return await both(context.astep(echo, 1), context.astep(aecho, 2))
        case "beside the body":
            task = asyncio.create_task(two_steps(context, "a", "b"))
            await task
            return await context.astep(aecho, "c")
        case "threads":
            part = sync_to_async(lambda n: context.step(echo, n))
            return await both(part(1), part(2))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("gathers", "agather: 'gather' was called before in this run of the job, by another task or thread"),
        ("sleeps", "asleep: 'sleep' was called before in this run of the job, by another task or thread"),
        ("steps", "step: 'aecho' was called before in this run of the job, by another task or thread"),
        ("beside the body", "step: 'aecho' was called before in this run of the job, by another task or thread"),
        ("threads", "step: 'echo' was called before in this run of the job, by another task or thread"),
    ],
)
def test_names_made_by_turns_are_refused_in_tasks_side_by_side(what: str, words: str) -> None:
    registered = side_by_side.register(what)
    run_jobs(skip_sleeps=True)
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert words in registered.error


@job(name="names.late", takes_context=True, max_attempts=1)
async def late(context: JobContext, *, in_group: bool) -> Any:
    async def part(n: int) -> Any:
        await context.asleep(60, name=f"nap {n}")
        return await context.agather([double.bind(n)])

    return await (both if in_group else asyncio.gather)(part(1), part(2))


@pytest.mark.parametrize("in_group", [True, False])
def test_a_gather_that_another_task_begins_too_after_a_sleep_runs_no_jobs(*, in_group: bool) -> None:
    registered = late.register(in_group=in_group)
    run_job(registered)
    Memo.objects.update(wake_at=timezone.now() - timedelta(seconds=1))
    run_job(registered)
    registered.refresh_from_db()
    assert "InvalidJob: agather: 'gather' was called before in this run of the job" in registered.error
    assert not Job.objects.filter(name=double.name)


@job(name="names.late_steps", takes_context=True, max_attempts=1)
async def late_steps(context: JobContext) -> Any:
    tried = context.astep.using(name="tried", attempts=3)

    async def busy() -> None:
        while len(said) < 2:
            await asyncio.sleep(0.01)

    async def second() -> Any:
        while True:
            try:
                await (tried(fails_with, 2) if said else asyncio.sleep(0.01))
            except InvalidJob as error:
                if "is running" not in str(error):
                    raise
                await asyncio.sleep(0.01)

    return await both(context.astep(busy), tried(fails_with, 1), second())


def test_a_step_of_a_name_that_waits_for_its_next_attempt_is_refused_to_other_tasks() -> None:
    registered = late_steps.register()
    run_job(registered)
    registered.refresh_from_db()
    assert said == [1]
    assert "step: 'tried' was called before in this run of the job, by another task or thread" in registered.error


@pytest.mark.parametrize(
    ("what", "result"),
    [("named gathers", [[2], [4]]), ("named sleeps", [None, None]), ("steps of two functions", [1, 2])],
)
def test_names_of_their_own_tell_tasks_apart(what: str, result: Any) -> None:
    registered = side_by_side.register(what)
    run_jobs(skip_sleeps=True)
    registered.refresh_from_db()
    assert registered.result == result


@job(name="names.other_calls", takes_context=True, max_attempts=1)
def other_calls(context: JobContext) -> list[int]:
    said.append(1)
    return context.gather([double.bind(n) for n in said])


def test_a_gather_of_other_calls_than_before_is_refused() -> None:
    registered = other_calls.register()
    run_jobs()
    registered.refresh_from_db()
    assert "gather: these are not the calls that it gathered before" in registered.error


decided: Event[str] = Event("names.decided")


@job(name="names.inside", takes_context=True, max_attempts=1)
def inside(context: JobContext, what: str) -> None:
    def step() -> None:
        said.append(what)
        match what:
            case "sleep":
                context.sleep(1)
            case "wait_for":
                context.wait_for(decided, timeout=60)
            case "gather":
                context.gather([double.bind(1)])
            case "step.using(attempts=…)":
                context.step.using(attempts=2)(fails)

    context.step.using(name="outer")(step)


@pytest.mark.parametrize("what", ["sleep", "wait_for", "gather", "step.using(attempts=…)"])
def test_what_suspends_the_job_is_refused_inside_a_step(what: str) -> None:
    registered = inside.register(what)
    run_jobs(skip_sleeps=True)
    registered.refresh_from_db()
    assert f"context.{what}() inside step 'outer'" in registered.error
    assert said == [what]


@job(name="names.nests", takes_context=True, max_attempts=1)
def nests(context: JobContext) -> Any:
    found = context.step.using(name="outer")(lambda: context.step(echo, 1) + context.version("v", 2))
    context.sleep(1)
    return found


def test_a_step_inside_a_step_is_remembered() -> None:
    registered = nests.register()
    run_jobs(skip_sleeps=True)
    registered.refresh_from_db()
    assert (registered.result, said) == (3, [1])


@job(name="names.first", takes_context=True)
def first(context: JobContext) -> Next:
    context.step.using(name="pay")(echo, 1)
    return Next(second.bind())


@job(name="names.second", takes_context=True, max_attempts=1)
def second(context: JobContext) -> Any:
    return context.step.using(name=f"pay@{Memo.objects.get().pk}")(echo, 2)


def test_no_name_is_that_of_a_memo_which_a_step_machine_has_put_aside() -> None:
    registered = first.register()
    run_jobs()
    registered.refresh_from_db()
    assert (registered.result, said) == (2, [1, 2])


@job(name="names.threads", takes_context=True, max_attempts=1)
def in_threads(context: JobContext) -> Any:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(context.step, echo, 1).result()
        try:
            return pool.submit(context.step, echo, 2).result()
        finally:
            pool.submit(connections.close_all).result()


class InThreadsTestCase(TransactionTestCase):
    def test_a_thread_of_the_job_does_not_share_its_turns(self) -> None:
        registered = in_threads.register()
        run_jobs()
        registered.refresh_from_db()
        assert registered.outcome == "abandoned"
        assert "tell steps that run side by side apart by using(key=…)" in registered.error


def wrapped(func: Any) -> Any:
    """A plain decorator, as guests write them."""

    @wraps(func)
    def call(*args: Any) -> Any:
        return func(*args)

    return call


@job(name="names.awaits", takes_context=True, max_attempts=1)
async def awaits(context: JobContext) -> Any:
    return await context.astep(wrapped(aecho), 1)


@job(name="names.never_awaits", takes_context=True, max_attempts=1)
def never_awaits(context: JobContext, atomic: bool) -> Any:
    return context.step.using(atomic=atomic)(aecho, 1)


def test_an_async_function_behind_a_plain_decorator_is_awaited_as_a_step() -> None:
    registered = awaits.register()
    run_jobs()
    registered.refresh_from_db()
    assert (registered.result, said) == (1, [1])


@pytest.mark.parametrize("atomic", [True, False])
def test_an_async_function_as_a_plain_step_is_refused(atomic: bool) -> None:
    registered = never_awaits.register(atomic)
    run_jobs()
    registered.refresh_from_db()
    assert "Step 'aecho' returned a coroutine that is never awaited: its function is async" in registered.error
    assert not said
    assert not Memo.objects.exists()
