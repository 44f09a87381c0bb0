"""What has been undone stays ended: no retry runs a part of it again, or lets it wait again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_pgjobs import Batch, JobContext, job
from django_pgjobs.flows import undoing
from django_pgjobs.models import Job, Memo
from django_pgjobs.testing import run_jobs

pytestmark = pytest.mark.django_db

said: list[Any] = []
broken: set[int] = set()


@pytest.fixture(autouse=True)
def _two_is_broken() -> None:
    said.clear()
    broken.clear()
    broken.add(2)


@job(name="undone.seat", max_attempts=1)
def seat(number: int) -> None:
    if number in broken:
        raise ValueError("broken")
    said.append(number)


@seat.undo(max_attempts=1)
def free(context: JobContext, number: int) -> None:
    said.append(-number)


def outcomes(name: str) -> list[str | None]:
    return list(Job.objects.filter(name=name).order_by("pk").values_list("outcome", flat=True))


def test_a_member_of_a_batch_that_was_undone_is_not_retried() -> None:
    """Else the batch would succeed, although what its other members have done is gone."""
    with Batch("seats", undo=True) as batch:
        batch.add_many([seat.bind(1), seat.bind(2)])
    run_jobs()
    assert said == [1, -1]
    broken.clear()
    failed = Job.objects.get(name="undone.seat", state="abandoned")
    assert failed.retry().skipped == {"undone": 1}
    undo = Job.objects.get(name="pgjobs.undo")
    for one in (failed, batch.job):
        assert one.why().advice.startswith(f"It cannot be retried: job {undo.pk} undoes what was done.")
    run_jobs()
    assert (batch.job.outcome, said) == ("abandoned", [1, -1])


def test_a_retry_of_what_a_member_needed_leaves_a_batch_alone_that_was_undone() -> None:
    needed = seat.register(2)
    late = seat.using(after=needed).register(4)
    with Batch("seats", undo=True) as batch:
        batch.add(seat.bind(1))
        batch.add(seat.using(after=needed).bind(3))
    run_jobs()
    assert (batch.job.outcome, said) == ("abandoned", [1, -1])
    broken.clear()
    assert needed.retry().changed == 1
    run_jobs()
    late.refresh_from_db()
    assert late.outcome == "succeeded"
    assert (batch.job.outcome, said) == ("abandoned", [1, -1, 2, 4])


def test_a_batch_whose_undo_was_cancelled_before_it_began_is_retried() -> None:
    with Batch("seats", undo=True) as batch:
        batch.add_many([seat.bind(1), seat.bind(2)])
    run_jobs(limit=3)  # the members and the batch
    assert outcomes("pgjobs.undo") == [None]
    Job.objects.filter(name="pgjobs.undo").cancel(by="anna")
    assert "manage.py pgjobs retry" in batch.job.why().advice
    broken.clear()
    assert Job.objects.filter(name="undone.seat", state="abandoned").retry().changed == 1
    run_jobs()
    assert (batch.job.outcome, said) == ("succeeded", [1, 2])


@job(name="undone.seats", takes_context=True)
def seats(context: JobContext, numbers: list[int]) -> None:
    context.gather([seat.bind(number) for number in numbers])


def test_a_gather_took_as_long_as_its_jobs() -> None:
    registered = seats.register([1, 3])
    run_jobs(limit=1)
    gathered = Memo.objects.get(job=registered)
    Memo.objects.filter(pk=gathered.pk).update(created_at=gathered.created_at - timedelta(hours=1))
    run_jobs()
    gathered.refresh_from_db()
    assert gathered.duration_seconds is not None
    assert gathered.duration_seconds >= 3600


@override_settings(PGJOBS={"BOUNDS": {"steps": 2, "result_bytes": 60, "steps_bytes": 120}})
def test_bounds_of_steps_do_not_keep_a_batch_from_being_undone() -> None:
    with Batch("seats", undo=True) as batch:
        batch.add_many([seat.bind(number) for number in (1, 2, 3, 4)])
    run_jobs()
    assert batch.job.outcome == "abandoned"
    assert sorted(said) == [-4, -3, -1, 1, 3, 4]
    assert outcomes("pgjobs.undo") == ["succeeded"]


@job(name="undone.note")
def note() -> None: ...


def test_an_undo_says_if_there_is_more_than_it_undoes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And members without an undo take no room."""
    monkeypatch.setattr(undoing, "MOST", 2)
    with Batch("seats", undo=True) as batch:
        batch.add_many([seat.bind(1), seat.bind(2), seat.bind(3), seat.bind(4), note.bind(), note.bind(), note.bind()])
    run_jobs()
    assert sorted(said) == [-4, -3, 1, 3, 4]
    [undo] = Job.objects.filter(name="pgjobs.undo")
    assert undo.outcome == "abandoned"
    assert "There are more than the latest 2 parts" in undo.error
    assert (batch.job.outcome, batch.job.pk) == ("abandoned", undo.target_id)
