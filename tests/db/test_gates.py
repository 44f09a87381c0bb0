"""Gates: whose ends count where, which rule they meet, and what happens if two transactions meet at one."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

import pytest
from django.db import connection, transaction

from django_pgjobs import Batch, job, register_many, sql
from django_pgjobs.ends import kinds
from django_pgjobs.exceptions import InvalidJob, OldWorkers
from django_pgjobs.inspection import why
from django_pgjobs.maintenance.gates import Recount
from django_pgjobs.models import Heartbeat, Job
from django_pgjobs.models.gates import Gate, Link
from django_pgjobs.states import Rule
from django_pgjobs.store import finalising, gates, keeping
from django_pgjobs.store.gates import NewGate, Opened, is_met
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_db import AUTHOR, FAILURE, Background, Claimed, RawDatabase, blocked_by, claim, wait_until
from tests.plugins.sabotage import line_id, lines_of, sabotage

pytestmark = pytest.mark.usefixtures("committed")

OUTCOMES = ("succeeded", "abandoned", "cancelled")
GUARD = "j.flow & 7 = 0"
GUARDED = (
    "finalise_success",
    "finalise_success_fast",
    "finalise_success_keyed",
    "finalise_end",
)
WRITERS = re.compile(r"\bSET (?:[^;]*,\s+)?(?:outcome = (?!NULL)|\(outcome, )")


@job(name="gates.plain", max_attempts=1)
def plain(outcome: str = "succeeded") -> None:
    if outcome == "abandoned":
        raise ValueError("it fails")


failing: set[str] = set()


@job(name="gates.sometimes", max_attempts=1)
def sometimes() -> None:
    if failing:
        raise ValueError("not yet")


@job(name="gates.waits", max_attempts=1)
def waits() -> None: ...


def end(db: RawDatabase, taken: Claimed, outcome: str = "", *, remember: bool = False) -> list[Opened]:
    """End claimed jobs as a worker does, and what waits for them with them."""
    ends = taken.ends(outcome=outcome, failure=FAILURE if outcome else None)
    with db.transaction():
        recorded, opened = kinds.write_counted(db, ends, AUTHOR, remember=remember, lock_seconds=5)
    assert set(recorded) == set(taken.ids)
    return opened


def row(job_id: int) -> Job:
    return Job.objects.get(pk=job_id)


# Rules


@pytest.mark.parametrize(("rule", "outcome"), list(product(Rule, OUTCOMES)))
def test_an_end_is_met_or_not_before_and_after_the_registration(raw: RawDatabase, rule: Rule, outcome: str) -> None:
    """SQL and Python judge alike; what is not needed is cancelled, with the reason, and never begins."""
    parent = plain.register()
    early = waits.using(after=parent, when=rule.value).register()
    assert (early.state, early.hold) == ("blocked", "blocked")
    end(raw, claim(raw), "" if outcome == "succeeded" else outcome)
    late = waits.using(after=[parent], when=rule.value).register()
    met = is_met(rule, outcome)
    for each in (row(early.pk), late):
        assert (each.hold, each.ending) == (None, None if met else "cancelled")
        assert met == (each.cancel_by == "")
        if not met:
            assert re.search(rf"\b{parent.pk}\b", each.cancel_reason)
    run_jobs()
    assert {row(early.pk).outcome, row(late.pk).outcome} == {"succeeded" if met else "cancelled"}


def test_a_job_waits_for_all_that_it_needs(raw: RawDatabase) -> None:
    parents = [plain.register() for _ in range(3)]
    child = waits.using(after=parents).register()
    for left in (2, 1, 0):
        assert row(child.pk).state == "blocked"
        reason = why.of(child.pk, "default")
        assert reason.code == "blocked_by_jobs"
        assert f"{left + 1} of the 3 jobs" in reason.text
        end(raw, claim(raw))
        assert Gate.objects.get(pk=child.pk).pending == left
    assert row(child.pk).state == "ready"
    assert [link.rule for link in Link.objects.filter(job=child.pk)] == ["succeeded"] * 3


def test_the_first_end_that_is_not_met_is_enough(raw: RawDatabase) -> None:
    parents = [plain.register() for _ in range(3)]
    child = waits.using(after=parents).register()
    opened = end(raw, claim(raw), "abandoned")
    assert [job.id for job in opened] == [child.pk]
    assert row(child.pk).cancel_reason == f"It needs job {parents[0].pk}, which was abandoned."


def test_what_is_cancelled_cancels_what_needs_it() -> None:
    """Level by level, each by its own end."""
    first = plain.register("abandoned")
    chain = [first]
    for _ in range(4):
        chain.append(waits.using(after=chain[-1]).register())
    run_jobs()
    assert [row(each.pk).outcome for each in chain] == ["abandoned", "cancelled", "cancelled", "cancelled", "cancelled"]


def test_a_delay_counts_from_the_registration(raw: RawDatabase) -> None:
    parent = plain.register()
    child = waits.using(after=parent, delay=3600).register()
    end(raw, claim(raw))
    assert row(child.pk).label == "scheduled"
    assert row(child.pk).run_at == child.run_at


def test_many_rows_may_need_the_same(raw: RawDatabase) -> None:
    parent = plain.register()
    ids = waits.using(after=parent).register_many([() for _ in range(20)])
    mixed = register_many([plain.bind(), waits.using(after=parent).bind()])
    assert {row(each).state for each in [*ids, mixed[1]]} == {"blocked"}
    assert row(mixed[0]).state == "ready"
    assert len(end(raw, claim(raw))) == 21


# Bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"after": "5"}, "after takes jobs or their ids, not '5'"),
        ({"after": [True]}, "after takes jobs or their ids, not True"),
        ({"after": [0]}, "after takes jobs or their ids, not 0"),
        ({"after": [2**63]}, "after takes jobs or their ids"),
        ({"when": "failed"}, "when says which end of other jobs"),
        ({"after": 5, "when": "done"}, "when must be 'succeeded', 'settled', 'failed', not 'done'"),
        ({"after": 5, "bypass": True}, "after and bypass exclude each other"),
    ],
)
def test_bad_options_are_refused_with_their_reason(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        waits.using(**options)  # type: ignore[arg-type]


def test_a_job_that_does_not_exist_cannot_be_needed_and_the_transaction_goes_on() -> None:
    known = plain.register()
    with transaction.atomic():
        with pytest.raises(InvalidJob, match="there is no job 9000000 in database 'default', nor 1 more"):
            waits.using(after=[known, 9_000_000, 9_000_001]).register()
        other = plain.register()
    assert Job.objects.get(pk=other.pk).state == "ready"
    assert not Job.objects.filter(name="gates.waits").exists()


def test_more_jobs_than_the_setting_allows_cannot_be_needed(settings: object) -> None:
    settings.PGJOBS = {"BOUNDS": {"needs": 2}}  # type: ignore[attr-defined]
    with pytest.raises(InvalidJob, match=r"after takes at most 2 jobs \(BOUNDS\['needs'\]\), not 3"):
        waits.using(after=[1, 2, 3])


def test_older_workers_keep_it_from_being_stored() -> None:
    parent = plain.register()
    Heartbeat.objects.create(
        name="an\nold one", host="h", pid=1, processes=1, threads=1, async_slots=0, version="0", protocol=0
    )
    with transaction.atomic():
        with pytest.raises(OldWorkers) as error:
            waits.using(after=parent).register()
        plain.register()
    assert error.value.names == ["an old one"]
    assert "an old one" in str(error.value)
    assert not Gate.objects.exists()


# Who writes an end


@pytest.mark.parametrize("name", GUARDED)
def test_an_end_that_counts_is_not_written_without_being_counted(raw: RawDatabase, name: str) -> None:
    taken = needed(raw)
    assert written(raw, name, taken) == []
    assert row(taken.ids[0]).outcome is None


@pytest.mark.parametrize(("name", "line"), lines_of(GUARD, GUARDED), ids=line_id)
def test_without_its_guard_the_end_would_be_lost_for_the_gate(
    raw: RawDatabase, name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = needed(raw)
    sabotage(monkeypatch, name, line)
    assert written(raw, name, taken) == taken.ids
    assert Gate.objects.get().pending == 1


def needed(raw: RawDatabase) -> Claimed:
    """A claimed job that another needs."""
    waits.using(after=plain.using(idempotency_key="once").register()).register()
    return claim(raw)


def written(raw: RawDatabase, name: str, taken: Claimed) -> list[int]:
    remember = "keyed" in name
    if name == "finalise_end":
        return finalising.finalise_end(raw, taken.ends(outcome="abandoned"), AUTHOR)
    if name.endswith("_fast"):
        return finalising.finalise_success_fast(raw, taken.ends(), AUTHOR)
    return finalising.finalise_success(raw, taken.ends(), AUTHOR, remember=remember)


def test_every_statement_that_writes_an_outcome_asks_whether_it_counts() -> None:
    """One path ends the jobs of a flow: the others leave them to it."""
    texts = {name: sql.source(name) for name in sql.names()}
    updates = {name for name, text in texts.items() if WRITERS.search(text)}
    assert {*GUARDED, "end_atomic", "cancel_jobs", "abandon_jobs", "expire_jobs", "rescue_jobs"} <= updates
    # Who calls these asks, under the same lock; the last one ends all that could count.
    without = {name for name in updates if "flow & 7" not in texts[name]}
    assert without == {"end_atomic", "revert_jobs", "cancel_copied"}


def test_an_end_counts_once_however_often_it_is_written(raw: RawDatabase) -> None:
    parent = plain.register()
    child = waits.using(after=[parent, plain.register()]).register()
    taken = claim(raw)
    end(raw, taken)
    with raw.transaction():
        assert kinds.write_counted(raw, taken.ends(), AUTHOR) == ([], [])
    gate = Gate.objects.get(pk=child.pk)
    assert (gate.pending, gate.succeeded) == (1, 1)


def test_a_rolled_back_end_counts_nowhere(raw: RawDatabase) -> None:
    child = waits.using(after=plain.register()).register()
    taken = claim(raw)
    raw.query("BEGIN")
    kinds.write_counted(raw, taken.ends(), AUTHOR)
    raw.query("ROLLBACK")
    assert (Gate.objects.get(pk=child.pk).pending, row(taken.ids[0]).outcome) == (1, None)


@pytest.mark.parametrize("action", ["cancel", "abandon"])
def test_an_operator_leaves_the_end_of_a_needed_job_to_a_worker(action: str) -> None:
    parent = plain.register()
    child = waits.using(after=parent, when="settled").register()
    getattr(parent, action)()
    parent.refresh_from_db()
    assert (parent.outcome, parent.ending) == (None, f"{action}ed" if action == "abandon" else "cancelled")
    run_jobs()
    assert (row(parent.pk).outcome, row(child.pk).outcome) == (row(parent.pk).ending, "succeeded")


def test_an_expiry_leaves_the_end_of_a_needed_job_to_a_worker(raw: RawDatabase) -> None:
    parent = plain.using(expires=0.001).register()
    child = waits.using(after=parent, when="failed").register()
    names = ["gates.plain"]
    wait_until(
        lambda: keeping.expire_jobs(raw, after="-infinity", limit=10, reason="", without_on_cancel=names).jobs,
        10,
        "it expires",
    )
    assert (row(parent.pk).outcome, row(parent.pk).ending) == (None, "cancelled")
    run_jobs()
    assert row(child.pk).outcome == "succeeded"


def test_a_rescue_leaves_the_end_of_a_needed_job_to_a_worker(raw: RawDatabase) -> None:
    parent = plain.register()
    child = waits.using(after=parent, when="failed").register()
    claim(raw, lease=0.0)
    rescued = keeping.rescue_jobs(
        raw, limit=5, quiet_seconds=0, grace_seconds=0, stale_seconds=60, without_on_cancel=["gates.plain"],
        without_on_abandon=["gates.plain"],
    )  # fmt: skip
    assert [(job.outcome, job.ending) for job in rescued] == [("", "abandoned")]
    run_jobs()
    assert (row(parent.pk).outcome, row(child.pk).outcome) == ("abandoned", "succeeded")


# Two transactions


def test_an_end_that_is_being_written_is_waited_for(
    raw: RawDatabase, other: RawDatabase, background: Background
) -> None:
    """The registration comes second: it sees the end."""
    parent = plain.register()
    taken = claim(raw)
    ends = taken.ends()
    finalising.finalise_success(other, ends, AUTHOR, settled=True)
    child = background(waits.using(after=parent).register)
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the registration waits for the end")
    other.commit()
    assert child.result(10).state == "ready"


def test_a_registration_that_is_open_keeps_the_end_waiting(raw: RawDatabase, background: Background) -> None:
    """The end comes second: it is counted."""
    parent = plain.register()
    taken = claim(raw)
    with transaction.atomic():
        child = waits.using(after=parent).register()
        assert background(finalising.finalise_success, raw, taken.ends(), AUTHOR).result(10) == []
    assert finalising.finalise_success(raw, taken.ends(), AUTHOR) == []
    assert finalising.read_fences(raw, taken.fences())[parent.pk].counted
    assert [job.id for job in end(raw, taken)] == [child.pk]


def test_two_ends_of_one_gate_wait_for_each_other_and_count_both(
    raw: RawDatabase, other: RawDatabase, background: Background, db_connection: Callable[..., RawDatabase]
) -> None:
    """The second reads what the first has written, whatever its snapshot says."""
    parents = [plain.register(), plain.register()]
    child = waits.using(after=parents).register()
    first, second = claim(raw), claim(raw)
    kinds.write_counted(other, first.ends(), AUTHOR)
    probe = db_connection()
    waiting = background(end, raw, second)
    wait_until(lambda: blocked_by(probe, other.pid), 10, "the second end waits for the gate")
    other.commit()
    assert [job.id for job in waiting.result(10)] == [child.pk]
    gate = Gate.objects.get(pk=child.pk)
    assert (gate.pending, gate.succeeded, gate.opened_at is not None) == (0, 2, True)


def test_a_gate_that_is_locked_for_long_is_given_up(raw: RawDatabase, other: RawDatabase) -> None:
    child = waits.using(after=plain.register()).register()
    taken = claim(raw)
    other.query("SELECT job_id FROM pgjobs_gate WHERE job_id = %s FOR NO KEY UPDATE", [child.pk])
    with pytest.raises(Exception, match="lock timeout"), raw.transaction():
        kinds.write_counted(raw, taken.ends(), AUTHOR, lock_seconds=0.05)
    assert row(taken.ids[0]).outcome is None
    assert gates.list_locked_gates(raw, taken.ids) == {taken.ids[0]: {child.pk}}
    other.rollback()
    assert gates.list_locked_gates(raw, taken.ids) == {}
    with other.transaction():
        gates.list_locked_gates(other, taken.ids)
        assert gates.list_locked_gates(raw, taken.ids) == {}, "another worker's look is no lock"
    assert len(end(raw, taken)) == 1


# Recount


def test_a_recount_corrects_a_gate_that_somebody_has_falsified(
    raw: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    parents = [plain.register(), plain.register()]
    child = waits.using(after=parents).register()
    end(raw, claim(raw))
    Gate.objects.update(pending=7, succeeded=0, unmet=3)
    assert Recount()(raw) == 1
    gate = Gate.objects.get(pk=child.pk)
    assert (gate.pending, gate.succeeded, gate.unmet) == (1, 1, 0)
    assert f"gate was wrong and is corrected job={child.pk} pending=1 was=7" in caplog.text
    assert Recount()(raw) == 0


def test_a_recount_counts_deleted_jobs_as_cancelled_and_lets_the_job_end(raw: RawDatabase) -> None:
    parent = plain.register()
    child = waits.using(after=parent).register()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgjobs_job WHERE id = %s", [parent.pk])
    assert Recount()(raw) == 1
    assert row(child.pk).ending == "cancelled"
    run_jobs()
    assert row(child.pk).outcome == "cancelled"


def test_a_recount_leaves_a_locked_gate_alone(raw: RawDatabase, other: RawDatabase) -> None:
    child = waits.using(after=plain.register()).register()
    Gate.objects.update(pending=7)
    other.query("SELECT job_id FROM pgjobs_gate WHERE job_id = %s FOR UPDATE", [child.pk])
    assert Recount()(raw) == 0
    other.rollback()
    assert Recount()(raw) == 1


# Retry


def test_a_retry_revives_what_was_not_needed_level_by_level() -> None:
    failing.add("now")
    first = sometimes.register()
    chain = [first]
    for _ in range(3):
        chain.append(waits.using(after=chain[-1]).register())
    run_jobs()
    assert [row(each.pk).outcome for each in chain[1:]] == ["cancelled"] * 3
    failing.clear()
    row(first.pk).retry()
    assert [row(each.pk).state for each in chain] == ["ready", "blocked", "blocked", "blocked"]
    run_jobs()
    assert [row(each.pk).outcome for each in chain] == ["succeeded"] * 4


def test_a_retry_of_all_at_once_keeps_their_order() -> None:
    """What waits for a retried job waits again, though it was asked for, too."""
    first = plain.register("abandoned")
    second = waits.using(after=first).register()
    run_jobs()
    steered = Job.objects.filter(pk__in=[first.pk, second.pk]).retry()
    assert steered.changed == 2
    assert (row(first.pk).state, row(second.pk).state) == ("ready", "blocked")


def test_what_still_lacks_another_is_not_revived() -> None:
    both = [plain.register("abandoned"), plain.register("abandoned")]
    child = waits.using(after=both).register()
    run_jobs()
    row(both[0].pk).retry()
    assert row(child.pk).state == "cancelled"
    assert Gate.objects.get(pk=child.pk).unmet == 1
    row(both[1].pk).retry()
    assert row(child.pk).state == "blocked"
    assert Gate.objects.get(pk=child.pk).pending == 2


def test_a_job_that_was_not_needed_runs_if_an_operator_wants_it() -> None:
    parent = plain.register("abandoned")
    child = waits.using(after=parent).register()
    run_jobs()
    row(child.pk).retry(reason="all the same")
    run_jobs()
    assert row(child.pk).outcome == "succeeded"


def test_a_gate_of_ends_that_came_before_counts_them() -> None:
    rules = {1: Rule.SUCCEEDED, 2: Rule.FAILED, 3: Rule.SETTLED}
    gate = NewGate.behind(5, rules, {1: "abandoned", 2: None, 3: "cancelled"})
    assert (gate.pending, gate.total, gate.unmet, gate.abandoned, gate.cancelled) == (1, 3, 1, 1, 1)


# Successes of members are counted by their batch


def counting_ground(raw: RawDatabase) -> Claimed:
    """Two batches of two, one member of the second needed by another job, too; beside them a needed and a free job."""
    with Batch("first") as first:
        first.add_many(plain.bind() for _ in range(2))
    with Batch("second") as second:
        second.add_many(plain.bind() for _ in range(2))
    needed = Job.objects.filter(parent=second.job).latest("pk")
    waits.using(after=[needed, plain.register()]).register()
    plain.register()
    return claim(raw, 6)


def waiting() -> list[tuple[int, int, int]]:
    """What is pending, has succeeded and is not met, of each gate."""
    return list(Gate.objects.order_by("job_id").values_list("pending", "succeeded", "unmet"))


@pytest.mark.parametrize(("fast", "remember"), [(False, False), (False, True), (True, False)])
def test_successes_of_many_gates_count_in_each_however_they_are_written(
    raw: RawDatabase, *, fast: bool, remember: bool
) -> None:
    """Only ends that count elsewhere are read once more; a recount finds nothing to correct."""
    taken = counting_ground(raw)
    with raw.transaction():
        recorded, opened = kinds.write_counted(raw, taken.ends(), AUTHOR, remember=remember, fast=fast, lock_seconds=5)
    assert sorted(recorded) == sorted(taken.ids)
    assert len(opened) == len(waiting()) == 3
    assert waiting() == [(0, 2, 0), (0, 2, 0), (0, 2, 0)]
    with raw.transaction():
        assert gates.recount_gates(raw, list(Gate.objects.values_list("job_id", flat=True))) == []


@pytest.mark.parametrize(
    ("name", "line", "instead"),
    [
        ("finalise_success", "RETURNING j.id, j.waited, CASE WHEN j.flow & 7 = 1 THEN j.parent_id END AS gate",
         "RETURNING j.id, j.waited, j.parent_id AS gate"),
        ("settle_ends", "FROM unnest(%(gates)s::bigint[], %(jobs)s::integer[]) AS members (gate, jobs)",
         "FROM unnest(%(gates)s::bigint[], %(jobs)s::integer[]) AS members (gate, jobs) WHERE false"),
    ],
    ids=["counts elsewhere, too", "is not counted"],
)  # fmt: skip
def test_without_that_an_end_would_be_lost_for_a_gate(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, name: str, line: str, instead: str
) -> None:
    """The sabotaged twins: a job that waits for a member never starts, and batches never end."""
    taken = counting_ground(raw)
    sabotage(monkeypatch, name, line, instead)
    end(raw, taken)
    assert any(pending for pending, _, _ in waiting())


def test_a_locked_member_keeps_the_fast_form_from_counting_anything(raw: RawDatabase, other: RawDatabase) -> None:
    taken = counting_ground(raw)
    before = waiting()
    other.query("SELECT FROM pgjobs_job WHERE id = %s FOR UPDATE", [taken.ids[1]])
    with pytest.raises(kinds.RowsLocked), raw.transaction():
        kinds.write_counted(raw, taken.ends(), AUTHOR, fast=True, lock_seconds=5)
    assert waiting() == before
    assert not Job.objects.exclude(outcome=None).exists()
