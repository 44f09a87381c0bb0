"""Batches: members and what comes after them, open and closed, cancelled, retried, pruned."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from django.db import connection, transaction

from django_pgjobs import Batch, Unique
from django_pgjobs.canvas import chain
from django_pgjobs.exceptions import BatchClosed, DuplicateJob, InvalidJob
from django_pgjobs.flows import builtin
from django_pgjobs.flows.batch import Figures
from django_pgjobs.inspection import why
from django_pgjobs.models import Heartbeat, Job
from django_pgjobs.models.gates import Gate, Link
from django_pgjobs.signals import job_registered
from django_pgjobs.steering.batching import Steered
from django_pgjobs.store import gates, pruning
from django_pgjobs.store.database import on
from django_pgjobs.testing import run_jobs
from django_pgjobs.values.built_in import Act, refusal
from tests.db.batches_ground import (  # nothing_ran: a fixture
    batch_of,
    grow,
    note,
    notes,
    nothing_ran,  # noqa: F401
    ran,
    states,
    unlucky,
    work,
)
from tests.plugins.fix_db import Background, RawDatabase, blocked_by, wait_until

pytestmark = pytest.mark.usefixtures("committed")

# Ends


def test_a_batch_whose_members_have_not_ended_is_not_unblock_by_mistake() -> None:
    """Whoever settles ends may find a member retried since it looked."""
    with Batch("waits") as batch:
        batch.add(work.bind(1))
    assert gates.open_gates(on("default"), [batch.job.pk]) == []
    assert Job.objects.get(pk=batch.job.pk).state == "blocked"


def test_what_comes_after_a_batch_runs_once_all_members_have_ended() -> None:
    batch = batch_of(5)
    assert batch.figures == Figures(total=5, succeeded=0, abandoned=0, cancelled=0, pending=5)
    run_jobs()
    assert sorted(map(str, ran[:5])) == list("01234")
    assert sorted(notes()) == ["settled", "succeeded"]
    assert batch.figures == Figures(5, 5, 0, 0, 0)
    assert batch.job.outcome == "succeeded"
    [skipped] = Job.objects.filter(outcome="cancelled")
    assert (skipped.name, skipped.cancel_by) == ("batches.note", "pgjobs:not_needed")
    assert skipped.cancel_reason == f"Job {batch.job.pk} succeeded, so it is not needed."


def test_one_member_that_fails_is_enough() -> None:
    unlucky.add(3)
    batch = batch_of(5)
    run_jobs()
    assert sorted(notes()) == ["failed", "settled"]
    assert batch.figures == Figures(5, 4, 1, 0, 0)
    assert (batch.job.outcome, batch.job.error) == ("abandoned", "1 of 5 members did not succeed.")
    [skipped] = Job.objects.filter(outcome="cancelled")
    assert skipped.cancel_reason == f"It needs job {batch.job.pk}, which was abandoned."
    assert why.of(skipped.pk, "default").code == "not_needed"


def test_an_empty_batch_ends_as_it_is_closed() -> None:
    with Batch("nothing", settled=note.bind("settled")) as batch:
        assert batch.job.state == "blocked"
    run_jobs()
    assert (notes(), batch.job.outcome) == (["settled"], "succeeded")


def test_a_batch_without_anything_after_it_can_be_waited_for() -> None:
    with Batch() as batch:
        batch.add(work.bind(1))
    run_jobs()
    assert batch.job.outcome == "succeeded"
    assert Link.objects.count() == 0


def test_a_batch_may_be_a_member_of_another() -> None:
    with Batch("outer", settled=note.bind("outer")) as outer:
        outer.add(note.bind("plain"))
        outer_id = outer.job.pk
        inner = batch_of(2, succeeded=None, failed=None, settled=note.bind("inner"))
        Job.objects.filter(pk=inner.job.pk).update(parent_id=outer_id, flow=inner.job.flow | 1)
        Gate.objects.filter(pk=outer_id).update(pending=3, total=2)
    run_jobs()
    assert outer.job.outcome == "succeeded"
    assert notes().index("outer") > notes().index("inner") or notes()[-1] in ("outer", "inner")


# Open and closed


def test_an_open_batch_waits_even_when_its_members_have_ended() -> None:
    batch = Batch("slow producer", settled=note.bind("settled")).open()
    batch.add(work.bind(1))
    run_jobs()
    assert (ran, batch.job.state) == ([1], "blocked")
    reason = why.of(batch.job.pk, "default")
    assert reason.code == "blocked_by_members"
    assert "close-batch" in reason.advice
    batch.close()
    batch.close()
    run_jobs()
    assert ran == [1, "settled"]


def test_an_exception_leaves_a_batch_open() -> None:
    batch = Batch("broken")
    with suppress(ZeroDivisionError), batch:
        batch.add(work.bind(1))
        raise ZeroDivisionError
    run_jobs()
    assert Batch.of(batch.job).figures == Figures(1, 1, 0, 0, 0)
    assert batch.job.state == "blocked"


def test_a_member_that_runs_adds_to_its_own_batch() -> None:
    batch = Batch("growing", settled=note.bind("settled")).open()
    batch.add(grow.bind(batch.job.pk))
    batch.close()
    run_jobs()
    assert ran == [100, "settled"]
    assert batch.figures == Figures(2, 2, 0, 0, 0)


def test_a_batch_that_has_ended_takes_no_members_and_the_transaction_goes_on() -> None:
    batch = batch_of(1)
    run_jobs()
    with transaction.atomic():
        with pytest.raises(BatchClosed, match=f"Batch {batch.job.pk} takes no more members"):
            batch.add(work.bind(7))
        note.register("goes on")
    assert not Job.objects.filter(payload__args=[7]).exists()
    assert Job.objects.filter(name="batches.note", payload__args=["goes on"]).exists()


def test_a_batch_takes_as_many_members_as_the_setting_says(settings: object) -> None:
    settings.PGJOBS = {"BOUNDS": {"members": 3}}  # type: ignore[attr-defined]
    batch = Batch("small").open()
    assert batch.add_many(work.bind(n) for n in range(3)) == 3
    with pytest.raises(BatchClosed, match=r"BOUNDS\['members'\]"):
        batch.add(work.bind(3))
    assert batch.figures.total == 3


def test_nothing_of_a_batch_remains_if_its_transaction_is_rolled_back() -> None:
    with transaction.atomic():
        batch_of(3)
        transaction.set_rollback(True)
    assert (Job.objects.count(), Gate.objects.count(), Link.objects.count()) == (0, 0, 0)


def test_members_are_committed_portion_by_portion(monkeypatch: pytest.MonkeyPatch, background: Background) -> None:
    """A producer that stops half-way leaves what it has added, and an open batch."""
    monkeypatch.setattr("django_pgjobs.flows.batch.AT_ONCE", 2)
    seen: list[int] = []

    def calls() -> object:
        for n in range(5):
            seen.append(background(Job.objects.filter(name="batches.work").count).result())
            yield work.bind(n)

    assert Batch("lazy").open().add_many(calls()) == 5  # type: ignore[arg-type]
    assert seen == [0, 0, 2, 2, 4]


def test_a_key_finds_the_batch_again() -> None:
    """A producer that died goes on where it stopped: the batch is the same, and so are the members with keys."""
    first = Batch("daily", key="daily:1", settled=note.bind("settled")).open()
    first.add_many(work.using(unique=f"n:{n}").bind(n) for n in range(2))
    with Batch("daily", key="daily:1", settled=note.bind("settled")) as again:
        assert (again.job.pk, again.is_new, first.is_new) == (first.job.pk, False, True)
        assert again.add_many(work.using(unique=f"n:{n}").bind(n) for n in range(4)) == 2
    run_jobs()
    assert sorted(map(str, ran)) == ["0", "1", "2", "3", "settled"]
    assert again.figures == Figures(4, 4, 0, 0, 0)


def test_members_of_another_batch_with_the_same_keys_are_not_its_own() -> None:
    """Neither while they wait, in another queue, nor when they have ended."""
    for queue in ("one", "other", "other"):
        batch = Batch("daily", key=f"daily:{queue}").open()
        assert batch.add_many(work.using(unique=f"n:{n}", queue=queue).bind(n) for n in range(3)) == 3
        batch.close()
        if queue == "other":
            run_jobs()


def test_members_with_options_of_all_kinds() -> None:
    with Batch("mixed") as batch:
        batch.add_many(
            [
                work.using(tags=["a"], delay=0).bind(1),
                work.using(unique="k", queue="other").bind(2),
                work.using(priority=5, expires=60).bind(3),
                work.bind(4),
            ]
        )
    run_jobs()
    assert sorted(ran) == [1, 2, 3, 4]
    assert batch.figures.succeeded == 4


def test_many_members_are_copied() -> None:
    batch = batch_of(1000, succeeded=None, failed=None, settled=None)
    assert Job.objects.filter(parent_id=batch.job.pk, flow=1).count() == 1000
    assert batch.figures == Figures(1000, 0, 0, 0, 1000)


def test_signals_announce_members_and_what_comes_after() -> None:
    heard: list[str] = []

    def receive(job: Job, **_: object) -> None:
        heard.append(f"{job.name} {job.parent_id is not None}")

    job_registered.connect(receive)
    try:
        with Batch("heard", settled=note.bind("x")) as batch:
            batch.add(work.bind(1))
        chain(work.bind(1), note.bind("x")).register()
    finally:
        job_registered.disconnect(receive)
    assert heard == ["batches.note False", "batches.work True", "batches.work True", "batches.note True"]
    assert batch.figures.total == 1


def test_async_callers_have_the_same() -> None:
    async def make() -> Batch:
        batch = await Batch("async", settled=note.bind("settled")).aopen()
        await batch.aadd(work.bind(1))
        assert await batch.aadd_many([work.bind(2)]) == 1
        await batch.aclose()
        return batch

    batch = asyncio.run(make())
    run_jobs()
    assert (sorted(map(str, ran)), batch.figures.succeeded) == (["1", "2", "settled"], 2)


# Bad input


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Batch(succeeded=work), "succeeded= takes a call, made by a definition's bind"),  # type: ignore[arg-type]
        (lambda: Batch("x" * 201), "description must be text of at most 200 characters"),
        (lambda: Batch(settled=note.using(bypass=True).bind("x")).open(), "takes no bypass"),
        (lambda: Batch(settled=note.using(after=[1]).bind("x")).open(), "takes no after"),
        (lambda: Batch().add(work), "a batch takes calls"),  # type: ignore[arg-type]
        (lambda: Batch().add_many([work.using(bypass=True).bind(1)]), "bypass=True stores nothing"),
        (lambda: Batch(database="nowhere").open(), "there is no database 'nowhere'"),
    ],
)
def test_bad_input_is_refused_with_its_reason(make: object, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        make()  # type: ignore[operator]


def test_only_a_batch_is_one() -> None:
    with pytest.raises(InvalidJob, match="is no batch"):
        Batch.of(work.register(1))


def test_a_batch_is_not_registered_again() -> None:
    with pytest.raises(InvalidJob, match="register a new batch, with its members"):
        Batch().open().job.register_again()


def test_a_batch_that_is_not_stored_has_no_figures() -> None:
    with pytest.raises(BatchClosed, match="not stored"):
        _ = Batch().figures
    with pytest.raises(BatchClosed, match="not stored"):
        _ = Batch().job


def test_a_batch_is_refused_while_an_older_worker_lives() -> None:
    Heartbeat.objects.create(
        name="old", host="h", pid=1, processes=1, threads=1, async_slots=0, version="0", protocol=0
    )
    with pytest.raises(Exception, match=r"Workers of an older version are running: old\."):
        Batch().open()
    Heartbeat.objects.update(state="stopped")
    Batch().open()


# Cancel


def test_a_cancel_reaches_all_members_and_the_batch_ends_last() -> None:
    """C50: no retry."""
    batch = batch_of(5)
    steered = batch.job.cancel(by="an operator", reason="enough")
    assert steered.changed == 1
    assert batch.job.state == "blocked"
    assert "was requested" in why.of(batch.job.pk, "default").text
    with pytest.raises(BatchClosed):
        batch.add(work.bind(9))
    run_jobs()
    assert states(batch) == {"cancelled": 5}
    assert batch.figures == Figures(5, 0, 0, 5, 0)
    assert sorted(notes()) == ["failed", "settled"]
    assert (batch.job.outcome, batch.job.cancel_by, batch.job.cancel_reason) == ("cancelled", "an operator", "enough")
    member = Job.objects.filter(parent_id=batch.job.pk).first()
    assert member is not None
    assert (member.cancel_by, member.cancel_reason) == ("an operator", "enough")


def test_a_member_whose_batch_is_deleted_ends_as_any_job() -> None:
    """C49: somebody deletes the batch by hand."""
    batch = batch_of(1, succeeded=None, failed=None, settled=None)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgjobs_gate; DELETE FROM pgjobs_job WHERE id = %s", [batch.job.pk])
    run_jobs()
    assert list(Job.objects.values_list("name", "outcome")) == [("batches.work", "succeeded")]


def test_members_that_are_added_beside_a_cancel_are_refused(raw: RawDatabase, background: Background) -> None:
    """Their transaction waits for the cancel's, and then sees what that has done: nobody would cancel them."""
    batch = batch_of(2)
    with transaction.atomic():
        connection.ensure_connection()
        batch.job.cancel()
        adding = background(Batch.of(batch.job).add, work.bind(9))
        wait_until(lambda: blocked_by(raw, connection.connection.info.backend_pid), 10, "the addition waits")
    with pytest.raises(BatchClosed):
        adding.result(10)
    assert Job.objects.filter(name="batches.work").count() == 2


def test_a_cancel_begins_with_the_members_that_would_begin_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers begin with the first: a cancel that followed them would not overtake them."""
    monkeypatch.setattr(builtin, "MEMBERS_AT_ONCE", 2)
    batch = batch_of(6)
    batch.job.cancel()
    run_jobs()
    members = Job.objects.filter(parent_id=batch.job.pk)
    first, *_, last = members.order_by("cancel_requested_at", "pk").values_list("pk", flat=True)
    ids = sorted(members.values_list("pk", flat=True))
    assert (first, last) == (ids[4], ids[1])


def test_a_cancel_ends_an_open_batch_without_members() -> None:
    batch = Batch("open").open()
    batch.job.cancel()
    run_jobs()
    assert batch.job.outcome == "cancelled"


def test_a_batch_that_waits_cannot_be_abandoned() -> None:
    batch = batch_of(2)
    assert batch.job.abandon() == Steered(0, {refusal("pgjobs.batch", Act.ABANDON): 1})
    assert batch.job.state == "blocked"


# Retry


def test_a_retry_of_failed_members_lets_the_batch_wait_again() -> None:
    unlucky.update((1, 3))
    batch = batch_of(5)
    run_jobs()
    assert sorted(notes()) == ["failed", "settled"]
    unlucky.clear()
    assert batch.retry(by="an operator").changed == 2
    assert batch.figures == Figures(5, 3, 0, 0, 2)
    assert batch.job.state == "blocked"
    run_jobs()
    assert batch.figures == Figures(5, 5, 0, 0, 0)
    assert batch.job.outcome == "succeeded"
    # What has begun is not run again; what was not needed runs now.
    assert sorted(notes()) == ["failed", "settled", "succeeded"]


def test_a_batch_is_not_retried_itself() -> None:
    unlucky.add(0)
    batch = batch_of(2)
    run_jobs()
    assert batch.job.retry().changed == 0
    unlucky.clear()
    members = Job.objects.filter(outcome="abandoned")
    assert members.retry() == Steered(1, {refusal("pgjobs.batch", Act.RETRY): 1})  # which waits again all the same
    assert batch.job.state == "blocked"
    run_jobs()
    assert batch.job.outcome == "succeeded"


def test_a_retry_of_some_failed_members_fails_the_batch_again() -> None:
    unlucky.update((1, 3))
    batch = batch_of(5)
    run_jobs()
    unlucky.discard(1)
    first = Job.objects.filter(name="batches.work", outcome="abandoned").order_by("pk").first()
    assert first is not None
    first.retry()
    run_jobs()
    assert batch.figures == Figures(5, 4, 1, 0, 0)
    assert batch.job.outcome == "abandoned"


# Prune


def test_members_are_kept_while_their_batch_waits() -> None:

    batch = Batch("kept").open()
    batch.add_many(work.bind(n) for n in range(2))
    run_jobs()
    ended = list(Job.objects.filter(outcome="succeeded").values_list("pk", flat=True))
    assert pruning.prune_jobs(on("default"), ended, until="infinity") == []
    batch.close()
    run_jobs()
    everything = list(Job.objects.values_list("pk", flat=True))
    assert len(pruning.prune_jobs(on("default"), everything, until="infinity") or ()) == 3
    assert (Job.objects.count(), Gate.objects.count(), Link.objects.count()) == (0, 0, 0)


def test_a_member_whose_key_is_taken_is_not_counted() -> None:
    work.using(unique="same").register(1)
    batch = Batch("refused").open()
    with pytest.raises(DuplicateJob):
        batch.add(work.using(unique=Unique("same", on_conflict="raise")).bind(2))
    assert batch.figures.total == 0


def test_the_last_end_opens_a_gate_whose_job_was_locked(background: Background) -> None:
    """The worker does not wait for an operator's transaction; another duty opens the gate."""
    from django_pgjobs.maintenance.gates import open_due_gates

    batch = batch_of(1, succeeded=None, failed=None, settled=None)
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=batch.job.pk)
        background(run_jobs).result()
        due = background(Gate.objects.filter(due=True).count).result()
    assert due == 1
    assert open_due_gates(on("default")) == 1
    assert open_due_gates(on("default")) == 0
    run_jobs()
    assert batch.job.outcome == "succeeded"
