"""Durable functions, run to their ends by ``run_jobs`` in a plain ``TestCase``'s transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_pgjobs import Backoff, Event, JobContext, Next, job
from django_pgjobs.models import Attempt, Memo
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


@job(name="durable.order", takes_context=True, max_attempts=2, backoff=Backoff(0))
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


@job(name="durable.flaky", takes_context=True, max_attempts=1)
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


@job(name="durable.first", takes_context=True)
def first(context: JobContext) -> Next:
    context.step(charge, 1)
    return Next(second.bind())


@job(name="durable.second", takes_context=True)
def second(context: JobContext) -> int:
    found: int = context.step(charge, 2)["id"]
    return found


def test_the_next_step_of_a_step_machine_remembers_nothing_of_the_one_before() -> None:
    registered = first.register()
    run_jobs()
    registered.refresh_from_db()
    assert registered.result == 20
    assert said == [("charge", 1), ("charge", 2)]


@job(name="durable.naps", takes_context=True, max_attempts=1)
def naps(context: JobContext) -> None:
    while True:
        context.sleep(0)


@override_settings(PGJOBS={"STEPS_LIMIT": 5})
def test_a_job_that_sleeps_in_a_loop_ends_at_the_limit() -> None:
    registered = naps.register()
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert "raise Snooze instead of sleeping in a loop" in registered.error
    assert Memo.objects.filter(job=registered).count() == 5
