"""Events of one job: ``Job.send``, and ``context.wait_for`` with a text."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_pgjobs import Event, JobContext, job
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Action, EventState
from django_pgjobs.testing import run_jobs

pytestmark = pytest.mark.django_db


@job(name="durable.signed", takes_context=True)
def signed(context: JobContext, name: str = "signed") -> Any:
    return context.wait_for(name, timeout=timedelta(days=1))


@job(name="durable.asigned", takes_context=True)
async def asigned(context: JobContext) -> Any:
    return await context.await_for("signed", timeout=60)


def test_a_text_names_an_event_of_one_job_alone() -> None:
    first, second = signed.register(), signed.register()
    run_jobs()
    assert first.send("signed", {"by": "anna"}, by="anna")
    assert not first.send("signed", {"by": "bert"})
    ran = run_jobs()
    assert ran.succeeded == [first.pk]
    first.refresh_from_db()
    assert first.result == {"by": "anna"}
    assert EventState.objects.get(sent_at__isnull=False).name == f"job:{first.pk}:signed"
    assert second.why().code == "waiting_for_event"
    assert not Action.objects.exists(), "code sends events all the time: that is no action of an operator"


def test_an_event_of_a_job_may_be_sent_before_it_waits() -> None:
    registered = signed.register()
    assert registered.send("signed")
    assert run_jobs().succeeded == [registered.pk]


@job(name="durable.countersigned", takes_context=True)
def countersigned(context: JobContext, names: list[str]) -> list[Any]:
    context.step(str, 1)
    return [context.wait_for(name, timeout=60) for name in names]


@pytest.mark.parametrize("names", [["anna", "bert"], ["bert", "anna"]])
def test_each_wait_of_a_job_is_told_from_its_others(names: list[str]) -> None:
    """And from its steps."""
    registered = countersigned.register(names)
    for name in names:
        assert run_jobs().suspended == [registered.pk]
        assert registered.send(name, name)
    assert run_jobs().ran == [registered.pk]
    registered.refresh_from_db()
    assert registered.result == names


def test_an_event_of_a_job_for_async_code() -> None:
    registered = asigned.register()
    assert async_to_sync(registered.asend)("signed", 7)
    run_jobs()
    registered.refresh_from_db()
    assert registered.result == 7


def test_the_name_of_a_jobs_event_is_checked() -> None:
    registered = signed.register()
    for name in ("", "a\nb", 7, "x" * 200):
        with pytest.raises(InvalidJob, match="the name of an event of a job must be a printable text"):
            registered.send(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="the payload cannot be sent"):
        registered.send("signed", object())
    assert not EventState.objects.exists()


@job(name="durable.keyed", takes_context=True)
def keyed(context: JobContext) -> Any:
    return context.wait_for("signed", 7, timeout=60)  # type: ignore[call-overload]


def test_an_event_of_a_job_takes_no_key() -> None:
    registered = keyed.register()
    run_jobs()
    registered.refresh_from_db()
    assert "'signed' is an event of this job, which takes no key" in registered.error


def test_nobody_sends_the_events_of_this_package() -> None:
    """A job that gathers would run again and again: the event says that its jobs have ended, and they have not."""
    with pytest.raises(InvalidJob, match="events of that name are for single jobs or this package: choose another"):
        Event("pgjobs.gathered").send("x")
    assert not EventState.objects.exists()
