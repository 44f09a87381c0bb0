"""Ten times what the bounds allow: refused at once by a sentence that names value, place and cure, or cut with a word.

Around each refusal is a transaction, which goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import transaction
from django.test import Client

from django_pgjobs import Backoff, Batch, Cron, Event, Flow, JobContext, Limit, job
from django_pgjobs.exceptions import BatchClosed, InvalidJob, QueueFull
from django_pgjobs.models import Job
from django_pgjobs.queues import Queue, pauses
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_admin import LIST, html, ids_on

pytestmark = pytest.mark.django_db

MIB = 2**20
YEARS = timedelta(days=10 * 3650)
REFUSALS = (InvalidJob, BatchClosed, QueueFull, ValueError)
MOST_CHARS = 500
"""Characters of a refusal: it names a value, and does not repeat ten megabytes."""


def given(value: Any = None) -> Any: ...


@job(name="ten.pay")
def pay(value: Any = None) -> None: ...


@job(name="ten.limited", limits=Limit(1, key="{value}"))
def limited(value: str) -> None: ...


@job(name="ten.keyed", unique="{value}", idempotency_key="{value}")
def keyed(value: str) -> None: ...


approval: Event[Any] = Event("ten.approval")


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def later() -> datetime:
    return datetime.now(UTC) + YEARS


def using(**options: Any) -> Callable[[], Any]:
    return lambda: pay.using(**options).register()


def declared(**options: Any) -> Callable[[], Any]:
    return lambda: job(name="ten.declared", **options)(given)


def batch_of(count: int) -> None:
    with Batch("ten") as batch:
        batch.add_many(pay.bind(n) for n in range(count))


def flow_of(count: int) -> None:
    flow = Flow()
    for n in range(count):
        flow.add(pay.bind(n))


def flow_that_needs(count: int) -> None:
    flow = Flow()
    flow.add(pay.bind(0), [flow.add(pay.bind(n)) for n in range(count)])


tenancy: Any = lambda run: run  # noqa: E731 (it gets an attribute)
tenancy.capture = lambda: {"tenant": "x" * 10 * MIB}

SMALL = {
    "BOUNDS": {"members": 2, "nodes": 20, "needs": 1},
    "CAPACITY": {"full": 3},
}
"""Bounds that are too large to be tried ten times."""

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "arguments": (lambda: pay.register("x" * 10 * MIB), r"BOUNDS\['payload_bytes'\]"),
    "arguments of many": (lambda: pay.register_many([("x" * 10 * MIB,)]), r"BOUNDS\['payload_bytes'\]"),
    "depth": (lambda: pay.register(nested(1000)), r"nested deeper than 100 levels"),
    "key": (using(unique="k" * 2000), r"unique must be 1 to 200 printable characters, not 'k+'… of 2000"),
    "key by template": (lambda: keyed.register("k" * 2000), r"key must be 1 to 200 .* of 2000"),
    "idempotency key": (using(idempotency_key="k" * 2000), r"idempotency_key must be 1 to 200 .* of 2000"),
    "key of a limit": (lambda: limited.register("k" * 2000), r"1 to 200 .* of 2000 characters"),
    "tags": (using(tags=[f"t{n}" for n in range(200)]), r"tags must be at most 20, not 200"),
    "tag": (using(tags=["t" * 500]), r"a tag must be 1 to 50 .* of 500 characters"),
    "description": (using(description="d" * 2000), r"description must be text of at most 200 .* of 2000 characters"),
    "queue": (using(queue="q" * 1000), r"queue must be 1 to 100 .* of 1000 characters"),
    "priority": (using(priority=1000), r"priority must be an integer from -100 to 100, not 1000"),
    "delay": (using(delay=YEARS), r"delay must be at most 3650 days, .*\(BOUNDS\['ahead_seconds'\]\)"),
    "start": (
        lambda: pay.using(run_at=later()).register(),
        r"run_at must be at most 3650 days .*\(BOUNDS\['ahead_seconds'\]\)",
    ),
    "deadline": (
        lambda: pay.using(deadline=later()).register(),
        r"deadline must be at most 3650 days .*\(BOUNDS\['ahead_seconds'\]\)",
    ),
    "expiry": (using(expires=YEARS), r"expires must be at most 3650 days .*\(BOUNDS\['ahead_seconds'\]\)"),
    "expiry at an instant": (
        lambda: pay.using(expires=later()).register(),
        r"expires must be at most 3650 days .*\(BOUNDS\['ahead_seconds'\]\)",
    ),
    "needs": (using(after=range(1, 100_001)), r"after takes at most 1 jobs \(BOUNDS\['needs'\]\), not 100000"),
    "name": (lambda: job(name="n" * 2000)(given), r"name must be text of 1 to 200 .* of 2000 characters"),
    "alias": (declared(aliases=["n" * 2000]), r"aliases must be text of 1 to 200 .* of 2000 characters"),
    "attempts": (declared(max_attempts=10**7), r"between 1 and 1000, not 10000000 \(BOUNDS\['max_attempts'\]\)"),
    "timeout": (declared(timeout=YEARS), r"timeout must be at most .* \(BOUNDS\['timeout_seconds'\]\)"),
    "backoff": (declared(backoff=Backoff(YEARS.total_seconds())), r"\(BOUNDS\['backoff_base_seconds'\]\)"),
    "factor of a backoff": (declared(backoff=Backoff(1, factor=10**6)), r"\(BOUNDS\['backoff_factor'\]\)"),
    "limit": (lambda: Limit(10**7), r"from 1 to 1000000, not 10000000"),
    "rate": (lambda: Limit(rate=10**7), r"from 1 to 1000000, not 10000000"),
    "window of a rate": (lambda: Limit(rate=1, per=timedelta(days=310)), r"to 2678400 seconds"),
    "expression": (lambda: Cron("0," * 1000 + "0 * * * *"), r"at most 200 characters long, not 2009"),
    "misfires": (lambda: Cron("* * * * *", misfire="all", misfire_limit=10_000), r"from 1 to 1000, not 10000"),
    "members": (lambda: batch_of(20), r"BOUNDS\['members'\]"),
    "nodes": (lambda: flow_of(200), r"BOUNDS\['nodes'\]"),
    "needs of a node": (lambda: flow_that_needs(10), r"needs 10 others, and at most 1 \(BOUNDS\['needs'\]\)"),
    "capacity": (
        lambda: pay.using(queue="full").register_many([(n,) for n in range(30)]),
        r"Queue 'full' holds at most 3",
    ),
    "event": (lambda: approval.send("k", payload="x" * 10 * MIB), r"'ten.approval:k'.*BOUNDS\['event_bytes'\]"),
    "depth of an event": (
        lambda: approval.send("k", payload=nested(1000)),
        r"payload cannot be stored: it is nested deeper than",
    ),
    "key of an event": (lambda: approval.send("k" * 2000), r"1 to 200 characters"),
    "name of an event": (lambda: Event("e" * 2000), r"1 to 200 characters"),
    "reason of a pause": (lambda: Queue("q").pause(reason="r" * 5000), r"at most 500 characters, not 5000"),
    "reason of a job's pause": (lambda: pauses.pause("job", "ten.pay", reason="r" * 5000), r"at most 500 .*, not 5000"),
    "end of a pause": (lambda: Queue("q").pause(until=YEARS), r"at most ten years"),
}


@pytest.fixture
def _small(settings: Any) -> None:
    settings.PGJOBS = SMALL


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("what", REFUSED)
def test_ten_times_a_bound_is_refused_and_the_transaction_goes_on(what: str) -> None:
    call, words = REFUSED[what]
    with transaction.atomic():
        before = pay.register(1)
        with pytest.raises(REFUSALS, match=words) as caught:
            call()
        after = pay.register(2)
    assert len(str(caught.value)) < MOST_CHARS
    assert {row.pk for row in Job.objects.exclude(name="pgjobs.batch")} == {before.pk, after.pk}


def test_headers_of_middleware_are_refused_too(settings: Any) -> None:
    settings.PGJOBS = {"MIDDLEWARE": [f"{__name__}.tenancy"]}
    with transaction.atomic():
        with pytest.raises(
            InvalidJob, match=r"captured headers that .* at most 1048576 may be stored \(BOUNDS\['payload_bytes'\]\)"
        ) as caught:
            pay.register()
        assert not Job.objects.exists()
    assert len(str(caught.value)) < MOST_CHARS


@job(name="ten.runs", max_attempts=1, strict_results=True)
def runs(context: JobContext, what: str) -> Any:
    return RUNNING[what][0](context)


def huge() -> str:
    return "x" * 10 * MIB


def medium() -> str:
    return "x" * 1000


def fails() -> None:
    raise ValueError("e" * 20_000)


def steps(context: JobContext, count: int, step: Callable[[], Any]) -> None:
    for n in range(count):
        context.step.using(key=str(n))(step)


RUNNING: dict[str, tuple[Callable[[JobContext], Any], str]] = {
    "result": (lambda context: huge(), r"BOUNDS\['result_bytes'\]"),
    "depth of a result": (lambda context: nested(1000), r"nested deeper than 100 levels"),
    "result of a step": (lambda context: context.step(huge), r"Step 'huge': .*BOUNDS\['result_bytes'\]"),
    "results of steps": (lambda context: steps(context, 100, medium), r"BOUNDS\['steps_bytes'\]"),
    "steps": (lambda context: steps(context, 200, given), r"remembers 20 steps.*BOUNDS\['steps'\]"),
    "name of a step": (lambda context: context.step.using(key="k" * 2000)(given), r"1 to 200 characters"),
    "attempts of a step": (lambda context: context.step.using(attempts=10_000)(given), r"1000"),
    "sleep": (lambda context: context.sleep(YEARS), r"3650 days, not .*BOUNDS\['ahead_seconds'\]"),
    "wait": (
        lambda context: context.wait_for(approval, 1, timeout=YEARS),
        r"3650 days, not .*BOUNDS\['ahead_seconds'\]",
    ),
    "gather": (
        lambda context: context.gather([pay.bind(n) for n in range(50)]),
        r"at most 5 jobs \(BOUNDS\['gather'\]\), not 50",
    ),
    "error": (lambda context: fails(), r"^ValueError: e{1999}…$"),
}


@pytest.mark.parametrize("what", RUNNING)
def test_ten_times_a_bound_ends_a_job_with_a_word(settings: Any, what: str) -> None:
    settings.PGJOBS = {"BOUNDS": {"steps": 20, "steps_bytes": 10_000, "gather": 5}}
    registered = runs.register(what)
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert len(registered.error) < 3000
    assert re.search(RUNNING[what][1], registered.error)
    assert Job.objects.count() == 1


@job(name="ten.says", description=lambda value: "d" * 2000)
def says(context: JobContext, value: str) -> None:
    context.progress(1, 2, "p" * 2000)


def test_ten_times_a_text_for_people_is_cut_and_shows_it(settings: Any) -> None:
    """What a job says of itself costs it nothing."""
    settings.PGJOBS = {"MIDDLEWARE": []}
    registered = says.register("x")
    run_jobs()
    registered.refresh_from_db()
    assert registered.description == "d" * 199 + "…"
    assert (registered.progress or {})["message"] == "p" * 199 + "…"


def test_a_search_of_ten_times_its_bound_finds_nothing_and_says_why(root: Client) -> None:
    """A part of what was asked for would list others, and an action on all of them would change them."""
    longest = pay.using(unique="k" * 200).register()
    other = pay.using(unique="o").register()
    assert ids_on(root.get(LIST, {"q": f"key:{'k' * 200}"})) == [longest.pk]
    asked = {"q": "queue:default" + " " * 9977 + "key:nothing"}
    assert "A search has at most 1000 characters, not 10001." in html(root.get(LIST, asked))
    assert ids_on(root.get(LIST, asked)) == []
    everything = {"action": "cancel", "_selected_action": "0", "select_across": "1", "confirmed": "yes", "mode": "ask"}
    root.post(f"{LIST}?{urlencode(asked)}", everything)
    assert Job.objects.filter(pk__in=[longest.pk, other.pk], outcome=None).count() == 2
