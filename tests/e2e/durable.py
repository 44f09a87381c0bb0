"""Durable functions of the end-to-end tests. ``stops``: the places where they wait for the test to open a gate."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_pgjobs import Abandon, Backoff, Event, JobContext, job
from django_pgjobs.exceptions import JobSuspended, WaitTimedOut
from tests.e2e import stage

AT_ONCE = Backoff(0)

opened: Event[Any] = Event("e2e.opened")


def at(place: str, key: str, stops: str) -> str:
    """Note that somebody has come here; wait if it is a place to stop at."""
    stage.here().note(place, key)
    if place in stops.split():
        stage.here().wait(f"{place}-{key}")
    return f"{place} of {key}"


@job(name="lasting.member", max_attempts=10, backoff=AT_ONCE)
def member(key: str, number: int, stops: str = "") -> int:
    at(f"member{number}", key, stops)
    return number * 10


@job(name="lasting.book", max_attempts=1)
def book(place: str, key: str, stops: str) -> str:
    return at(place, key, stops)


@book.undo(max_attempts=10, backoff=AT_ONCE)
def unbook(context: JobContext, place: str, key: str, stops: str) -> str:
    at(f"undo-{place}", key, stops)
    stage.here().note("target", key, context.target.id, context.target.result)
    return place


@job(name="lasting.travels", takes_context=True, max_attempts=10, backoff=AT_ONCE)
def travels(context: JobContext, key: str, stops: str = "", naps: float = 1.0) -> list[Any]:
    context.step.using(name="first")(at, "first", key, stops)
    context.sleep(naps)
    context.step.using(name="second")(at, "second", key, stops)
    word = context.wait_for(opened, key, timeout=60)
    context.step.using(name="third")(at, "third", key, stops)
    found = context.gather([member.bind(key, n, stops) for n in range(3)])
    context.step.using(name="fourth")(at, "fourth", key, stops)
    return [word, *found]


@job(name="lasting.atravels", takes_context=True, max_attempts=10, backoff=AT_ONCE)
async def atravels(context: JobContext, key: str, stops: str = "", naps: float = 1.0) -> list[Any]:
    await context.astep.using(name="first")(at, "first", key, stops)
    await context.asleep(timedelta(seconds=naps))
    await context.astep.using(name="second")(asays, "second", key)
    word = await context.await_for(opened, key, timeout=60)
    await context.astep.using(name="third")(at, "third", key, stops)
    found = await context.agather([member.bind(key, n, stops) for n in range(3)])
    await context.astep.using(name="fourth")(asays, "fourth", key)
    return [word, *found]


async def asays(place: str, key: str) -> None:
    """Note that somebody has come here; in the event loop."""
    stage.here().note(place, key)


@job(name="lasting.lingers", takes_context=True, max_attempts=10, backoff=AT_ONCE)
def lingers(context: JobContext, key: str, waits: str) -> Any:
    """Hold the first suspension up, until the test opens its gate, or kills the process."""
    context.step.using(name="first")(at, "first", key, "")
    try:
        return wait(context, key, waits)
    except JobSuspended:
        stage.here().note("suspends", key)
        if stage.here().count("suspends", key) == 1:
            stage.here().wait(f"suspends-{key}")
        raise


def wait(context: JobContext, key: str, waits: str) -> Any:
    """Wait as told."""
    if waits == "sleep":
        return context.sleep(1.0)
    if waits == "event":
        return context.wait_for(opened, key, timeout=60)
    return context.gather([member.bind(key, n) for n in range(2)])


@job(name="lasting.fails", takes_context=True, max_attempts=10, backoff=AT_ONCE, timeout=60)
def fails(context: JobContext, key: str, stops: str = "", wakes: bool = False) -> None:
    """Book three, then fail, or wait for a word."""
    for place in ("a", "b", "c"):
        context.step.using(key=place, undo=unbook)(book, place, key, stops)
    if wakes:
        context.wait_for(opened, key, timeout=60)
    raise Abandon("all for nothing")


@job(name="lasting.flaky", takes_context=True, max_attempts=1)
def flaky(context: JobContext, key: str, failures: int) -> str:
    return context.step.using(attempts=3, backoff=Backoff(0.5))(flake, key, failures)


def flake(key: str, failures: int) -> str:
    """Fail as often as told."""
    stage.here().note("flake", key)
    if stage.here().count("flake", key) <= failures:
        raise ValueError("not yet")
    return "at last"


@job(name="lasting.expects", takes_context=True, max_attempts=1)
def expects(context: JobContext, key: str, timeout: float, catches: bool = False) -> str:
    try:
        return str(context.wait_for(opened, key, timeout=timeout))
    except WaitTimedOut as error:
        if not catches:
            raise
        return f"nobody: {error.event}"


@job(name="lasting.hurries", takes_context=True, max_attempts=1, timeout=2)
def hurries(context: JobContext, key: str) -> str:
    """Sleep longer than an attempt may take."""
    context.sleep(3.0)
    return key


@job(name="lasting.gathers", takes_context=True, max_attempts=1)
def gathers(context: JobContext, key: str) -> list[str]:
    """Run two at once, and two much later."""
    soon, later = book.bind("member", key, "member"), book.using(delay=600).bind("member", key, "")
    return context.gather([soon, soon, later, later])


@job(name="lasting.pays", max_attempts=1)
def pays(key: str) -> str:
    return key


@pays.undo(max_attempts=2, backoff=Backoff(0.25), idempotency_key="refund:{key}")
def refunds(context: JobContext, key: str) -> str:
    stage.here().note("refunds", key)
    if (key.startswith("flaky") and context.attempt == 1) or key.startswith("broken"):
        raise ValueError("the bank is closed")
    return f"refunded {key}"


@job(name="lasting.shops", takes_context=True, max_attempts=1)
def shops(context: JobContext, key: str) -> None:
    context.step.using(undo=refunds)(pays, key)
    raise Abandon("out of stock")
