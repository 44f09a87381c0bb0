"""An operator lets jobs go on that wait, before what they wait for has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_pgjobs import Batch, Flow, Limit, job
from django_pgjobs.ends import kinds
from django_pgjobs.exceptions import BatchClosed
from django_pgjobs.flows.batch import Figures
from django_pgjobs.inspection import why
from django_pgjobs.maintenance.gates import Recount
from django_pgjobs.models import Action, Job
from django_pgjobs.models.gates import Gate
from django_pgjobs.steering import jobs as steering
from django_pgjobs.steering.batching import Steered
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_db import (
    AUTHOR,
    FAILURE,
    Background,
    RawDatabase,
    blocked_by,
    claim,
    from_the_beginning,
    wait_until,
)
from tests.plugins.shell import pgjobs

pytestmark = pytest.mark.usefixtures("committed")

ran: list[Any] = []
unlucky: set[int] = set()


@job(name="forced.work", max_attempts=1)
def work(n: int = 0) -> int:
    ran.append(n)
    if n in unlucky:
        raise ValueError(f"unlucky {n}")
    return n


@job(name="forced.slow", queue="slow", max_attempts=1)
def slow(n: int = 0) -> int:
    if n in unlucky:
        raise ValueError(f"unlucky {n}")
    return n


@job(name="forced.takes", max_attempts=1)
def takes(value: object) -> None:
    ran.append(value)


@job(name="forced.narrow", limits=[Limit(1)])
def narrow() -> None: ...


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()
    unlucky.clear()


def row(job_id: int | None) -> Job:
    return Job.objects.get(pk=job_id or 0)


def end(db: RawDatabase, queue: str = "slow", outcome: str = "") -> list[int]:
    """End a job of the queue as a worker does; return the jobs that this releases."""
    taken = claim(db, 1, from_the_beginning((queue, 0)))
    with db.transaction():
        _, opened = kinds.write_counted(
            db, taken.ends(outcome=outcome, failure=FAILURE if outcome else None), AUTHOR, lock_seconds=5
        )
    return [each.id for each in opened]


# What it does


def test_a_job_runs_though_what_it_needs_has_not_ended_and_the_later_end_releases_nothing(raw: RawDatabase) -> None:
    needed = [slow.register(1), slow.register(2)]
    child = work.using(after=needed).register(7)
    assert child.unblock(by="anna", reason="cannot wait") == Steered(1)
    gate = Gate.objects.get(pk=child.pk)
    assert (gate.pending, gate.opened_at is not None, gate.due) == (2, True, False)
    assert (row(child.pk).state, row(child.pk).ending) == ("ready", None)
    assert row(child.pk).run_at >= child.run_at
    assert row(child.pk).ready_at is not None
    run_jobs(queues=["default"])
    assert (ran, row(child.pk).outcome) == ([7], "succeeded")
    assert end(raw) == end(raw, outcome="abandoned") == []
    gate = Gate.objects.get(pk=child.pk)
    assert (gate.pending, gate.succeeded, gate.abandoned, gate.unmet) == (0, 1, 1, 1)
    run_jobs()
    assert (ran, row(child.pk).outcome) == ([7], "succeeded")


def test_an_end_releases_nothing_while_what_was_unblock_has_not_run(raw: RawDatabase) -> None:
    """It may wait for another hold, and is no business of the gate any more."""
    child = work.using(after=slow.register()).register(7)
    child.unblock()
    Job.objects.filter(pk=child.pk).update(hold="blocked")
    assert end(raw) == []
    assert row(child.pk).state == "blocked"


def test_a_failed_need_does_not_refuse_what_was_unblocked(raw: RawDatabase, other: RawDatabase) -> None:
    """The job was locked when its gate opened, so it is not cancelled yet."""
    child = work.using(after=slow.register()).register(7)
    other.query("SELECT 1 FROM pgjobs_job WHERE id = %s FOR UPDATE", [child.pk])
    end(raw, outcome="abandoned")
    other.rollback()
    assert Gate.objects.get(pk=child.pk).due
    child.unblock()
    assert (row(child.pk).state, row(child.pk).ending, Gate.objects.get(pk=child.pk).due) == ("ready", None, False)
    run_jobs()
    assert row(child.pk).outcome == "succeeded"


@pytest.mark.parametrize(("failed", "outcome"), [(0, "succeeded"), (1, "abandoned")])
def test_a_batch_ends_by_its_figures_so_far(raw: RawDatabase, failed: int, outcome: str) -> None:
    unlucky.add(1)
    with Batch("b", succeeded=takes.bind("succeeded"), failed=takes.bind("failed")) as batch:
        batch.add_many([work.bind(failed), slow.bind(5), slow.bind(6)])
    run_jobs(queues=["default"])
    ran.clear()
    assert batch.job.unblock() == Steered(1)
    run_jobs(queues=["default"])
    assert (batch.job.outcome, ran) == (outcome, ["failed" if failed else "succeeded"])
    assert batch.job.error == ("1 of 3 members did not succeed." if failed else "")
    assert batch.figures == Figures(3, 1 - failed, failed, 0, 2)
    assert end(raw) == end(raw, outcome="abandoned") == []
    assert batch.figures == Figures(3, 2 - failed, failed + 1, 0, 0)
    assert batch.job.outcome == outcome


def test_an_open_batch_that_is_unblock_takes_no_more() -> None:
    batch = Batch("b").open()
    batch.add(slow.bind())
    batch.job.unblock()
    assert Gate.objects.get(pk=batch.job.pk).hands == 0
    with pytest.raises(BatchClosed):
        batch.add(slow.bind())
    run_jobs(queues=["default"])
    assert batch.job.outcome == "succeeded"


def test_a_batch_that_somebody_cancelled_need_not_wait_for_its_members() -> None:
    with Batch("b") as batch:
        batch.add(slow.bind())
    batch.job.cancel()
    batch.job.unblock()
    run_jobs(queues=["nobody's"])
    assert batch.job.ending == "cancelled"
    run_jobs(queues=["default"])
    assert batch.job.outcome == "cancelled"


def test_what_has_a_limit_asks_to_be_let_in() -> None:
    child = narrow.using(after=slow.register()).register()
    assert child.unblock() == Steered(1)
    assert row(child.pk).state == "limited"


def test_a_delay_stands() -> None:
    child = work.using(after=slow.register(), delay=3600).register()
    child.unblock()
    assert (row(child.pk).state, row(child.pk).run_at) == ("ready", child.run_at)


# What becomes of it later


def test_a_retry_of_a_member_lets_a_batch_wait_again_that_was_unblocked(raw: RawDatabase) -> None:
    unlucky.add(1)
    with Batch("b") as batch:
        batch.add_many([work.bind(1), slow.bind(5)])
    run_jobs(queues=["default"])
    batch.job.unblock()
    run_jobs(queues=["default"])
    unlucky.clear()
    assert batch.retry() == Steered(1)
    assert (batch.job.state, batch.figures) == ("blocked", Figures(2, 0, 0, 0, 2))
    run_jobs()
    assert (batch.job.outcome, batch.figures.succeeded) == ("succeeded", 2)


def test_what_was_unblock_and_cancelled_before_it_began_does_not_wait_again_when_it_is_retried() -> None:
    child = work.using(after=slow.register()).register(7)
    child.unblock()
    row(child.pk).cancel()
    assert row(child.pk).retry() == Steered(1)
    assert row(child.pk).state == "ready"


def test_a_recount_leaves_it_alone(raw: RawDatabase) -> None:
    child = work.using(after=slow.register()).register()
    child.unblock()
    Gate.objects.filter(pk=child.pk).update(pending=5)
    assert Recount()(raw) == 0
    assert Gate.objects.get(pk=child.pk).pending == 5


# Results of what has not ended


def test_a_job_that_takes_the_result_of_one_that_has_not_ended_is_abandoned_and_says_so() -> None:
    flow = Flow("f")
    source = flow.add(slow.bind(3))
    sink = flow.add(takes.bind({"a": [source.result]}))
    flow.register()
    row(sink.job_id).unblock()
    run_jobs(queues=["default"])
    found = row(sink.job_id)
    text = f"It takes the result of job {source.job_id}, which has not ended."
    assert (found.outcome, found.error) == ("abandoned", f"UnreadablePayload: {text}")
    assert ran == []
    run_jobs()
    found.retry()
    run_jobs()
    assert (ran, row(sink.job_id).outcome) == ([{"a": [3]}], "succeeded")


def test_a_job_is_not_retried_with_nothing_instead_of_the_result_of_one_that_failed() -> None:
    unlucky.add(3)
    flow = Flow("f")
    source = flow.add(slow.bind(3))
    sink = flow.add(takes.bind(source.result))
    flow.register()
    run_jobs()
    assert row(sink.job_id).outcome == "cancelled"
    row(sink.job_id).retry()
    run_jobs()
    found = row(sink.job_id)
    assert f"It takes the result of job {source.job_id}, which was abandoned." in found.error
    assert (ran, found.outcome) == ([], "abandoned")


# Who waits for whom


def test_only_jobs_that_wait_are_unblock_and_only_by_force(raw: RawDatabase) -> None:
    child = work.using(after=slow.register()).register()
    assert child.release() == Steered(0, {"blocked": 1})
    running = claim(raw, 1, from_the_beginning(("slow", 0))).ids[0]
    assert Job.objects.filter(pk__in=[running, child.pk]).unblock() == Steered(1, {"running": 1})
    assert row(running).release_requested_at is None
    assert child.unblock() == Steered(0, {"ready": 1})


def test_a_job_that_waits_for_nothing_we_know_is_left_alone() -> None:
    """A hold of other code: there is no gate to open."""
    held = work.register()
    Job.objects.filter(pk=held.pk).update(hold="blocked")
    assert held.unblock() == Steered(0, {"blocked": 1})
    assert row(held.pk).state == "blocked"


def test_it_waits_for_no_lock_of_a_job_that_does_not_wait(other: RawDatabase) -> None:
    ready = work.register()
    other.query("SELECT 1 FROM pgjobs_job WHERE id = %s FOR UPDATE", [ready.pk])
    assert ready.unblock() == Steered(0, {"ready": 1})


@pytest.mark.parametrize("what", ["job", "gate"])
def test_what_stays_locked_is_busy_and_the_others_go_on(
    other: RawDatabase, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("django_pgjobs.steering.batching.LOCK_SECONDS", 0.2)
    first, second = (work.using(after=slow.register()).register() for _ in range(2))
    table, column = {"job": ("pgjobs_job", "id"), "gate": ("pgjobs_gate", "job_id")}[what]
    other.query(f"SELECT 1 FROM {table} WHERE {column} = %s FOR UPDATE", [first.pk])
    jobs = Job.objects.filter(pk__in=[first.pk, second.pk])
    assert jobs.unblock() == Steered(1, {"busy": 1})
    other.rollback()
    assert [row(each.pk).state for each in (first, second)] == ["blocked", "ready"]
    assert not Gate.objects.filter(due=True).exists()
    assert jobs.unblock() == Steered(1, {"ready": 1})


def test_an_end_that_waits_for_the_gate_finds_it_open(
    raw: RawDatabase, background: Background, db_connection: Callable[..., RawDatabase]
) -> None:
    """The end counts, behind the operator's commit, and releases nothing again."""
    child = work.using(after=slow.register()).register()
    probe = db_connection()
    with transaction.atomic():
        child.unblock()
        pid = transaction.get_connection().connection.info.backend_pid
        ending = background(end, raw)
        wait_until(lambda: blocked_by(probe, pid), 10, "the end waits for the gate")
    assert ending.result(10) == []
    gate = Gate.objects.get(pk=child.pk)
    assert (gate.pending, gate.succeeded, gate.due) == (0, 1, False)
    assert row(child.pk).state == "ready"


# Where it is done


def test_it_is_recorded_who_unblocked_it_and_why() -> None:
    child = work.using(after=slow.register()).register()
    child.unblock(by="anna", reason="cannot wait")
    action = Action.objects.get()
    assert (action.verb, action.mode, action.acted_by, action.reason) == ("unblock", "", "anna", "cannot wait")


def test_it_is_done_from_asynchronous_code() -> None:
    child = work.using(after=slow.register()).register()
    assert asyncio.run(child.aunblock()) == Steered(1)
    other = work.using(after=slow.register()).register()
    assert asyncio.run(Job.objects.filter(pk=other.pk).aunblock()) == Steered(1)
    assert {row(each.pk).state for each in (child, other)} == {"ready"}


def test_it_is_done_in_the_shell_which_says_how(raw: RawDatabase) -> None:
    needed = slow.register()
    child = work.using(after=needed).register()
    assert why.of(child.pk, "default").advice == f"To run it all the same: manage.py pgjobs unblock {child.pk}"
    status, out, _ = pgjobs("unblock", child.pk)
    assert (status, out) == (0, "unblock: 1 changed, 0 skipped\n")
    assert Action.objects.get().via == "shell"
    running = claim(raw, 1, from_the_beginning(("slow", 0))).ids[0]
    again = work.using(after=slow.register()).register()
    assert pgjobs("unblock", "--all", "--yes")[0] == 0, "of all, only those that wait are meant"
    assert (row(again.pk).state, row(running).release_requested_at) == ("ready", None)


def test_why_says_how_a_batch_is_unblocked() -> None:
    with Batch("b") as batch:
        batch.add(slow.bind())
    advice = f"To end it by its figures so far: manage.py pgjobs unblock {batch.job.pk}"
    assert why.of(batch.job.pk, "default").advice == advice
    batch.job.cancel()
    assert why.of(batch.job.pk, "default").advice == ""


# Batches are closed


def test_a_batch_is_closed_by_an_operator_once() -> None:
    batch = Batch("b").open()
    batch.add(slow.bind())
    rows = Job.objects.filter(pk__gt=0)
    done = steering.close_batches(rows, "default", by="anna", reason="producer died")
    assert done == Steered(1, {"ready": 1})
    assert batch.job.state == "blocked"
    action = Action.objects.get()
    assert (action.verb, action.acted_by, action.reason, action.changed) == ("close", "anna", "producer died", 1)
    assert steering.close_batches(rows, "default", by="", reason="") == Steered(0, {"blocked": 1, "ready": 1})
    assert Action.objects.count() == 1


def test_a_batch_that_is_closed_in_the_shell_says_who_did_it(other: RawDatabase, monkeypatch: Any) -> None:
    monkeypatch.setattr("django_pgjobs.steering.batching.LOCK_SECONDS", 0.2)
    batch = Batch("b").open()
    other.query("SELECT 1 FROM pgjobs_gate WHERE job_id = %s FOR UPDATE", [batch.job.pk])
    status, _, err = pgjobs("close-batch", batch.job.pk)
    assert (status, err) == (1, f"batch {batch.job.pk} is locked by another transaction: try again\n")
    other.rollback()
    assert pgjobs("close-batch", batch.job.pk)[0] == 0
    assert (Action.objects.get().verb, Action.objects.get().via) == ("close", "shell")
    run_jobs()
    assert batch.job.outcome == "succeeded"
