"""Batches that fail fast: the first abandoned member ends the others, unless an operator wanted something else."""

from __future__ import annotations

import pytest
from django.db import connection

from django_pgjobs import Batch
from django_pgjobs.exceptions import BatchClosed
from django_pgjobs.flows.batch import Figures
from django_pgjobs.models import Job
from django_pgjobs.states import CANCEL_MEMBERS
from django_pgjobs.testing import run_jobs
from tests.db.batches_ground import (  # nothing_ran: a fixture
    batch_of,
    grow,
    note,
    notes,
    nothing_ran,  # noqa: F401
    ran,
    run_in_turn,
    unlucky,
    work,
)

pytestmark = pytest.mark.usefixtures("committed")


def test_the_first_abandoned_member_of_a_batch_that_fails_fast_ends_the_others() -> None:
    """C49: those that have not started are cancelled, with the reason, and what comes after a failure runs."""
    unlucky.add(1)
    batch = batch_of(5, fail_fast=True)
    run_in_turn()
    first = Job.objects.get(parent_id=batch.job.pk, outcome="abandoned")
    assert batch.figures == Figures(5, 1, 1, 3, 0)
    assert [each for each in ran if isinstance(each, int)] == [0, 1]
    assert sorted(notes()) == ["failed", "settled"]
    assert (batch.job.outcome, batch.job.error) == ("abandoned", "4 of 5 members did not succeed.")
    cancelled = set(
        Job.objects.filter(parent_id=batch.job.pk, outcome="cancelled").values_list("cancel_by", "cancel_reason")
    )
    assert cancelled == {("pgjobs:fail_fast", f"Member {first.pk} was abandoned.")}
    unlucky.clear()
    assert batch.retry().changed == 1
    assert batch.retry(outcome="cancelled").changed == 3
    run_in_turn()
    assert batch.figures == Figures(5, 5, 0, 0, 0)
    assert batch.job.outcome == "succeeded"


def test_a_batch_that_was_unblock_stops_nobody() -> None:
    """Its members go on, as the operator was told."""
    unlucky.add(0)
    batch = batch_of(3, fail_fast=True)
    assert batch.job.unblock().changed == 1
    run_in_turn()
    assert batch.figures == Figures(3, 2, 1, 0, 0)
    assert not Job.objects.filter(name=CANCEL_MEMBERS).exists()


def test_an_operators_cancel_of_a_batch_is_not_signed_by_a_failure() -> None:
    unlucky.add(0)
    batch = batch_of(3, fail_fast=True)
    first = Job.objects.filter(parent_id=batch.job.pk).order_by("pk")[0]
    with connection.cursor() as cursor:  # as if it ran on, though it was asked to stop
        batch.job.cancel(by="anna", reason="wrong file")
        cursor.execute("UPDATE pgjobs_job SET priority = 101 WHERE id = %s", [first.pk])
    run_in_turn()
    assert Job.objects.filter(name=CANCEL_MEMBERS).count() == 1
    assert set(Job.objects.filter(outcome="cancelled", parent_id=batch.job.pk).values_list("cancel_by")) == {("anna",)}


def test_a_cancel_that_comes_behind_a_retry_leaves_the_members_alone() -> None:
    """What had failed is to run again, so there is nothing to stop for."""
    unlucky.add(0)
    batch = batch_of(3, fail_fast=True)
    run_jobs(limit=1)
    unlucky.clear()
    assert batch.retry().changed == 1
    run_in_turn()
    assert batch.figures == Figures(3, 3, 0, 0, 0)
    assert Job.objects.get(name=CANCEL_MEMBERS).outcome == "cancelled"


def test_other_batches_go_on_and_take_members_after_a_failure() -> None:
    unlucky.add(0)
    batch = Batch("open").open()
    batch.add_many(work.bind(n) for n in range(2))
    run_jobs(limit=1)
    batch.add(work.bind(2))
    batch.close()
    run_in_turn()
    assert batch.figures == Figures(3, 2, 1, 0, 0)


def test_a_batch_that_was_retried_fails_fast_again() -> None:
    unlucky.add(0)
    batch = batch_of(3, fail_fast=True)
    run_in_turn()
    batch.retry()
    batch.retry(outcome="cancelled")
    run_in_turn()
    assert batch.figures == Figures(3, 0, 1, 2, 0)
    assert Job.objects.filter(name=CANCEL_MEMBERS).count() == 2


def test_members_that_fail_together_are_told_once_and_ends_without_others_tell_nobody() -> None:
    """The last member has nobody to stop, and a member that somebody cancels stops nobody."""
    unlucky.update({0, 1})
    batch = batch_of(3, fail_fast=True)
    run_jobs()  # all three before the cancel of the others
    assert batch.figures == Figures(3, 1, 2, 0, 0)
    assert Job.objects.filter(name=CANCEL_MEMBERS).count() == 1
    unlucky.clear()
    other = batch_of(3, fail_fast=True)
    Job.objects.filter(parent_id=other.job.pk)[:1].get().cancel()
    run_in_turn()
    assert (other.figures, other.job.outcome) == (Figures(3, 2, 0, 1, 0), "abandoned")
    alone = Batch("of one", fail_fast=True)
    unlucky.add(0)
    with alone:
        alone.add(work.bind(0))
    run_in_turn()
    assert (alone.job.outcome, Job.objects.filter(name=CANCEL_MEMBERS).count()) == ("abandoned", 1)


def test_a_batch_that_has_failed_fast_is_closed() -> None:
    """Its producer hears of it as it adds more; nobody need close it."""
    unlucky.add(0)
    batch = Batch("open", failed=note.bind("failed"), fail_fast=True).open()
    batch.add_many(work.bind(n) for n in range(2))
    run_jobs(limit=1)
    assert batch.job.state == "blocked"
    with pytest.raises(BatchClosed, match="has failed fast"):
        batch.add(work.bind(7))
    run_in_turn()
    assert (batch.job.outcome, batch.figures, notes()) == ("abandoned", Figures(2, 0, 1, 1, 0), ["failed"])


def test_a_closed_batch_that_fails_fast_takes_members_from_its_own_until_it_has_failed() -> None:
    unlucky.add(1)
    with Batch("growing", fail_fast=True) as batch:
        batch.add_many([grow.bind(batch.job.pk), work.bind(1), work.bind(2)])
    run_jobs(limit=1)
    assert batch.figures.total == 4
    run_in_turn()
    assert batch.figures == Figures(4, 1, 1, 2, 0)
    unlucky.clear()
    assert batch.retry().changed == 1
    run_in_turn()
    assert batch.figures == Figures(4, 2, 0, 2, 0)
