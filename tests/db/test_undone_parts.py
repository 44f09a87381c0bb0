"""What is undone: every part once, whoever retries what meanwhile, and none because another cannot be undone."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.models import Value
from django.db.models.functions import Concat, Now

from django_pgjobs import Abandon, Backoff, Batch, Flow, JobContext, Next, job
from django_pgjobs.definition.registry import registry
from django_pgjobs.flows import undoing
from django_pgjobs.models import Job, StoredResult
from django_pgjobs.testing import run_jobs

pytestmark = pytest.mark.django_db

said: list[Any] = []
broken: set[Any] = set()


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    said.clear()
    broken.clear()


@job(name="parts.seat", max_attempts=1)
def seat(number: int) -> int:
    if number in broken:
        raise ValueError("broken")
    said.append(number)
    return number * 10


@seat.undo(max_attempts=1, unique="free")
def free(context: JobContext, number: int) -> None:
    if -number in broken:
        raise ValueError("not now")
    said.append((-number, context.target.result))


@job(name="parts.saga", takes_context=True, max_attempts=1)
def saga(context: JobContext, numbers: list[int]) -> None:
    for number in numbers:
        context.step.using(key=number, undo=free)(seat, number)
    raise Abandon("refused")


@job(name="parts.gathers", takes_context=True, max_attempts=1)
def gathers(context: JobContext, numbers: list[int]) -> int:
    return sum(context.gather([seat.bind(number) for number in numbers]))


@job(name="parts.fails", max_attempts=1)
def fails(value: Any = None) -> None:
    raise ValueError("broken")


@job(name="parts.plain")
def plain() -> None:
    said.append("plain")


def row(name: str) -> Job:
    return Job.objects.get(name=name)


def undone() -> list[Any]:
    return [one for one in said if isinstance(one, tuple)]


# Who has been undone


def test_a_saga_whose_undo_was_cancelled_midway_is_not_retried() -> None:
    """C68: a part of it is gone, although no attempt of the undo was charged."""
    registered = saga.register([1, 2])
    run_jobs(limit=3)  # the job, the undo, and the first compensation
    assert undone() == [(-2, 20)]
    undo = row("pgjobs.undo")
    assert (undo.attempt, undo.outcome) == (0, None)
    undo.cancel(by="anna")
    run_jobs()
    undo.refresh_from_db()
    assert undo.outcome == "cancelled"
    assert registered.retry().skipped == {"undone": 1}
    assert "cannot be retried" in registered.why().advice
    assert undo.retry().changed == 1
    run_jobs()
    assert undone() == [(-2, 20), (-1, 10)]


def test_a_job_whose_undo_has_been_pruned_is_not_retried() -> None:
    registered = saga.register([1])
    run_jobs()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgjobs_job WHERE id <> %s", [registered.pk])
    assert registered.retry().skipped == {"undone": 1}


def test_a_compensation_that_somebody_retried_is_not_repeated() -> None:
    broken.add(-1)
    saga.register([1, 2])
    run_jobs()
    undo, failed = row("pgjobs.undo"), Job.objects.get(name="parts.seat.undo", outcome="abandoned")
    assert undo.outcome == "abandoned"
    broken.clear()
    assert failed.retry(by="anna").changed == 1
    run_jobs()
    assert undo.retry().changed == 1
    run_jobs()
    undo.refresh_from_db()
    assert (undo.outcome, undone()) == ("succeeded", [(-2, 20), (-1, 10)])


def test_an_undo_waits_for_a_compensation_that_somebody_is_retrying() -> None:
    broken.add(-1)
    saga.register([1])
    run_jobs()
    undo, failed = row("pgjobs.undo"), row("parts.seat.undo")
    broken.clear()
    assert failed.retry(by="anna").changed == 1
    Job.objects.filter(pk=failed.pk).update(hold="paused")
    assert undo.retry().changed == 1
    run_jobs()
    undo.refresh_from_db()
    assert (undo.outcome, undone()) == (None, [])
    Job.objects.filter(pk=failed.pk).update(hold=None)
    run_jobs()
    Job.objects.filter(pk=undo.pk).update(run_at=undo.created_at)
    run_jobs()
    undo.refresh_from_db()
    assert (undo.outcome, undone()) == ("succeeded", [(-1, 10)])


def test_a_compensation_that_another_has_replaced_is_not_retried() -> None:
    broken.add(-1)
    saga.register([1])
    run_jobs()
    undo, failed = row("pgjobs.undo"), row("parts.seat.undo")
    broken.clear()
    undo.retry()
    run_jobs()
    assert undone() == [(-1, 10)]
    assert failed.retry().skipped == {"undone": 1}


def test_a_member_of_a_gather_that_somebody_retried_does_not_run_again() -> None:
    broken.add(2)
    registered = gathers.register([1, 2])
    run_jobs()
    failed = Job.objects.get(name="parts.seat", outcome="abandoned")
    broken.clear()
    assert failed.retry().changed == 1
    run_jobs()
    assert registered.retry().changed == 1
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", 30)
    assert said == [1, 2]


# One that cannot be undone


@job(name="parts.changed", max_attempts=1)
def changed(number: int, name: str) -> None:
    said.append(name)


@changed.undo(max_attempts=1)
def unchange(context: JobContext, number: int, name: str) -> None:
    said.append((name, None))


def test_a_part_that_cannot_be_undone_does_not_keep_the_others_from_it() -> None:
    """Its compensation takes other arguments by now, or is gone; and the key of a compensation is no reason."""
    with Batch("parts", undo=True) as batch:
        batch.add_many([seat.bind(1), changed.bind(2, "x"), seat.bind(3), fails.bind()])
    run_jobs(limit=5)
    Job.objects.filter(name="parts.changed").update(payload={"args": [2], "kwargs": {}})
    free.using(unique="free", delay=60).register(9)
    run_jobs()
    assert undone() == [(-3, 30), (-1, 10)]
    undo = row("pgjobs.undo")
    assert undo.outcome == "abandoned"
    assert undo.error.startswith("Abandon: 1 of 3 parts were not undone. job ")
    assert "missing" in undo.error


def test_a_member_that_the_code_does_not_know_is_waited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older worker that runs the undo cannot say that there is nothing to undo. The others are undone."""
    monkeypatch.setattr(undoing, "UNKNOWN_BACKOFF", Backoff(0))
    with Batch("parts", undo=True) as batch:
        batch.add_many([seat.bind(1), changed.bind(2, "x"), changed.bind(3, "y"), fails.bind()])
    run_jobs(limit=5)
    Job.objects.filter(name="parts.changed").update(name="parts.gone")
    run_jobs()
    undo = row("pgjobs.undo")
    assert (undo.outcome, undone()) == ("abandoned", [(-1, 10)])
    assert "2 of 3 parts were not undone" in undo.error
    assert "parts.gone" in undo.error
    assert undo.memos.filter(name__endswith="known").count() == 1, "both wait together"


def test_a_member_that_becomes_known_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undoing, "UNKNOWN_BACKOFF", Backoff(3600))
    with Batch("parts", undo=True) as batch:
        batch.add_many([seat.bind(1), changed.bind(2, "x"), plain.bind(), fails.bind()])
    run_jobs(limit=5)
    Job.objects.filter(name__in=["parts.changed", "parts.plain"]).update(name=Concat("name", Value("_")))
    run_jobs()
    undo = row("pgjobs.undo")
    assert (undo.outcome, undone()) == (None, [])
    with monkeypatch.context() as newer:
        newer.setitem(registry._by_name, "parts.changed_", changed)
        newer.setitem(registry._by_name, "parts.plain_", plain)
        undo.memos.filter(finished_at=None).update(wake_at=Now())
        Job.objects.filter(pk=undo.pk).update(run_at=Now())
        run_jobs()
    undo.refresh_from_db()
    assert (undo.outcome, undone()) == ("succeeded", [("x", None), (-1, 10)])


def test_a_compensation_that_the_code_does_not_know_is_waited_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undoing, "UNKNOWN_BACKOFF", Backoff(0))
    registered = saga.register([1, 2])
    run_jobs(limit=1)
    memo = registered.memos.get(name__contains="2")
    memo.undo = {**(memo.undo or {}), "name": "parts.gone"}
    memo.save(update_fields=["undo"])
    run_jobs()
    undo = row("pgjobs.undo")
    assert (undo.outcome, undone()) == ("abandoned", [(-1, 10)])
    assert "1 of 2 parts were not undone" in undo.error


# What is undone of a member


def test_a_node_is_undone_with_the_result_that_it_was_called_with() -> None:
    flow = Flow("trip", undo=True)
    first = flow.add(seat.bind(1))
    second = flow.add(seat.bind(first.result))
    flow.add(fails.bind(second.result))
    flow.register()
    run_jobs()
    assert said[:2] == [1, 10]
    assert undone() == [(-10, 100), (-1, 10)]
    assert row("pgjobs.undo").outcome == "succeeded"


@job(name="parts.first", takes_context=True, max_attempts=1)
def first(context: JobContext, number: int) -> Next:
    said.append(f"first {number}")
    return Next(second.bind(number + 1))


@first.undo(max_attempts=1)
def unfirst(context: JobContext, number: int) -> None:
    said.append(("unfirst", number, context.target.result))


@job(name="parts.second", max_attempts=1)
def second(number: int) -> Next:
    return Next(third.bind(number + 1))


@job(name="parts.third", max_attempts=1)
def third(number: int) -> str:
    return "done"


@third.undo(max_attempts=1)
def unthird(context: JobContext, number: int) -> None:
    said.append(("unthird", number, context.target.result))


def test_a_member_that_went_on_is_undone_by_every_step_that_ran() -> None:
    with Batch("machines", undo=True) as batch:
        batch.add_many([first.bind(1), fails.bind()])
    run_jobs()
    assert undone() == [("unthird", 3, "done"), ("unfirst", 1, None)]
    assert row("pgjobs.undo").outcome == "succeeded"


# Idempotency


def test_what_a_job_did_not_do_is_not_undone_and_a_result_does_not_outlive_its_undo() -> None:
    pay = seat.using(idempotency_key="order 1")
    with Batch("paid", undo=True) as paid:
        paid.add(pay.bind(1))
    run_jobs()
    with Batch("paid again", undo=True) as hit:
        hit.add_many([pay.bind(1), fails.bind()])
    run_jobs()
    assert (hit.job.outcome, said) == ("abandoned", [1])
    assert StoredResult.objects.count() == 1

    with Batch("other", undo=True) as other:
        other.add_many([seat.using(idempotency_key="order 2").bind(2), fails.bind()])
    run_jobs()
    assert (other.job.outcome, said) == ("abandoned", [1, 2, (-2, 20)])
    assert [stored.key for stored in StoredResult.objects.all()] == ["order 1"]
    seat.using(idempotency_key="order 2").register(2)
    run_jobs()
    assert said[-1] == 2
