"""What reviews found: retries beside ends, recounts beside pruning, keys of nodes, and callers who expect more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_pgjobs import Batch, Cron, Flow, job
from django_pgjobs.canvas import group
from django_pgjobs.ends import finalise, kinds
from django_pgjobs.ends.kinds import SUCCESS
from django_pgjobs.exceptions import DuplicateJob, InvalidJob
from django_pgjobs.inspection import why
from django_pgjobs.maintenance.gates import Recount, open_due_gates
from django_pgjobs.models import Job
from django_pgjobs.models.gates import Gate
from django_pgjobs.states import Rule
from django_pgjobs.steering import batching, reopening
from django_pgjobs.store import gates, pruning
from django_pgjobs.store.database import LOCKED, on
from django_pgjobs.testing import run_jobs
from django_pgjobs.worker.shared.connection import WorkerConnection
from django_pgjobs.worker.shared.runs import HeldClaim, HeldRun
from django_pgjobs.worker.threads import finaliser
from django_pgjobs.worker.threads.finaliser import Finaliser
from tests.plugins.fix_db import AUTHOR, FAILURE, Background, Claimed, RawDatabase, blocked_by, claim, wait_until
from tests.unit.worker_fakes import Heard

pytestmark = pytest.mark.usefixtures("committed")

failing: set[int] = set()


@job(name="mended.maybe", max_attempts=1)
def maybe(n: int = 0) -> int:
    if n in failing:
        raise ValueError("it fails")
    return n


@job(name="mended.waits", max_attempts=1)
def waits(value: object = None) -> object:
    return value


@job(name="mended.keyed", max_attempts=1, unique="k:{n}")
def keyed(n: int) -> int:
    return n


@dataclass
class Held:
    value: object


@pytest.fixture(autouse=True)
def nothing_fails() -> None:
    failing.clear()


def row(job_id: int | None) -> Job:
    return Job.objects.get(pk=job_id or 0)


# Recounts


@pytest.mark.parametrize("rule", list(Rule))
def test_a_recount_of_a_sound_gate_changes_nothing(raw: RawDatabase, rule: Rule) -> None:
    """By any rule, before any end and after some."""
    needed = [maybe.register(n) for n in range(3)]
    failing.add(0)
    waits.using(after=needed, when=rule.value).register()
    with Batch("sound", settled=waits.bind()) as batch:
        batch.add_many(maybe.bind(n) for n in range(3))
    assert Recount()(raw) == 0
    run_jobs(limit=2)
    assert Recount()(raw) == 0


def test_a_recount_keeps_the_figures_of_members_that_were_pruned(raw: RawDatabase) -> None:
    failing.add(1)
    with Batch("b") as batch:
        batch.add_many(maybe.bind(n) for n in range(3))
    run_jobs()
    failing.clear()
    ended = list(Job.objects.filter(outcome="succeeded").values_list("pk", flat=True))
    assert len(pruning.prune_jobs(on("default"), ended, until="infinity") or ()) == 2
    batch.retry()
    assert Recount()(raw) == 0
    run_jobs()
    assert (batch.job.outcome, batch.figures.succeeded) == ("succeeded", 3)


def test_a_recount_keeps_the_figures_of_needed_jobs_that_were_pruned(raw: RawDatabase) -> None:
    failing.add(1)
    well, bad = maybe.register(0), maybe.register(1)
    child = waits.using(after=[well, bad]).register()
    run_jobs()
    failing.clear()
    assert pruning.prune_jobs(on("default"), [well.pk], until="infinity") == [well.pk]
    row(bad.pk).retry()
    assert row(child.pk).state == "blocked"
    Recount()(raw)
    run_jobs()
    assert row(child.pk).outcome == "succeeded"


# A retry beside an end


def test_a_retry_beside_an_end_loses_no_release(
    raw: RawDatabase, background: Background, db_connection: Callable[..., RawDatabase]
) -> None:
    """The end's snapshot is older than the gate it has waited for: its job seems to have ended."""
    a, b = maybe.register(), maybe.register()
    c = waits.using(after=[a, b]).register()
    of_a, of_b = claim(raw), claim(raw)
    with raw.transaction():
        kinds.write_counted(raw, of_a.ends(outcome="abandoned", failure=FAILURE), AUTHOR)
    of_c = claim(raw)
    assert of_c.ids == [c.pk]
    with raw.transaction():
        kinds.write_counted(raw, of_c.ends(outcome="cancelled"), AUTHOR)
    probe = db_connection()

    def end_b() -> None:
        with raw.transaction():
            kinds.write_counted(raw, of_b.ends(outcome="abandoned", failure=FAILURE), AUTHOR)

    with transaction.atomic():
        row(a.pk).retry()
        assert connection.connection is not None
        pid = connection.connection.info.backend_pid
        ending = background(end_b)
        wait_until(lambda: blocked_by(probe, pid), 10, "the end waits for the gate")
    ending.result(10)
    open_due_gates(raw)
    run_jobs()
    assert row(c.pk).outcome == "cancelled"
    assert not Gate.objects.filter(due=True).exists()


def test_the_sweep_waits_for_no_gate(raw: RawDatabase, other: RawDatabase, background: Background) -> None:
    with Batch("b") as batch:
        batch.add(maybe.bind(5))
    other.query("SELECT 1 FROM pgjobs_job WHERE id = %s FOR UPDATE", [batch.job.pk])
    background(run_jobs).result(10)
    assert Gate.objects.filter(due=True).count() == 1
    other.query("SELECT 1 FROM pgjobs_gate WHERE job_id = %s FOR UPDATE", [batch.job.pk])
    assert open_due_gates(raw) == 0
    other.rollback()
    assert open_due_gates(raw) == 1


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_a_gate_that_stays_locked_is_waited_for_once(
    raw: RawDatabase, other: RawDatabase, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    """However many batches of ends that need other gates are written meanwhile.

    If their claim names the only gate of each, nobody asks for locks again before the pause is over.
    """
    monkeypatch.setattr(finaliser, "BATCH", 2)
    waited = asked = 0
    write_counted, list_locked_gates = kinds.write_counted, gates.list_locked_gates

    def listed(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return list_locked_gates(*args)

    monkeypatch.setattr(gates, "list_locked_gates", listed)

    def written(*args: Any, **options: Any) -> Any:
        nonlocal waited
        try:
            return write_counted(*args, **options)
        except LOCKED:
            waited += 1
            raise

    monkeypatch.setattr(kinds, "write_counted", written)
    heard, link = Heard(), WorkerConnection("default", "pgjobs test finalise", statement_seconds=20)
    flushing = Finaliser(lambda: pytest.fail("connected"), heard, AUTHOR)
    flushing.counts = True

    def put(taken: Claimed) -> list[int]:
        held = HeldClaim(str(taken.claim_id), 0.0, len(taken.ids), 1e12)
        runs = [HeldRun(job, held, fresh_until=1e12) for job in taken.jobs]
        for run in runs:
            assert finalise.gate_of(run.job.extras)
            run.gate = finalise.gate_of(run.job.extras) if named else 0
        flushing.put_many(SUCCESS, list(zip(runs, taken.ends(), strict=True)))
        return taken.ids

    try:
        with Batch("locked") as locked:
            locked.add_many(maybe.bind() for _ in range(3))
        with Batch("free") as free:
            free.add_many(maybe.bind() for _ in range(8))
        other.query("SELECT job_id FROM pgjobs_gate WHERE job_id = %s FOR UPDATE", [locked.job.pk])
        first, late = claim(raw, 2), claim(raw)
        stuck = put(first)
        for number in range(4):
            stuck += put(late) if number == 1 else []
            ids = put(claim(raw, 2))
            heard.posts.clear()
            flushing.busy.until = flushing.last_flush + 60
            flushing._flush(link)
            assert sorted(heard.told("stored")) == ids
        assert (waited, asked) == (1, 1 if named else 6)
        other.rollback()
        heard.posts.clear()
        flushing.busy.until = 0.0
        flushing._flush(link)
        assert sorted(heard.told("stored")) == stuck
    finally:
        link.close()
    assert (locked.figures.succeeded, free.figures.succeeded, flushing.count) == (3, 8, 0)


def test_a_retry_of_many_members_beside_a_locked_gate_gives_up_after_a_few_waits(
    other: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for the same gate with each half, down to each member, and keep their rows locked meanwhile."""
    monkeypatch.setattr("django_pgjobs.steering.batching.LOCK_SECONDS", 0.05)
    monkeypatch.setattr(batching, "SHORT_LOCK_TIMEOUT", "5ms")
    waits: list[int] = []
    reopen = reopening.retry

    def counted(db: Any, held: Any, *others: Any) -> Any:
        waits.append(len(held))
        return reopen(db, held, *others)

    monkeypatch.setattr(reopening, "retry", counted)
    failing.add(1)
    with Batch("many") as batch:
        batch.add_many(maybe.bind(1) for _ in range(100))
    run_jobs()
    other.query("SELECT 1 FROM pgjobs_gate WHERE job_id = %s FOR UPDATE", [batch.job.pk])
    done = batch.retry()
    assert (done.changed, done.skipped) == (0, {"busy": 100})
    assert len(waits) <= batching.MOST_WAITS + 5
    other.rollback()
    assert batch.retry().changed == 100


def test_two_that_had_one_key_are_revived_and_one_has_it() -> None:
    failing.add(1)
    parent = maybe.register(1)
    first = waits.using(after=parent, unique="k").register()
    run_jobs()
    second = waits.using(after=parent, unique="k").register()
    run_jobs()
    failing.clear()
    assert row(parent.pk).retry().changed == 1
    assert [(row(each.pk).state, row(each.pk).unique_key) for each in (first, second)] == [
        ("blocked", "k"),
        ("blocked", None),
    ]


def test_what_is_revived_does_not_expire_at_once() -> None:
    failing.add(1)
    parent = maybe.register(1)
    child = waits.using(after=parent, expires=timedelta(hours=1)).register()
    run_jobs()
    failing.clear()
    Job.objects.filter(pk=child.pk).update(expires_at=row(parent.pk).created_at)
    row(parent.pk).retry()
    assert (row(child.pk).state, row(child.pk).expires_at) == ("blocked", None)


def test_a_retry_of_a_job_that_was_cancelled_while_it_waited_lets_it_wait_again() -> None:
    parent = maybe.using(delay=3600).register()
    child = waits.using(after=parent).register()
    row(child.pk).cancel()
    run_jobs()
    assert row(child.pk).retry().changed == 1
    assert row(child.pk).state == "blocked"


def test_a_need_that_had_ended_before_is_reopened_and_kept_all_the_same() -> None:
    failing.add(1)
    parent = maybe.register(1)
    run_jobs()
    child = waits.using(after=parent).register()
    run_jobs()
    assert row(child.pk).outcome == "cancelled"
    failing.clear()
    row(parent.pk).retry()
    assert row(child.pk).state == "blocked"
    run_jobs()
    assert row(child.pk).outcome == "succeeded"
    later = waits.using(after=[parent, maybe.using(delay=60).register()]).register()
    assert pruning.prune_jobs(on("default"), [parent.pk], until="infinity") == []
    assert row(later.pk).state == "blocked"


# Ends of what does not run


def test_a_node_that_is_refused_ends_at_once_whatever_its_delay() -> None:
    failing.add(1)
    flow = Flow()
    flow.add(waits.using(delay=86_400).bind(), flow.add(maybe.bind(1)))
    made = flow.register()
    run_jobs()
    assert row(made.pk).outcome == "abandoned"


def test_a_node_whose_code_is_gone_can_be_cancelled() -> None:
    flow = Flow()
    node = flow.add(waits.bind())
    made = flow.register()
    Job.objects.filter(pk=node.job_id or 0).update(name="mended.gone")
    made.cancel()
    run_jobs()
    assert (row(node.job_id).outcome, row(made.pk).outcome) == ("cancelled", "cancelled")


def test_a_cancel_of_a_batch_comes_back_for_members_that_were_locked(
    other: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_pgjobs.steering.batching.LOCK_SECONDS", 0.05)
    with Batch("b") as batch:
        batch.add_many(maybe.using(delay=3600).bind(n) for n in range(2))
    member = Job.objects.filter(parent_id=batch.job.pk).first()
    assert member is not None
    other.query("SELECT 1 FROM pgjobs_job WHERE id = %s FOR UPDATE", [member.pk])
    batch.job.cancel()
    run_jobs()
    assert (batch.figures.cancelled, batch.job.state) == (1, "blocked")
    other.rollback()
    run_jobs(include_scheduled=True)
    assert (batch.figures.cancelled, batch.job.outcome) == (2, "cancelled")


# Keys


def test_a_node_with_a_declared_key_is_refused() -> None:
    flow = Flow()
    flow.add(keyed.bind(7))
    with pytest.raises(InvalidJob, match=r"node 0: job 'mended\.keyed' declares a key"):
        flow.register()
    assert not Job.objects.exists()


def test_what_comes_after_a_batch_is_not_dropped_for_its_key() -> None:
    taken = keyed.using(delay=3600).register(7)
    with pytest.raises(DuplicateJob) as error:
        Batch("x", succeeded=keyed.bind(7)).open()
    assert error.value.existing_id == taken.pk
    assert Job.objects.count() == 1


def test_a_batch_does_not_take_another_job_for_itself() -> None:
    ordinary = maybe.using(unique="k").register()
    for make in (lambda: Batch("x", key="k").open(), lambda: Flow("x", key="k").register()):
        with pytest.raises(DuplicateJob) as error:
            make()
        assert error.value.existing_id == ordinary.pk
    Flow("y", key="f").add(maybe.using(delay=60).bind()).flow.register()
    with pytest.raises(DuplicateJob):
        Batch("y", key="f").open()


def test_a_member_cannot_need_its_own_batch() -> None:
    batch = Batch("x").open()
    with pytest.raises(InvalidJob, match="cannot need it"):
        batch.add(maybe.using(after=batch.job).bind())
    assert batch.figures.total == 0


# Results


def test_a_result_within_a_dataclass_is_passed_on() -> None:
    flow = Flow()
    first = flow.add(maybe.bind(5))
    node = flow.add(waits.bind(Held(first.result)))
    flow.register()
    run_jobs()
    assert row(node.job_id).value() == {"value": 5}


def test_a_result_is_for_nodes_of_its_flow_only() -> None:
    flow = Flow()
    first = flow.add(maybe.bind(5))
    flow.register()
    with pytest.raises(InvalidJob, match="the result of a node"):
        waits.register(first.result)


def test_a_result_that_is_gone_ends_the_job_with_the_reason() -> None:
    flow = Flow()
    first = flow.add(maybe.bind(5))
    node = flow.add(waits.using(delay=60).bind(first.result))
    flow.register()
    run_jobs()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgjobs_job WHERE id = %s", [first.job_id])
    row(node.job_id).reschedule(delay=0)
    run_jobs()
    assert row(node.job_id).outcome == "abandoned"
    assert row(node.job_id).error.startswith(
        f"UnreadablePayload: The result of job {first.job_id}, which it takes, is gone with that job"
    )


# Callers


def test_callers_are_told_what_to_write() -> None:
    with pytest.raises(InvalidJob, match="pass a list of calls"):
        group(maybe.bind(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="pass a list of calls"):
        Batch().add_many(maybe.bind(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="is no batch"):
        Batch.of(None)
    with pytest.raises(InvalidJob, match="after makes no sense"):
        maybe.using(after=1).schedule("@daily", name="x")
    with pytest.raises(InvalidJob, match="after makes no sense"):
        Cron("@daily", maybe.using(after=1).bind(1))
    assert waits.using(after=[], when="settled").register().state == "ready"
    with pytest.raises(InvalidJob, match="when='failed' with an empty after: no job can fail"):
        waits.using(after=[], when="failed")


def test_why_names_what_helps() -> None:
    failing.add(1)
    with Batch("b", succeeded=waits.bind(), failed=waits.bind()) as batch:
        batch.add(maybe.bind(1))
    run_jobs()
    assert f"pgjobs retry --batch {batch.job.pk} --state abandoned" in why.of(batch.job.pk, "default").advice
    skipped = Job.objects.get(cancel_by="pgjobs:flow")
    assert "when you retry what failed" in why.of(skipped.pk, "default").advice
