"""Each of the package's own jobs, deleted, cancelled, abandoned and forged: what it was to do is done all the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from django_pgjobs import Abandon, Batch, JobContext, job
from django_pgjobs.maintenance import mending
from django_pgjobs.maintenance.mending import Mender
from django_pgjobs.models import Job
from django_pgjobs.states import FlowFlag
from django_pgjobs.testing import crash_at, run_jobs
from tests.plugins.fix_db import RawDatabase

pytestmark = pytest.mark.usefixtures("committed")

said: list[Any] = []
refused: set[int] = set()


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said.clear()
    refused.clear()
    monkeypatch.setattr(mending, "CANCEL_SECONDS", 0.0)


def _sql(text: str, *params: int | str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text, params)


def deleted(job_id: int) -> None:
    _sql("DELETE FROM pgjobs_job WHERE id = %s", job_id)
    _sql("DELETE FROM pgjobs_memo WHERE job_id = %s", job_id)
    _sql("DELETE FROM pgjobs_gate WHERE job_id = %s", job_id)


def _ended(job_id: int, outcome: str) -> None:
    _sql(
        "UPDATE pgjobs_job SET outcome = %s, finished_at = now(), hold = NULL, ending = NULL, unique_key = NULL"
        " WHERE id = %s",
        outcome,
        job_id,
    )


def cancelled(job_id: int) -> None:
    _ended(job_id, "cancelled")


def abandoned(job_id: int) -> None:
    _ended(job_id, "abandoned")


def succeeded(job_id: int) -> None:
    """A forged success: it did nothing."""
    _ended(job_id, "succeeded")


def another(job_id: int) -> None:
    """Forged arguments: it serves another, or nobody."""
    _sql("""UPDATE pgjobs_job SET payload = jsonb_set(payload, '{args,0}', '"0"') WHERE id = %s""", job_id)


FATES = [deleted, cancelled, abandoned, succeeded, another]

fates = pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.__name__)
Fate = Callable[[int], None]


@job(name="mending.seat", max_attempts=1)
def seat(number: int) -> int:
    said.append(number)
    return number


@seat.undo(max_attempts=1)
def free(context: JobContext, number: int) -> None:
    if number in refused:
        raise ValueError("not now")
    said.append(-number)


@job(name="mending.gathers", takes_context=True, max_attempts=1)
def gathers(context: JobContext, numbers: list[int]) -> int:
    return sum(context.gather([seat.bind(number) for number in numbers]))


@job(name="mending.saga", takes_context=True, max_attempts=1)
def saga(context: JobContext, numbers: list[int]) -> None:
    for number in numbers:
        context.step.using(key=number, undo=free)(seat, number)
    raise Abandon("refused")


@job(name="mending.fails", max_attempts=1)
def fails() -> None:
    raise ValueError("broken")


def row(name: str) -> Job:
    return Job.objects.get(name=name)


def run_and_mend(raw: RawDatabase) -> None:
    """Run what is due, mend, and run what that has made ready, a few rounds."""
    for _ in range(4):
        run_jobs()
        Mender()(raw)
        run_jobs()


@fates
def test_a_gather_goes_on_whatever_becomes_of_the_job_that_wakes_it(raw: RawDatabase, fate: Fate) -> None:
    registered = gathers.register([1, 2])
    run_jobs(limit=3)
    fate(row("pgjobs.wake").pk)
    run_jobs()
    found = Job.objects.get(pk=registered.pk, outcome=None).why()
    assert "have ended, and nothing has woken it" in found.text
    assert "reschedule" in found.advice
    assert Mender()(raw) == 1
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", 3)
    assert Mender()(raw) == 0


@fates
def test_a_gather_hangs_on_its_jobs_and_not_on_the_row_of_their_batch(raw: RawDatabase, fate: Fate) -> None:
    registered = gathers.register([1, 2])
    run_jobs(limit=2)
    fate(row("pgjobs.batch").pk)
    run_and_mend(raw)
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", 3)


def test_a_gather_whose_jobs_still_run_sleeps_on(raw: RawDatabase) -> None:
    registered = gathers.register([1, 2])
    run_jobs(limit=2)
    _ended(row("pgjobs.batch").pk, "abandoned")
    deleted(row("pgjobs.wake").pk)
    assert Mender()(raw) == 0
    registered.refresh_from_db()
    assert (registered.attempt, said) == (0, [1])


@fates
def test_a_job_is_undone_whatever_becomes_of_what_undoes_it(raw: RawDatabase, fate: Fate) -> None:
    """But for an undo that somebody has cancelled."""
    registered = saga.register([1, 2, 3])
    run_jobs(limit=3)
    assert said == [1, 2, 3, -3]
    fate(row("pgjobs.undo").pk)
    run_and_mend(raw)
    if fate is cancelled:
        assert said == [1, 2, 3, -3]
        registered.refresh_from_db()
        assert (registered.flow & 256, registered.retry().skipped) == (0, {"undone": 1})
    else:
        assert said == [1, 2, 3, -3, -2, -1]
    assert Mender()(raw) == 0


@fates
def test_an_undo_goes_on_whatever_becomes_of_the_job_that_wakes_it(raw: RawDatabase, fate: Fate) -> None:
    saga.register([1, 2])
    run_jobs(limit=2)
    fate(row("pgjobs.wake").pk)
    run_and_mend(raw)
    assert said == [1, 2, -2, -1]
    assert row("pgjobs.undo").outcome == "succeeded"


@fates
def test_a_batch_that_failed_is_undone_whatever_becomes_of_what_undoes_it(raw: RawDatabase, fate: Fate) -> None:
    with Batch("seats", undo=True) as batch:
        batch.add_many([seat.bind(1), seat.bind(2), fails.bind()])
    run_jobs(limit=4)
    fate(row("pgjobs.undo").pk)
    run_and_mend(raw)
    assert sorted(said) == ([1, 2] if fate is cancelled else [-2, -1, 1, 2])


@fates
@pytest.mark.parametrize("fast", [False, True])
def test_members_are_cancelled_whatever_becomes_of_what_cancels_them(
    raw: RawDatabase, fate: Fate, *, fast: bool
) -> None:
    with Batch("seats", fail_fast=fast) as batch:
        if fast:
            batch.add(fails.bind())
        batch.add_many([seat.using(delay=3600).bind(1), seat.using(delay=3600).bind(2)])
    if fast:
        run_jobs(limit=1)
    else:
        batch.job.cancel(by="anna", reason="sold out")
    fate(row("pgjobs.cancel_members").pk)
    run_and_mend(raw)
    members = Job.objects.filter(name="mending.seat")
    assert set(members.values_list("outcome", "cancel_by")) == {("cancelled", "pgjobs:fail_fast" if fast else "anna")}
    assert batch.job.outcome == ("abandoned" if fast else "cancelled")
    assert Mender()(raw) == 0


@fates
def test_the_jobs_of_a_gather_do_not_outlive_their_job_whatever_becomes_of_what_cancels_them(
    raw: RawDatabase, fate: Fate
) -> None:
    registered = gathers.register([1, 2])
    run_jobs(limit=1)
    Job.objects.filter(name="mending.seat").update(run_at=Now() + timedelta(hours=1))
    assert registered.abandon(by="anna").changed == 1
    fate(row("pgjobs.cancel_members").pk)
    run_and_mend(raw)
    assert (said, row("pgjobs.batch").outcome) == ([], "cancelled")
    members = Job.objects.filter(name="mending.seat")
    assert set(members.values_list("outcome", "cancel_by")) == {("cancelled", "pgjobs:gather")}
    assert Mender()(raw) == 0


def test_members_are_looked_at_some_at_a_time_and_each_in_the_end(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three batches, of which the first is being cancelled, and the last members of the others go on unasked."""
    monkeypatch.setattr(mending, "MEMBERS", 2)
    batches: list[int] = []
    for _ in range(3):
        with Batch("seats") as batch:
            batch.add_many([seat.using(delay=3600).bind(n) for n in range(5)])
        batch.job.cancel(by="anna")
        deleted(row("pgjobs.cancel_members").pk)
        members = list(Job.objects.filter(parent=batch.job).order_by("pk").values_list("pk", flat=True))
        asked = members[:-1] if batches else members
        Job.objects.filter(pk__in=asked).update(cancel_requested_at=Now())
        batches.append(batch.job.pk)
    mend = Mender()
    assert [mend(raw) for _ in range(6)] == [0, 0, 0, 0, 1, 0]
    assert mend.rest_until == 0.0
    assert mend(raw) == 1
    assert mend.rest_until > 0.0, "it has seen all"
    keys = Job.objects.filter(name="pgjobs.cancel_members").order_by("pk").values_list("key", flat=True)
    assert list(keys) == [f"pgjobs.cancel_members:{batch}" for batch in batches[1:]]


def test_an_undo_that_was_cancelled_before_it_began_is_not_brought_back(raw: RawDatabase) -> None:
    """And the job can be retried, also when the row of the undo has gone meanwhile."""
    registered = saga.register([1])
    run_jobs(limit=1)
    undo = row("pgjobs.undo")
    undo.cancel(by="anna")
    assert Mender()(raw) == 0
    deleted(undo.pk)
    assert Mender()(raw) == 0
    run_jobs()
    assert said == [1]
    assert registered.retry().changed == 1


def test_an_undo_that_was_taken_up_again_and_is_lost_is_registered_anew(raw: RawDatabase) -> None:
    saga.register([1, 2])
    run_jobs(limit=2)
    undo = row("pgjobs.undo")
    undo.cancel(by="anna")
    run_and_mend(raw)
    assert undo.retry().changed == 1
    deleted(undo.pk)
    run_and_mend(raw)
    assert said == [1, 2, -2, -1]


@pytest.mark.parametrize("fate", [deleted, abandoned], ids=["deleted", "abandoned"])
def test_an_undo_that_dies_as_it_gives_up_and_is_lost_is_registered_anew(raw: RawDatabase, fate: Fate) -> None:
    """Only its end says that it has given up: until then somebody with a SQL shell may lose it."""
    refused.add(1)
    saga.register([1])
    run_jobs(limit=3)
    assert Job.objects.filter(name="mending.seat.undo", outcome="abandoned").exists()
    undo = row("pgjobs.undo")
    while Job.objects.filter(name="pgjobs.wake", finished_at=None).exists():
        run_jobs(limit=1)
    with crash_at("before_settle") as died:
        run_jobs(limit=1)
    assert died.jobs == [undo.pk]
    refused.clear()
    fate(undo.pk)
    run_and_mend(raw)
    assert said == [1, -1]


def test_an_undo_that_has_given_up_is_not_brought_back(raw: RawDatabase) -> None:
    """It is an operator's then, who may retry it; and its job is pruned."""
    refused.add(2)
    registered = saga.register([1, 2])
    run_and_mend(raw)
    assert row("pgjobs.undo").outcome == "abandoned"
    registered.refresh_from_db()
    assert registered.flow < FlowFlag.UNDOING
    refused.clear()
    assert row("pgjobs.undo").retry().changed == 1
    run_and_mend(raw)
    assert sorted(said) == [-2, -1, 1, 2]
