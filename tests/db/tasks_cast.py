"""The tasks of the tests, as a project's module has them. ``tasks_ground`` imports it under its settings."""

from __future__ import annotations

import datetime
from functools import wraps
from importlib import import_module
from typing import Any

from django_pgjobs import Backoff, Cancel, Cron, JobContext, Limit, job
from django_pgjobs.tasks import policy
from django_pgjobs.tasks.families import FAMILY

task: Any = import_module(FAMILY).task

calls: list[Any] = []


@task
def noop(*args: Any, **kwargs: Any) -> None:
    """Takes anything."""


@task
def echo(value: Any = None) -> Any:
    return value


def hides(func: Any) -> Any:
    """A decorator as many libraries have it: what it returns is no coroutine function."""

    @wraps(func)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return inner


@task
@hides
async def hidden(value: int) -> Any:
    calls.append(value)
    return value


@task
async def returns_a_coroutine(value: int) -> Any:
    async def late() -> int:
        calls.append(value)
        return value

    return late()


@task(priority=10, queue_name="mail")
@policy(max_attempts=3, backoff=Backoff(0), timeout=300, tags=["welcome"])
def send_welcome(user_id: int, *, name: str = "") -> str:
    calls.append((user_id, name))
    return f"welcome {name or user_id}"


@task
@policy(unique="index:{pk}")
def index(pk: int) -> None: ...


@task(takes_context=True)
@policy(max_attempts=2, backoff=Backoff(0))
def in_context(context: Any, value: int = 0) -> list[Any]:
    calls.append(context)
    if value == context.attempt:
        raise ValueError(f"attempt {value}")
    return [context.attempt, context.job.id, value]


@task(takes_context=True)
async def async_in_context(context: Any) -> list[Any]:
    calls.append(context)
    return [context.attempt, context.job.id]


@task
async def asleep(value: int) -> int:
    return value + 1


@task
@policy(max_attempts=2, backoff=Backoff(0))
def fails(words: str = "no") -> None:
    raise ValueError(words)


@task
def unstorable(kind: str) -> Any:
    return {"uuid": datetime.datetime(2026, 11, 25, tzinfo=datetime.UTC), "nan": float("nan"), "set": {1}}[kind]


@task
@policy(strict_results=False)
def lenient() -> set[int]:
    return {1}


class Outer:
    """Has an exception of its own."""

    class InnerError(Exception):
        """Inside a class."""


@task
@policy(max_attempts=1)
def raises(kind: str) -> None:
    class LocalError(Exception):
        """Inside a function."""

    kinds: dict[str, BaseException] = {
        "plain": KeyError("x"),
        "exit": SystemExit(3),
        "nested": Outer.InnerError("deep"),
        "local": LocalError("here"),
        "cancel": Cancel("by itself"),
        "own": import_module("django_pgjobs.exceptions").QueueFull("full"),
    }
    raise kinds[kind]


@task
@policy(limits=Limit(1), store_result=False)
def alone() -> str:
    return "dropped"


@task
@policy(aliases=["tests.db.tasks_cast.former"], sensitive=["secret"], cron=Cron("0 3 * * *"))
def nightly(secret: str = "") -> None: ...


@job
def native(value: Any = None) -> Any:
    calls.append(value)
    return value


@job(takes_context=True, name="tasks.renamed", queue="mail", priority=-5)
def native_in_context(context: JobContext, value: int) -> int:
    calls.append(context)
    return value


plain_function = noop.func


def undecorated() -> None: ...


twin = task(undecorated)
"""A task under another name than its function has, which no worker could find."""

moved = send_welcome.using(queue_name="other", priority=-100)
in_2030 = noop.using(run_after=datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC))
in_2001 = noop.using(run_after=datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC))
in_2999 = noop.using(run_after=datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC))
in_five_minutes = noop.using(run_after=datetime.timedelta(minutes=5))
in_a_century = noop.using(run_after=datetime.timedelta(days=36500))
