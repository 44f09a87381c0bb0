"""Durable functions, run to their ends by ``run_jobs`` in a plain ``TestCase``'s transaction."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from django_pgjobs import Backoff, Event, JobContext, Next, job
from django_pgjobs.models import Attempt, Memo
from django_pgjobs.steering.batching import Steered
from django_pgjobs.testing import run_job, run_jobs

pytestmark = pytest.mark.django_db

said: list[Any] = []

approval: Event[dict[str, str]] = Event("test.approval")


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    said.clear()


def charge(order: int) -> dict[str, Any]:
    said.append(("charge", order))
    return {"id": order * 10, "at": (1, 2)}


def flaky(failures: int) -> str:
    said.append("flaky")
    if said.count("flaky") <= failures:
        raise ValueError("not yet")
    return "done"


@job(name="memo.order", takes_context=True, max_attempts=2, backoff=Backoff(0))
def order(context: JobContext, number: int, fails: bool = False) -> Any:
    charged = context.step(charge, number)
    said.append(charged)
    context.sleep(timedelta(days=3))
    if fails and not said.count("failed"):
        said.append("failed")
        raise ValueError("once")
    verdict = context.wait_for(approval, number, timeout=timedelta(days=14))
    return [charged["id"], verdict]


def test_a_job_goes_on_where_it_stopped() -> None:
    registered = order.register(7)
    run_jobs()
    assert said == [("charge", 7), {"id": 70, "at": (1, 2)}]
    registered.refresh_from_db()
    assert (registered.label, registered.attempt) == ("scheduled", 0)
    assert registered.why().code == "sleeping"
    run_jobs()
    assert len(said) == 2
    Memo.objects.filter(kind="sleep").update(wake_at=registered.created_at)
    run_job(registered)
    assert registered.why().code == "waiting_for_event"
    assert approval.send(7, payload={"by": "anna"})
    assert not approval.send(7, payload={"by": "bert"})
    ran = run_jobs()
    registered.refresh_from_db()
    assert ran.succeeded == [registered.pk]
    assert registered.result == [70, {"by": "anna"}]
    assert said.count(("charge", 7)) == 1


@job(name="memo.slow", takes_context=True)
def slow(context: JobContext) -> None:
    context.step(time.sleep, 0.05)


def test_a_step_has_begun_its_duration_before_its_end() -> None:
    slow.register()
    run_jobs()
    memo = Memo.objects.get()
    assert memo.finished_at is not None
    assert memo.duration_seconds is not None
    assert memo.duration_seconds >= 0.05
    assert (memo.finished_at - memo.created_at).total_seconds() == pytest.approx(memo.duration_seconds, abs=1e-5)


@job(name="memo.flaky", takes_context=True, max_attempts=1)
def tries(context: JobContext, failures: int, attempts: int | None = 3) -> str:
    return context.step.using(attempts=attempts, backoff=Backoff(60))(flaky, failures)


def test_a_step_is_tried_again_while_the_job_is_suspended() -> None:
    registered = tries.register(2)
    run_jobs()
    assert registered.why().code == "step_retrying"
    for _ in range(2):
        run_job(registered)
    registered.refresh_from_db()
    assert (registered.outcome, registered.result, said) == ("succeeded", "done", ["flaky"] * 3)
    assert [a.message for a in Attempt.objects.order_by("id")] == ["step flaky: not yet"] * 2


def test_a_step_that_failed_for_good_abandons_the_job_and_a_retry_forgets_it() -> None:
    registered = tries.register(3)
    for _ in range(3):
        run_job(registered)
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert "StepFailed: Step 'flaky' failed: ValueError: not yet" in registered.error
    assert registered.retry().changed == 1
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", "done")


@job(name="memo.first", takes_context=True)
def first(context: JobContext) -> Next:
    context.step(charge, 1)
    return Next(second.bind())


@job(name="memo.second", takes_context=True)
def second(context: JobContext) -> int:
    found: int = context.step(charge, 2)["id"]
    return found


def test_the_next_step_of_a_step_machine_remembers_nothing_of_the_one_before() -> None:
    registered = first.register()
    run_jobs()
    registered.refresh_from_db()
    assert registered.result == 20
    assert said == [("charge", 1), ("charge", 2)]


@job(name="memo.naps", takes_context=True, max_attempts=1)
def naps(context: JobContext) -> None:
    while True:
        context.sleep(0)


@override_settings(PGJOBS={"BOUNDS": {"steps": 5}})
def test_a_job_that_sleeps_in_a_loop_ends_at_the_limit() -> None:
    registered = naps.register()
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert "raise Snooze instead of sleeping in a loop" in registered.error
    assert Memo.objects.filter(job=registered).count() == 5


@job(name="memo.inside", takes_context=True, max_attempts=1)
def inside(context: JobContext, what: str) -> None:
    with transaction.atomic():
        if what == "step":
            context.step(charge, 1)
        elif what == "sleep":
            context.sleep(1)
        elif what == "gather":
            context.gather([naps.bind()])
        else:
            context.wait_for(approval, 1, timeout=1)


@pytest.mark.parametrize("what", ["step", "sleep", "wait_for", "gather"])
def test_inside_a_transaction_nothing_is_remembered(what: str) -> None:
    registered = inside.register(what)
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert f"context.{what}() inside atomic(): one commit cannot both keep and undo it." in registered.error
    assert "context.step.using(atomic=True)(func, …)" in registered.error
    assert not Memo.objects.exists()
    assert said == []


@job(name="memo.off", takes_context=True, max_attempts=1)
def off(context: JobContext) -> None:
    transaction.set_autocommit(False)
    try:
        context.step(charge, 1)
    finally:
        transaction.set_autocommit(True)


@pytest.mark.django_db(transaction=True)
def test_with_autocommit_off_nothing_is_remembered() -> None:
    registered = off.register()
    run_jobs()
    registered.refresh_from_db()
    assert "context.step() with autocommit off" in registered.error


@job(name="memo.swallows", takes_context=True, max_attempts=1)
def swallows(context: JobContext, how: str) -> str:
    try:
        context.sleep(60)
    except:  # noqa: E722 (that is what it tests)
        if how == "again":
            context.sleep(60)
        return "swallowed"
    finally:
        said.append("finally")
    return "slept"


def test_a_swallowed_suspension_is_a_failure_that_says_so() -> None:
    registered = swallows.register("once")
    run_jobs()
    registered.refresh_from_db()
    assert "SuspensionSwallowed: The job caught JobSuspended and continued." in registered.error
    assert said == ["finally"]


def test_a_suspension_that_is_swallowed_comes_again_with_the_next_call() -> None:
    registered = swallows.register("again")
    run_jobs()
    assert registered.why().code == "sleeping"


def unstorable() -> object:
    said.append("unstorable")
    return object()


@job(name="memo.bad", takes_context=True, max_attempts=3, backoff=Backoff(0))
def bad(context: JobContext, what: str) -> None:
    if what == "unstorable":
        context.step(unstorable)
    elif what == "nameless":
        context.step(lambda: None)
    elif what == "kinds":
        context.step.using(name="nap")(charge, 1)
        context.version("nap", 2)
    elif what == "undo":
        context.step.using(undo=naps)(charge, 1)
    elif what == "key":
        context.step.using(key=1.5)(charge, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("unstorable", "Step 'unstorable': result cannot be stored"),
        ("nameless", "has no name of its own: give it one by using(name=…)"),
        ("kinds", "version: 'nap' is the name of a step of this job: use another name"),
        ("undo", "Step 'charge': undo: memo.naps() takes"),
        ("key", "step: key must be a text or a number, not 1.5"),
    ],
)
def test_what_cannot_be_remembered_is_refused_with_what_to_write_instead(what: str, words: str) -> None:
    registered = bad.register(what)
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert words in registered.error
    assert said.count("unstorable") <= 1  # what a step has done is not done again for its result


def test_a_wait_times_out_once_and_for_all() -> None:
    registered = order.register(9)
    run_jobs()
    assert registered.unblock().changed == 1
    run_jobs()
    assert registered.why().code == "waiting_for_event"
    assert registered.unblock(by="anna").changed == 1
    assert registered.unblock(by="anna") == Steered(0, {"ready": 1}), "it waits no more"
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert "WaitTimedOut: test.approval:9 was not sent in time." in registered.error
    approval.send(9, payload={"by": "late"})
    registered.retry()
    run_jobs()
    registered.refresh_from_db()
    assert registered.result == [90, {"by": "late"}]
