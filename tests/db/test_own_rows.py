"""The package's own rows decide nothing: what becomes of a batch, a gather or an undo hangs on the jobs themselves."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_pgjobs import Abandon, Batch, JobContext, job
from django_pgjobs.models import Job
from django_pgjobs.states import TIRELESS
from django_pgjobs.testing import crash_at, run_jobs
from django_pgjobs.testing.crashing import rescue
from tests.plugins.fix_db import RawDatabase, claim

pytestmark = pytest.mark.usefixtures("committed")

said: list[Any] = []
broken: set[int] = set()


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    said.clear()
    broken.clear()


@job(name="own.seat", max_attempts=1)
def seat(number: int) -> int:
    if number in broken:
        raise ValueError("broken")
    said.append(number)
    return number


@seat.undo(max_attempts=1)
def free(context: JobContext, number: int) -> None:
    if -number in broken:
        raise ValueError("not now")
    said.append(-number)


@job(name="own.all", max_attempts=1)
def all_seated() -> None:
    said.append("all")


@job(name="own.gathers", takes_context=True, max_attempts=1)
def gathers(context: JobContext, numbers: list[int]) -> int:
    return sum(context.gather([seat.bind(number) for number in numbers]))


@job(name="own.saga", takes_context=True, max_attempts=1)
def saga(context: JobContext, numbers: list[int]) -> None:
    for number in numbers:
        context.step.using(key=number, undo=free)(seat, number)
    raise Abandon("refused")


def row(name: str) -> Job:
    return Job.objects.get(name=name)


# Attempts


@override_settings(PGJOBS={"DEFAULT_MAX_ATTEMPTS": 1})
def test_a_batch_ends_as_its_members_did_however_often_the_process_dies(raw: RawDatabase) -> None:
    """With retries off, too: neither the row of the batch nor what undoes it has attempts that decide."""
    with Batch("seats", undo=True, succeeded=all_seated.bind()) as batch:
        batch.add_many([seat.bind(1), seat.bind(2)])
    run_jobs(limit=2)
    assert (batch.job.ending, batch.job.attempt) == ("succeeded", 0)
    for _ in range(3):
        [claimed] = claim(raw).jobs
        assert claimed.id == batch.job.pk
        rescue(raw, "default", str(batch.job.claim_id))
    run_jobs()
    assert batch.job.outcome == "succeeded"
    assert said == [1, 2, "all"]
    assert not Job.objects.filter(name="pgjobs.undo").exists()


@override_settings(PGJOBS={"DEFAULT_MAX_ATTEMPTS": 1})
def test_what_wakes_and_what_undoes_is_tried_as_often_as_it_takes() -> None:
    registered = saga.register([1, 2])
    run_jobs(limit=1)
    assert row("pgjobs.undo").max_attempts == TIRELESS
    with crash_at("before_suspend", times=3):
        run_jobs()
    assert row("pgjobs.undo").outcome == "succeeded"
    assert said == [1, 2, -2, -1]
    assert set(Job.objects.filter(name="pgjobs.wake").values_list("max_attempts", flat=True)) == {TIRELESS}
    registered.refresh_from_db()
    assert registered.outcome == "abandoned"


def test_an_undo_that_is_retried_is_as_tireless_as_before() -> None:
    broken.add(-1)
    saga.register([1])
    run_jobs()
    undo = row("pgjobs.undo")
    assert undo.outcome == "abandoned"
    undo.retry()
    undo.refresh_from_db()
    assert undo.max_attempts >= TIRELESS


# Hooks


@job(name="own.hooked", takes_context=True, max_attempts=1)
def hooked(context: JobContext) -> int:
    return context.step.using(atomic=True, undo=unhook)(hook)


@job(name="own.unhook", takes_context=True)
def unhook(context: JobContext) -> None:
    said.append("unhooked")


def hook() -> int:
    def fails() -> None:
        raise ValueError("no mail server")

    assert connection.in_atomic_block
    transaction.on_commit(fails)
    return 7


def test_a_hook_that_raises_behind_an_atomic_step_does_not_undo_it(caplog: pytest.LogCaptureFixture) -> None:
    registered = hooked.register()
    run_jobs()
    registered.refresh_from_db()
    assert (registered.outcome, registered.result) == ("succeeded", 7)
    assert "on_commit hook failed, the step hook is committed all the same" in caplog.text
    assert said == []
