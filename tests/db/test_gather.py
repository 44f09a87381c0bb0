"""``context.gather`` and undo, in a plain ``TestCase``'s transaction."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_pgjobs import Backoff, Batch, JobContext, job
from django_pgjobs.exceptions import Abandon
from django_pgjobs.models import EventState, Job
from django_pgjobs.testing import run_job, run_jobs

pytestmark = pytest.mark.django_db

said: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    said.clear()


@job(name="gather.price", max_attempts=1)
def price(item: int) -> int:
    said.append(item)
    if item < 0 and said.count(item) == 1:
        raise ValueError(f"no price for {item}")
    return item * 10


@price.undo(max_attempts=2, backoff=Backoff(0))
def unprice(context: JobContext, item: int) -> None:
    said.append(("undone", item, context.target.id, context.target.result))
    if item == 3 and said.count(said[-1]) < 3:
        raise ValueError("not undone")


@job(name="gather.sums", takes_context=True, max_attempts=1)
def sums(context: JobContext, items: list[int]) -> int:
    return sum(context.gather([price.bind(item) for item in items]))


@job(name="gather.bypasses", takes_context=True, max_attempts=1)
def bypasses(context: JobContext) -> None:
    context.gather([price.using(bypass=True).bind(1)])


@job(name="gather.settled", takes_context=True, max_attempts=1)
def settles(context: JobContext, items: list[int]) -> list[str]:
    return [one.outcome for one in context.gather([price.bind(item) for item in items], settled=True)]


@job(name="gather.saga", takes_context=True, max_attempts=1, undo_on_failure="go_on")
def saga(context: JobContext, items: list[int]) -> None:
    for item in items:
        context.step.using(key=item, undo=unprice)(price, item)
    raise Abandon("refused")


@job(name="gather.stops", takes_context=True, max_attempts=1, undo_on_failure="stop")
def stops(context: JobContext, items: list[int]) -> None:
    for item in items:
        context.step.using(key=item, undo=unprice)(price, item)
    raise Abandon("refused")


def test_a_job_goes_on_with_the_results_of_its_jobs() -> None:
    registered = sums.register([1, 2, 3])
    ran = run_jobs(limit=1)
    assert ran.suspended == [registered.pk]
    assert registered.why().code == "waiting_for_gather"
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", 60)
    assert sorted(said) == [1, 2, 3]


def test_a_retry_runs_the_failed_ones_again_and_no_others() -> None:
    registered = sums.register([1, -2, 3])
    run_jobs()
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"
    assert "MembersFailed: 1 of 3 jobs did not succeed" in registered.error
    assert registered.retry().changed == 1
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", 20)
    assert sorted(said) == [-2, -2, 1, 3]


def test_settled_returns_how_each_ended() -> None:
    registered = settles.register([1, -2])
    run_jobs()
    registered.refresh_from_db()
    assert registered.result == ["succeeded", "abandoned"]


def test_a_cancel_of_the_job_cancels_its_jobs() -> None:
    registered = sums.register([1, 2])
    run_jobs(limit=1)
    registered.cancel(by="anna")
    run_jobs()
    assert said == []
    assert set(Job.objects.filter(name="gather.price").values_list("outcome", flat=True)) == {"cancelled"}


@job(name="gather.gives_up", takes_context=True, max_attempts=1)
async def gives_up(context: JobContext, items: list[int]) -> None:
    async def fails() -> None:
        await context.agather([price.using(delay=3600).bind(9)], name="later")

    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        await context.agather([price.bind(item) for item in items], name="now")


def outcomes() -> list[tuple[int, str | None]]:
    rows = Job.objects.filter(name="gather.price").order_by("pk")
    return [(one.payload["args"][0], one.outcome) for one in rows]


def test_members_do_not_outlive_a_job_that_is_abandoned_and_a_retry_runs_them_again() -> None:
    registered = sums.register([1, 2])
    run_jobs(limit=1)
    assert registered.abandon(by="anna").changed == 1
    run_jobs()
    assert said == []
    assert outcomes() == [(1, "cancelled"), (2, "cancelled")]
    batch = Job.objects.get(name="pgjobs.batch")
    assert (batch.outcome, batch.cancel_by) == ("cancelled", "pgjobs:gather")
    for _ in range(2):  # the first of them learns that its jobs were cancelled, as after a cancel
        assert registered.retry().changed == 1
        run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result, sorted(said)) == ("succeeded", 30, [1, 2])


def test_members_do_not_outlive_a_job_whose_deadline_passes() -> None:
    registered = sums.using(deadline=timezone.now() + timedelta(days=1)).register([1, 2])
    run_jobs(limit=1)
    Job.objects.filter(name="gather.price").update(queue="elsewhere")
    past = timezone.now() - timedelta(seconds=1)
    Job.objects.filter(pk=registered.pk).update(deadline=past, run_at=past)  # it sleeps no longer than that
    run_jobs(queues=["default", "pgjobs"])
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.error.partition(":")[0]) == ("abandoned", "DeadlinePassed")
    assert said == []
    assert outcomes() == [(1, "cancelled"), (2, "cancelled")]


def test_members_do_not_outlive_a_job_that_fails_for_good() -> None:
    gives_up.register([-1])
    run_jobs()
    assert outcomes() == [(-1, "abandoned"), (9, "cancelled")]


def test_members_go_on_for_a_job_that_was_retried_before_they_were_cancelled() -> None:
    registered = sums.register([1, 2])
    run_jobs(limit=1)
    registered.abandon(by="anna")
    assert registered.retry().changed == 1
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", 30)


def test_a_member_that_somebody_cancelled_without_a_word_is_said_in_a_whole_sentence() -> None:
    registered = sums.register([1])
    run_jobs(limit=1)
    member = Job.objects.get(name="gather.price")
    member.cancel()
    run_jobs()
    registered.refresh_from_db()
    said_of_it = f"1 of 1 jobs did not succeed; job {member.pk} was cancelled"
    assert registered.error == f"MembersFailed: {said_of_it}"


def test_a_call_that_bypasses_the_queue_is_no_member() -> None:
    registered = bypasses.register()
    run_jobs()
    registered.refresh_from_db()
    assert "gather: job 'gather.price' would bypass the queue: pass bypass=False" in registered.error
    assert said == []


def test_what_a_failed_job_has_done_is_undone_the_latest_first() -> None:
    """C68, C70: compensations are jobs, retried by their own policy."""
    registered = saga.register([1, 3, 2])
    run_jobs()
    undone = [one for one in said if isinstance(one, tuple)]
    ids = [f"{registered.pk}/gather.price[{item}]" for item in (2, 3, 3, 1)]
    assert undone == [("undone", item, one, item * 10) for item, one in zip((2, 3, 3, 1), ids, strict=True)]
    runner = Job.objects.get(name="pgjobs.undo")
    assert (runner.outcome, runner.target_id) == ("abandoned", registered.pk)
    assert "1 of 3 parts were not undone. step gather.price[3]" in runner.error
    assert registered.retry().skipped == {"undone": 1}
    runner.retry()
    run_jobs()
    runner.refresh_from_db()
    assert runner.outcome == "succeeded"
    assert [one[1] for one in said if isinstance(one, tuple)][4:] == [3]


def test_undo_stops_at_the_first_that_fails() -> None:
    stops.register([1, 3, 2])
    run_jobs()
    assert [one[1] for one in said if isinstance(one, tuple)] == [2, 3, 3]
    assert "The 1 before it are not undone" in Job.objects.get(name="pgjobs.undo").error


def test_a_batch_undoes_the_members_that_succeeded() -> None:
    with Batch("prices", undo=True) as batch:
        batch.add_many([price.bind(1), price.bind(-2), price.bind(4)])
    run_jobs()
    assert batch.job.outcome == "abandoned"
    assert sorted(one[1] for one in said if isinstance(one, tuple)) == [1, 4]
    assert Job.objects.get(name="pgjobs.undo").outcome == "succeeded"


def test_a_job_whose_members_are_retried_before_it_goes_on_does_not_spin() -> None:
    registered = sums.register([1, -2])
    run_jobs(limit=5)  # the job, two members, the batch, and what wakes the job
    assert Job.objects.get(name="pgjobs.wake").outcome == "succeeded"
    Job.objects.filter(name="gather.price").retry()
    run_job(registered)
    assert registered.run_at > timezone.now()
    run_jobs()
    Job.objects.filter(pk=registered.pk).reschedule(delay=0)
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", -10)


@job(name="gather.grow", takes_context=True, max_attempts=1)
def grow(context: JobContext, item: int) -> int:
    Batch.of(Job.objects.get(pk=context.id).parent).add_many([price.bind(item + 1), price.bind(item + 2)])
    return item


@job(name="gather.grows", takes_context=True, max_attempts=1)
def grows(context: JobContext) -> list[int]:
    return context.gather([grow.bind(10), price.bind(5)])


def test_a_job_of_a_gather_adds_others_to_its_batch() -> None:
    """All are waited for; the results are those of the calls."""
    registered = grows.register()
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", [10, 50])
    assert sorted(said) == [5, 11, 12]


def test_nothing_is_left_of_the_events_of_gathers_and_compensations() -> None:
    sums.register([1, 2, 3])
    sums.register([1, -2])
    saga.register([1, 2])
    run_jobs()
    cancelled = sums.register([1, 2])
    run_jobs(limit=1)
    cancelled.cancel()
    run_jobs()
    Job.objects.filter(name="gather.sums", outcome="abandoned").retry()
    run_jobs()
    assert Job.objects.filter(name="pgjobs.wake", outcome="succeeded").count() == 6
    assert not EventState.objects.exists()


@job(name="gather.late", takes_context=True, max_attempts=1)
def late(context: JobContext, caught: bool) -> None:
    Job.objects.filter(pk=context.id).cancel(by="anna")
    try:
        context.gather([price.bind(1), price.bind(2)])
    except Exception:
        if not caught:
            raise
    said.append("went on")


@pytest.mark.parametrize("caught", [True, False])
def test_a_job_that_was_cancelled_while_it_ran_gathers_nothing(caught: bool) -> None:
    registered = late.register(caught)
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.cancel_by) == ("cancelled", "anna")
    assert said == []
    assert list(Job.objects.values_list("pk", flat=True)) == [registered.pk]
