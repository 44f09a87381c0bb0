"""Sequences: whose turn it is, through all that may happen to the job that has it and to those behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_pgjobs import Batch, Flow, Unique, register_many
from django_pgjobs import Sequence as InSequence
from django_pgjobs.ends import kinds
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.inspection import why
from django_pgjobs.jobs import job
from django_pgjobs.maintenance.gates import Recount, open_due_gates
from django_pgjobs.models import Action, Job
from django_pgjobs.models.gates import Gate
from django_pgjobs.reverting import revert
from django_pgjobs.store import finalising, gates, memos, pruning
from django_pgjobs.testing import run_jobs
from tests.db.sequences_ground import judged, stuck
from tests.plugins.fix_db import AUTHOR, FAILURE, Background, Claimed, RawDatabase, claim, wait_until

pytestmark = pytest.mark.usefixtures("committed")

NAP = '{"memo": "nap", "kind": "sleep", "event": null, "delay": 3600, "failures": 0, "progressed": true}'

done: list[int] = []
failing: set[int] = set()


@job(name="sequences.step", sequence="customer:{customer}", max_attempts=2, backoff=lambda *_: 0.0)
def step(number: int, customer: int = 1) -> None:
    if number in failing:
        raise ValueError("broken")
    done.append(number)


@job(name="sequences.skips", sequence=InSequence("customer:{customer}", on_abandon="skip"), max_attempts=1)
def skips(number: int, customer: int = 1) -> None:
    step.func(number)


@job(name="sequences.callable", sequence=lambda number: None if number < 0 else "all")
def at_times(number: int) -> None: ...


@job(name="sequences.free")
def free(number: int) -> None:
    done.append(number)


@pytest.fixture(autouse=True)
def judge(committed: None) -> Iterator[None]:
    done.clear()
    failing.clear()
    with judged():
        yield


def states(jobs: Sequence[Any]) -> list[str]:
    known = {
        each.pk: each.state
        for each in Job.objects.filter(pk__in=[one if isinstance(one, int) else one.pk for one in jobs])
    }
    return [known[one if isinstance(one, int) else one.pk] for one in jobs]


def end(db: RawDatabase, taken: Claimed, outcome: str = "") -> list[int]:
    ends = taken.ends(outcome=outcome, failure=FAILURE if outcome else None)
    with db.transaction():
        recorded, opened = kinds.write_counted(db, ends, AUTHOR, lock_seconds=5)
    assert set(recorded) == set(taken.ids)
    return [one.id for one in opened]


def row(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


# The order


def test_jobs_of_a_sequence_run_as_they_were_registered() -> None:
    """Neither priority nor run_at changes it, and other sequences are not touched."""
    made = [step.using(priority=number).register(number) for number in range(5)]
    other = step.register(9, customer=2)
    assert [each.state for each in made] == ["ready", *["blocked"] * 4]
    assert other.state == "ready"
    run_jobs()
    assert [number for number in done if number != 9] == [0, 1, 2, 3, 4]
    assert states([*made, other]) == ["succeeded"] * 6


def test_a_free_sequence_costs_no_gate() -> None:
    """A million sequences of one job each are a million jobs."""
    made = [step.register(1, customer=customer) for customer in range(3)]
    assert {each.state for each in made} == {"ready"}
    assert not Gate.objects.exists()


def test_one_call_registers_many_in_the_order_of_its_rows() -> None:
    ids = step.register_many([{"number": n, "customer": n % 2} for n in range(100)])
    assert ids == sorted(ids)
    assert states(ids).count("ready") == 2
    mixed = register_many([free.bind(1000), step.bind(100, customer=0), step.bind(101, customer=7)])
    assert states(mixed) == ["ready", "blocked", "ready"]
    run_jobs()
    assert [n for n in done if n <= 100 and n % 2 == 0] == list(range(0, 101, 2))
    assert [n for n in done if n < 100 and n % 2] == list(range(1, 100, 2))


def test_many_rows_with_keys_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of an insert are made by keys; the ids are not."""
    monkeypatch.setattr("django_pgjobs.store.registering.SPECIAL_AT_ONCE", 7)
    calls = [step.using(unique=f"key:{99 - n}", queue=f"q{n % 3}").bind(n) for n in range(40)]
    ids = register_many(calls)
    assert ids == sorted(ids)
    assert Job.objects.get(state="ready").pk == ids[0]


def test_a_name_may_come_from_a_callable_and_from_using() -> None:
    each = at_times
    assert each.register(-1).sequence is None
    assert each.register(1).sequence == "all"
    assert step.using(sequence=None).register(1).sequence is None
    assert free.using(sequence="all").register(1).state == "blocked"
    assert step.using(sequence=InSequence(on_abandon="skip")).register(1).flow & 128


def test_a_delayed_job_delays_those_behind_it(raw: RawDatabase) -> None:
    first, second = step.using(delay=3600).register(1), step.register(2)
    assert claim(raw).ids == []
    assert states([first, second]) == ["ready", "blocked"]
    Job.objects.filter(pk=first.pk).reschedule(delay=0)
    run_jobs()
    assert done == [1, 2]


@pytest.mark.parametrize("how", ["retry", "snooze", "release", "suspend"])
def test_a_job_keeps_the_turn_until_it_has_ended(raw: RawDatabase, how: str) -> None:
    first, second = step.register(1), step.register(2)
    taken = claim(raw)
    assert taken.ids == [first.pk]
    ends = taken.ends(delay=3600.0, cause="failed", failure=FAILURE)
    if how == "retry":
        assert finalising.finalise_retry(raw, ends, AUTHOR)
    elif how == "snooze":
        assert finalising.finalise_snooze(raw, ends)
    elif how == "release":
        assert finalising.release_jobs(raw, taken.ends(), AUTHOR)
    else:
        ends = taken.ends(seconds=0.0, columns=NAP)
        assert memos.suspend_jobs(raw, ends, AUTHOR)
    assert row(second).state == "blocked"
    Recount()(raw)
    assert row(second).state == "blocked"


# Ends


def test_an_end_passes_the_turn(raw: RawDatabase) -> None:
    first, second, third = (step.register(n) for n in range(3))
    assert end(raw, claim(raw)) == [second.pk]
    assert states([first, second, third]) == ["succeeded", "ready", "blocked"]


def test_an_abandoned_job_holds_up_those_behind_it(raw: RawDatabase) -> None:
    failing.add(1)
    first, second, third = (step.register(n) for n in (1, 2, 3))
    run_jobs()
    assert states([first, second, third]) == ["abandoned", "blocked", "blocked"]
    late = step.register(4)
    assert late.state == "blocked"
    reason = why.of(third.pk, "default")
    assert (reason.code, str(first.pk) in reason.text, f"unblock {second.pk}" in reason.advice) == (
        "out_of_turn",
        True,
        True,
    )
    failing.clear()
    assert Job.objects.filter(pk=first.pk).retry().changed == 1
    run_jobs()
    assert done == [1, 2, 3, 4]


def test_one_that_skips_lets_the_others_go_on() -> None:
    failing.add(1)
    made = [skips.register(1), skips.register(2)]
    run_jobs()
    assert states(made) == ["abandoned", "succeeded"]


def test_a_cancelled_job_holds_up_nobody(raw: RawDatabase) -> None:
    first, second, third = (step.register(n) for n in (1, 2, 3))
    claimed = claim(raw)
    assert second.cancel().changed
    assert row(third).state == "blocked", "the one before the cancelled one still runs"
    assert end(raw, claim(raw), "cancelled") == []
    assert states([first, second, third]) == ["running", "cancelled", "blocked"]
    assert end(raw, claimed) == [third.pk]


def test_the_next_one_begins_when_a_cancelled_one_has_ended(raw: RawDatabase) -> None:
    """The end of the first does not wait for that of the second, which never had the turn."""
    _, second, third = (step.register(n) for n in (1, 2, 3))
    claimed = claim(raw)
    second.cancel()
    assert end(raw, claimed) == [third.pk]


def test_callbacks_are_part_of_the_turn(raw: RawDatabase) -> None:
    first, second = step.register(1), step.register(2)
    taken = claim(raw)
    marked = finalising.mark_ending(
        raw, taken.ends(outcome="cancelled", cause="cancelled"), AUTHOR, allowance_seconds=5.0
    )
    assert marked == [first.pk]
    assert row(second).state == "blocked"


def test_members_of_a_batch_may_have_sequences() -> None:
    with Batch() as batch:
        batch.add_many(step.bind(n, customer=n % 2) for n in range(10))
    run_jobs()
    assert row(batch.job).outcome == "succeeded"
    assert [n for n in done if n % 2] == [1, 3, 5, 7, 9]


# Operators


def test_unblock_passes_abandoned_ones_alone(raw: RawDatabase) -> None:
    failing.add(1)
    first, second, third = (step.register(n) for n in (1, 2, 3))
    assert dict(Job.objects.filter(pk=second.pk).unblock().skipped) == {"out of turn": 1}
    run_jobs()
    assert Job.objects.filter(pk=third.pk).unblock().skipped == {"out of turn": 1}
    assert Job.objects.filter(pk__in=[second.pk, third.pk]).unblock().changed == 1
    assert states([first, second, third]) == ["abandoned", "ready", "blocked"]
    run_jobs()
    assert done == [2, 3]
    assert Job.objects.filter(pk=first.pk).retry().changed == 1
    run_jobs()
    assert step.register(4).state == "ready", "it was passed for good"


def test_a_retried_job_takes_its_old_place(raw: RawDatabase) -> None:
    """Behind the one that has the turn, before those that wait."""
    failing.add(1)
    first = skips.register(1)
    run_jobs()
    failing.clear()
    second, third = skips.register(2), skips.register(3)
    taken = claim(raw)
    assert taken.ids == [second.pk]
    assert first.retry().changed
    assert states([first, second, third]) == ["blocked", "running", "blocked"]
    assert end(raw, taken) == [first.pk]
    run_jobs()
    assert done == [1, 3]


def test_one_that_was_cancelled_while_it_waited_waits_again(raw: RawDatabase) -> None:
    first, second, third = (step.register(n) for n in (1, 2, 3))
    second.cancel()
    claimed = claim(raw)
    end(raw, claim(raw), "cancelled")
    assert second.retry().changed
    assert states([first, second, third]) == ["running", "blocked", "blocked"]
    assert end(raw, claimed) == [second.pk]


def test_an_abandoned_one_that_never_ran_holds_up_the_others(raw: RawDatabase) -> None:
    first, second, third = (step.register(n) for n in (1, 2, 3))
    assert second.abandon().changed
    run_jobs()
    assert states([first, second, third]) == ["succeeded", "abandoned", "blocked"]
    assert third.unblock().changed
    run_jobs()
    assert done == [1, 3]


def test_a_retry_cannot_be_undone(raw: RawDatabase) -> None:
    failing.add(1)
    first, _ = step.register(1), step.register(2)
    run_jobs()
    assert first.retry(by="anna").changed
    assert revert(Action.objects.latest("pk").pk, database="default", by="anna").skipped == {"needed": 1}


def test_pruning_keeps_what_others_wait_for(raw: RawDatabase) -> None:
    failing.add(1)
    first, second = step.register(1), step.register(2)
    run_jobs()
    until = str(timezone.now() + timedelta(hours=1))
    assert pruning.prune_jobs(raw, [first.pk], until=until) == []
    second.cancel()
    run_jobs()
    assert set(pruning.prune_jobs(raw, [first.pk, second.pk], until=until) or ()) == {first.pk, second.pk}
    assert step.register(3).state == "ready"


def test_a_job_registered_beside_a_prune_is_not_forgotten(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    """It saw the abandoned one, which is gone when it commits."""
    failing.add(1)
    first = step.register(1)
    run_jobs()
    until = str(timezone.now() + timedelta(hours=1))
    with transaction.atomic():
        late = step.register(2)
        assert late.state == "blocked"
        pruned = background(pruning.prune_jobs, raw, [first.pk], until=until)
        pid = connection.connection.info.backend_pid
        wait_until(lambda: blocked_by_sequence(other, pid) or pruned.done(), 5, "the prune waits")
    if pruned.result() is None:  # it has waited for too long, and deleted nothing
        assert pruning.prune_jobs(raw, [first.pk], until=until) == []
    else:
        assert row(late).state == "ready"


def blocked_by_sequence(db: RawDatabase, pid: int) -> bool:
    found = db.value("SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))", [pid])
    db.rollback()
    return bool(found)


def test_steps_and_retries_of_parked_jobs_keep_the_turn(raw: RawDatabase) -> None:
    first, second = step.register(1), step.register(2)
    Job.objects.filter(pk=first.pk).update(hold="parked", hold_reason="for a try")
    assert Job.objects.filter(pk=first.pk).retry().changed == 1
    assert states([first, second]) == ["ready", "blocked"]


def test_registered_again_it_stands_at_the_tail() -> None:
    failing.add(1)
    first, second = skips.register(1), skips.register(2)
    run_jobs()
    third = step.using(delay=3600).register(3)
    again = row(first).register_again()
    assert (again.sequence, again.state, again.flow & 128) == ("customer:1", "blocked", 128)
    assert states([second, third]) == ["succeeded", "ready"]


# Keys


def test_an_abandoned_job_whose_key_one_behind_it_has_is_passed(raw: RawDatabase) -> None:
    """It cannot be retried as long as that waits, and that waits for it: an operator lets that run."""
    first = step.using(unique="k").register(1)
    end(raw, claim(raw), "abandoned")
    second = step.using(unique="k").register(2)
    assert row(second).state == "blocked"
    assert not row(first).retry().changed
    assert row(second).unblock().changed == 1
    run_jobs()
    assert states([first, second]) == ["abandoned", "succeeded"]


def test_a_replaced_job_loses_its_place() -> None:
    first = step.register(1)
    old = step.using(unique=Unique("k", on_conflict="replace")).register(2)
    behind = step.register(3)
    new = step.using(unique=Unique("k", on_conflict="replace")).register(4)
    assert new.fresh
    assert states([first, behind, new]) == ["ready", "blocked", "blocked"]
    run_jobs()
    assert (done, row(old).outcome) == ([1, 3, 4], "cancelled")


def test_the_first_of_a_call_may_be_left_out() -> None:
    """Its key is taken by a job of no sequence, so the next of its sequence begins."""
    free.using(unique="k", delay=3600).register(0)
    Job.objects.update(name="sequences.step")
    ids = register_many([step.using(unique="k", sequence="s").bind(1), step.using(sequence="s").bind(2)])
    assert states(ids) == ["ready", "ready"]


# Locks


def test_two_registrations_at_once_are_in_the_order_of_their_commits(
    background: Background, other: RawDatabase
) -> None:
    pid = connection.connection and connection.connection.info.backend_pid
    with transaction.atomic():
        first = step.register(1)
        pid = connection.connection.info.backend_pid
        late = background(step.register, 2)
        wait_until(lambda: blocked_by_sequence(other, pid), 5, "the second one waits")
    second = late.result()
    assert first.pk < second.pk
    assert states([first, second]) == ["ready", "blocked"]


def test_an_end_beside_a_registration_forgets_nobody(
    raw: RawDatabase, background: Background, other: RawDatabase
) -> None:
    """The registration holds the lock, and has seen the one that ends now."""
    step.register(1)
    taken = claim(raw)
    with transaction.atomic():
        second = step.register(2)
        pid = connection.connection.info.backend_pid
        ended = background(end, raw, taken)
        wait_until(lambda: blocked_by_sequence(other, pid), 5, "the end waits")
    assert ended.result() == [second.pk]


def test_a_worker_learns_which_ends_have_to_wait(raw: RawDatabase) -> None:
    step.register(1)
    other_sequence = step.register(1, customer=2)
    taken = claim(raw, 2)
    with transaction.atomic():
        step.register(2)
        with raw.transaction():
            found = gates.list_locked_gates(raw, taken.ids)
    assert [number < 0 for numbers in found.values() for number in numbers] == [True]
    assert other_sequence.pk not in found
    with raw.transaction():
        assert gates.list_locked_gates(raw, taken.ids) == {}


def test_one_that_is_locked_when_it_gets_the_turn_is_due(raw: RawDatabase, other: RawDatabase) -> None:
    _, second, third = (step.register(n) for n in (1, 2, 3))
    taken = claim(raw)
    other.lock(second.pk)
    assert end(raw, taken) == []
    assert Gate.objects.get(pk=second.pk).due
    Recount()(raw)
    assert states([second, third]) == ["blocked", "blocked"]
    other.rollback()
    assert open_due_gates(raw) == 1
    assert states([second, third]) == ["ready", "blocked"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_stale_snapshot_is_refused(level: str) -> None:
    first = step.register(1)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        with pytest.raises(InvalidJob, match="READ COMMITTED"):
            step.register(2)
        with pytest.raises(InvalidJob, match="READ COMMITTED"):
            step.register_many([(2,), (3,)])
    assert list(Job.objects.values_list("pk", flat=True)) == [first.pk]


def test_the_recount_lets_a_sequence_go_on_that_stands_still(raw: RawDatabase) -> None:
    """As after a row that somebody has deleted."""
    first, second = step.register(1), step.register(2)
    Job.objects.filter(pk=str(first.pk))._raw_delete("default")
    assert stuck() == [("customer:1", second.pk)]
    assert Recount()(raw) == 1
    assert row(second).state == "ready"


@pytest.mark.parametrize("in_batch", [False, True])
def test_a_call_may_have_jobs_of_sequences_beside_jobs_that_need_others(in_batch: bool) -> None:
    """Each has one gate, and runs."""
    needed, first = free.register(1), step.register(1)
    calls = [free.using(after=needed).bind(2), step.bind(2), free.bind(3)]
    if in_batch:
        with Batch("mixed") as batch:
            batch.add_many(calls)
    else:
        register_many(calls)
    waiting = Job.objects.filter(hold="blocked").values_list("pk", flat=True)
    assert set(Gate.objects.values_list("job_id", flat=True)) >= set(waiting)
    assert len(waiting) >= 2, first
    run_jobs()
    assert set(Job.objects.values_list("outcome", flat=True)) == {"succeeded"}


# Bad input


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: step.using(after=1), "after and sequence exclude each other"),
        (lambda: step.using(bypass=True), "sequence and bypass exclude each other"),
        (lambda: free.using(sequence=InSequence(on_abandon="skip")), "there is none: pass Sequence"),
        (lambda: step.using(sequence=""), "sequence must be 1 to 200 printable characters"),
        (lambda: step.schedule("0 7 * * *", name="s").register(1), "takes no place in a sequence"),
        (lambda: Batch(settled=step.bind(1)).open(), "two orders could wait for each other"),
    ],
)
def test_what_does_not_go_together_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        make()
    assert not Job.objects.exists()


def test_a_node_of_a_flow_takes_no_sequence() -> None:
    flow = Flow()
    flow.add(step.bind(1))
    with pytest.raises(InvalidJob, match="two orders could wait for each other"):
        flow.register()


@pytest.mark.parametrize("given", [{}, {"on_abandon": "stop"}, {"name": 5}])
def test_a_sequence_says_what_is_wrong(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Sequence needs a name|on_abandon must be|name must be"):
        InSequence(**given)
