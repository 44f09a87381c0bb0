"""Whatever awaitable a job, a step or a callback comes to is awaited, or refused: by every door that runs jobs."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_pgjobs import JobContext, Next, current_context, job
from django_pgjobs.flows.builtin import notify
from django_pgjobs.models import Job
from django_pgjobs.notifying.notice import FailureNotice
from django_pgjobs.testing import context, run_jobs, wait_for_bypassed
from tests.db.tasks_ground import cast
from tests.plugins.fix_db import patience

said: list[Any] = []


@pytest.fixture(autouse=True)
def _silence() -> None:
    said.clear()


def plain(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as many libraries have it: what it returns is no coroutine function."""

    @functools.wraps(func)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return inner


async def says(*words: Any) -> str:
    await asyncio.sleep(0)
    said.append(words)
    return " ".join(map(str, words))


class Later:
    """An awaitable of a type of its own."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __await__(self) -> Any:
        return says(self.word).__await__()


async def returns_another() -> Any:
    return says("another")


AWAITABLE: dict[str, Callable[[], Any]] = {
    "coroutine": lambda: says("coroutine"),
    "Later": lambda: Later("Later"),
    "another": returns_another,
}


@job(name="awaited.body", max_attempts=1)
def body(kind: str) -> Any:
    return AWAITABLE[kind]()


@job(name="awaited.unstored", max_attempts=1, store_result=False)
def unstored(kind: str) -> Any:
    return AWAITABLE[kind]()


@job(name="awaited.atomic", max_attempts=1, atomic=True, store_result=False)
def atomic(kind: str) -> Any:
    return AWAITABLE[kind]()


@job(name="awaited.abody", max_attempts=1)
async def abody(kind: str) -> Any:
    return AWAITABLE[kind]()


@job(name="awaited.aunstored", max_attempts=1, store_result=False)
async def aunstored(kind: str) -> Any:
    return AWAITABLE[kind]()


@job(name="awaited.scheduled", max_attempts=1, store_result=False)
async def scheduled(kind: str) -> Any:
    """What is returned runs already."""
    return asyncio.create_task(says(kind))


@job(name="awaited.machine", max_attempts=1)
@plain
async def machine(kind: str) -> Next:
    return Next(unstored.bind(kind))


BODIES = [body, unstored, atomic, abody, aunstored, scheduled, machine]


def sync_layer(run: Any) -> Any:
    return lambda context: run(context)


def hidden_layer(run: Any) -> Any:
    @plain
    async def layer(context: Any) -> Any:
        return run(context)

    return layer


@pytest.fixture(params=[[], ["sync_layer"]], ids=["without middleware", "with middleware"])
def layers(request: pytest.FixtureRequest, settings: Any) -> list[str]:
    """Without middleware a body is called by another line."""
    paths = [f"{__name__}.{name}" for name in request.param]
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": paths}
    return paths


@pytest.mark.django_db
@pytest.mark.parametrize("definition", BODIES, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", AWAITABLE)
def test_what_a_body_returns_is_awaited(layers: list[str], definition: Any, kind: str) -> None:
    row = definition.register(kind)
    run_jobs()
    row.refresh_from_db()
    assert (row.outcome, said) == ("succeeded", [(kind,)]), row.error
    assert row.result == (kind if definition in (body, abody) else None)


@pytest.mark.usefixtures("committed")
@pytest.mark.parametrize("definition", [body, unstored, abody, aunstored], ids=lambda each: each.name)
def test_a_job_that_bypasses_the_queue_is_awaited(layers: list[str], definition: Any) -> None:
    definition.using(bypass=True).register("another")
    wait_for_bypassed(patience(10))
    assert said == [("another",)]


@pytest.mark.django_db
@pytest.mark.parametrize("definition", [body, unstored, atomic, abody, aunstored], ids=lambda each: each.name)
def test_a_layer_that_nobody_awaits_is_refused(settings: Any, definition: Any) -> None:
    """The body in it has not run."""
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": [f"{__name__}.hidden_layer"]}
    row = definition.register("coroutine")
    run_jobs()
    row.refresh_from_db()
    assert (row.outcome, said) == ("abandoned", [])
    assert "a layer returned a coroutine that is never awaited" in row.error


@pytest.mark.django_db
def test_a_layer_around_a_callback_that_nobody_awaits_is_logged(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.PGJOBS = {**settings.PGJOBS, "MIDDLEWARE": [f"{__name__}.hidden_layer"]}
    ends.register("succeeded")
    run_jobs()
    assert said == []
    assert re.search(
        "callback failed callback=on_abandon .*a layer returned a coroutine that is never awaited", caplog.text
    )


# Callbacks and compensations


@job(name="awaited.ends", max_attempts=1)
def ends(how: str) -> None:
    if how == "abandoned":
        raise ValueError(how)


@ends.on_success
@plain
async def succeeded(context: JobContext, how: str) -> Any:
    return says("on_success", how)


@ends.on_abandon
@plain
async def abandoned(context: JobContext, how: str) -> Any:
    return says("on_abandon", how)


@ends.on_cancel
@plain
async def cancelled(context: JobContext, how: str) -> Any:
    return says("on_cancel", how)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("how", "callback"), [("succeeded", "on_success"), ("abandoned", "on_abandon"), ("cancelled", "on_cancel")]
)
def test_what_a_callback_returns_is_awaited(layers: list[str], how: str, callback: str) -> None:
    row = ends.register(how)
    if how == "cancelled":
        row.cancel()
    run_jobs()
    row.refresh_from_db()
    assert (row.outcome, said) == (how, [(callback, how)])


@job(name="awaited.booked", max_attempts=1)
def booked() -> None:
    current_context().step.using(undo=unbooked)(str, 7)
    raise ValueError("no")


@job(name="awaited.unbooked", max_attempts=1, store_result=False)
@plain
async def unbooked(number: int) -> Any:
    return says("unbooked", number)


@pytest.mark.django_db
def test_what_a_compensation_returns_is_awaited(layers: list[str]) -> None:
    booked.register()
    run_jobs()
    assert Job.objects.get(name=unbooked.name).outcome == "succeeded"
    assert said == [("unbooked", 7)]


# Steps


def hidden(kind: str) -> Any:
    return AWAITABLE[kind]()


@job(name="awaited.steps", max_attempts=1, takes_context=True)
def steps(context: JobContext, kind: str, atomic: bool) -> Any:
    return context.step.using(name="hidden", atomic=atomic)(hidden, kind)


@job(name="awaited.asteps", max_attempts=1, takes_context=True)
async def asteps(context: JobContext, kind: str) -> Any:
    return await context.astep.using(name="hidden")(hidden, kind)


@job(name="awaited.stepping", max_attempts=1, takes_context=True)
def stepping(context: JobContext, kind: str, atomic: bool) -> Next:
    """A step machine whose first step has a durable step."""
    return Next(unstored.bind(context.step.using(name="hidden", atomic=atomic)(hidden, kind)))


@pytest.mark.django_db
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("definition", [steps, stepping], ids=lambda each: each.name)
@pytest.mark.parametrize("kind", AWAITABLE)
def test_a_plain_step_is_refused(definition: Any, kind: str, atomic: bool) -> None:
    """A job that goes on without the step's effect would be wrong, and a step in a thread has no event loop."""
    row = definition.register(kind, atomic)
    run_jobs()
    row.refresh_from_db()
    assert (row.outcome, said) == ("abandoned", [])
    assert "Step 'hidden' returned a coroutine that is never awaited: its function is async" in row.error


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["coroutine", "Later"])
def test_an_awaited_step_runs(kind: str) -> None:
    row = asteps.register(kind)
    run_jobs()
    row.refresh_from_db()
    assert (row.outcome, said) == ("succeeded", [(kind,)]), row.error


@pytest.mark.django_db
def test_an_awaited_step_that_comes_to_another_coroutine_is_refused() -> None:
    row = asteps.register("another")
    run_jobs()
    row.refresh_from_db()
    assert (row.outcome, said) == ("abandoned", [])
    assert "Step 'hidden' returned a coroutine that is never awaited" in row.error


# Members, tasks, notices


@job(name="awaited.gathers", max_attempts=1, takes_context=True)
def gathers(context: JobContext) -> list[Any]:
    return context.gather([unstored.bind(kind) for kind in AWAITABLE])


def test_members_of_a_context_for_tests_are_awaited() -> None:
    with context() as fake:
        gathers(fake)
    assert said == [(kind,) for kind in AWAITABLE]


@plain
async def deliver(notice: FailureNotice) -> None:
    await sync_to_async(said.append)(notice.subject)


@pytest.mark.django_db
def test_a_notice_is_delivered_by_a_function_that_is_async_within(settings: Any) -> None:
    settings.PGJOBS = {**settings.PGJOBS, "NOTIFY_FAILURES": {"to": f"{__name__}.deliver"}}
    digest: dict[str, Any] = {
        "since": None,
        "until": None,
        "jobs": 0,
        "at_least": False,
        "groups": [],
        "other_groups": 0,
    }
    row = notify.register({**digest, "problems": [["e", "Nobody serves a queue."]]})
    run_jobs()
    row.refresh_from_db()
    assert (row.outcome, len(said)) == ("succeeded", 1), row.error


@pytest.mark.django_db
@pytest.mark.usefixtures("our_tasks")
@pytest.mark.parametrize("name", ["hidden", "returns_a_coroutine"])
def test_what_a_task_returns_is_awaited(name: str) -> None:
    cast.calls.clear()
    result = getattr(cast, name).enqueue(7)
    run_jobs()
    result.refresh()
    assert (result.status, result.return_value, cast.calls) == ("SUCCESSFUL", 7, [7])
