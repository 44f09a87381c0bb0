"""How attempts end: each outcome, what it leaves on the row and in the history, and what it must not touch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from django.utils import timezone

from django_pgjobs.models import Attempt, Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.states import FlowFlag
from django_pgjobs.store import finalising, keeping, memos, steering
from django_pgjobs.store.database import Database
from django_pgjobs.store.finalising import End, ReleasedJob
from django_pgjobs.store.memos import NewMemo
from tests.plugins.fix_db import (
    AUTHOR,
    FAILURE,
    WORKER,
    Claimed,
    RawDatabase,
    claim,
    job,
    patience,
    register,
    wait_until,
)
from tests.plugins.sabotage import sabotage

SUMMARY = "Declined: card refused ← OSError: line is down"


def claimed_one(raw: RawDatabase, **fields: Any) -> Claimed:
    register(**fields)
    return claim(raw)


def seconds_ahead(raw: RawDatabase, job_id: int) -> float:
    text = "SELECT extract(epoch FROM run_at - statement_timestamp())::float8 FROM pgjobs_job WHERE id = %s"
    return float(raw.value(text, [job_id]))


def test_a_success_ends_the_job_with_its_result(raw: RawDatabase) -> None:
    """C31: the value is stored; the claim stays on the row, so a repeated end knows itself."""
    claimed = claimed_one(raw)
    [one] = claimed.ids
    assert finalising.finalise_success(raw, claimed.ends(result='{"total": 7}', seconds=1.5), AUTHOR) == [one]
    ended = job(one)
    assert (ended.state, ended.outcome, ended.result, ended.duration_seconds) == (
        "succeeded",
        "succeeded",
        {"total": 7},
        1.5,
    )
    assert (ended.worker, ended.claim_id, ended.attempt) == (WORKER, claimed.claim_id, 1)
    assert ended.finished_at is not None
    assert not Attempt.objects.exists()


def test_a_success_without_a_result_keeps_none(raw: RawDatabase) -> None:
    claimed = claimed_one(raw)
    finalising.finalise_success(raw, claimed.ends(), AUTHOR)
    assert raw.value("SELECT result IS NULL FROM pgjobs_job") is True


def test_a_retry_makes_the_job_ready_later_and_keeps_what_went_wrong(raw: RawDatabase) -> None:
    """P24, P25, P27, C35, C53: unlocked, due after the delay by the database's clock, all causes in the history."""
    claimed = claimed_one(raw)
    [one] = claimed.ids
    Job.objects.filter(pk=one).update(progress={"n": 1}, release_requested_at=timezone.now())
    [moved] = finalising.finalise_retry(
        raw, claimed.ends(delay=60.0, seconds=2.0, cause="failed", failure=FAILURE), AUTHOR
    )
    again = job(one)
    assert (moved.id, moved.queue, moved.priority) == (one, "default", 0)
    assert seconds_ahead(raw, one) == pytest.approx(60, abs=5)
    assert (again.state, again.attempt, again.error, again.duration_seconds) == ("ready", 1, SUMMARY, 2.0)
    assert (again.claim_id, again.overdue_at, again.progress, again.release_requested_at) == (None,) * 4
    kept = Attempt.objects.get()
    assert (kept.job_id, kept.claim_id, kept.number, kept.cause) == (one, claimed.claim_id, 1, "failed")
    assert (kept.worker, kept.worker_name, kept.release) == (WORKER, "test worker", "release 1")
    assert (kept.exception, kept.message, kept.duration_seconds) == ("shop.errors.Declined", "card refused", 2.0)
    assert kept.chain == [["shop.errors.Declined", "card refused"], ["builtins.OSError", "line is down"]]
    assert kept.traceback == FAILURE.traceback
    assert kept.started_at is not None
    assert (kept.ended_at - kept.started_at).total_seconds() == pytest.approx(2.0)


def test_attempts_are_numbered_one_after_the_other(raw: RawDatabase) -> None:
    """C33, P23: three starts, three rows of history."""
    [one] = register()
    for _ in range(3):
        finalising.finalise_retry(raw, claim(raw).ends(delay=0.0, cause="failed", seconds=0.0, failure=FAILURE), AUTHOR)
    assert list(Attempt.objects.order_by("number").values_list("job_id", "number")) == [(one, 1), (one, 2), (one, 3)]


def test_a_snooze_gives_the_attempt_back(raw: RawDatabase) -> None:
    """It comes back later, uncharged, without a row in the history."""
    claimed = claimed_one(raw)
    [one] = claimed.ids
    [moved] = finalising.finalise_snooze(raw, claimed.ends(delay=30.0))
    assert moved.id == one
    assert (job(one).state, job(one).attempt, job(one).claim_id) == ("ready", 0, None)
    assert seconds_ahead(raw, one) == pytest.approx(30, abs=5)
    assert not Attempt.objects.exists()


@pytest.mark.parametrize("outcome", ["abandoned", "cancelled"])
def test_an_end_keeps_the_last_error_and_its_attempt(raw: RawDatabase, outcome: str) -> None:
    """C37, P26: terminal, the error saved, the row kept for the admin."""
    claimed = claimed_one(raw)
    [one] = claimed.ids
    ends = claimed.ends(outcome=outcome, cause="failed", reason="no more", seconds=0.5, failure=FAILURE)
    assert finalising.finalise_end(raw, ends, AUTHOR) == [one]
    ended = job(one)
    assert (ended.state, ended.error, ended.cancel_reason, ended.worker) == (outcome, SUMMARY, "no more", WORKER)
    kept = Attempt.objects.get()
    assert (kept.number, kept.cause, kept.message) == (1, "failed", "card refused")


def test_an_end_without_a_failure_adds_no_attempt_and_keeps_the_error_before(raw: RawDatabase) -> None:
    """C17: attempts are exhausted, the body did not run."""
    claimed = claimed_one(raw)
    [one] = claimed.ids
    Job.objects.filter(pk=one).update(
        error="the one before", cancel_reason="the operator's words", duration_seconds=3.0
    )
    finalising.finalise_end(raw, claimed.ends(outcome="abandoned", reason="ours"), AUTHOR)
    ended = job(one)
    assert (ended.error, ended.cancel_reason, ended.duration_seconds) == ("the one before", "the operator's words", 3.0)
    assert not Attempt.objects.exists()


def test_ending_leaves_only_the_callback_under_the_same_claim(raw: RawDatabase) -> None:
    """X8: written before the callback starts, so that a crash in it cannot run the body again."""
    claimed = claimed_one(raw, max_attempts=1)
    [one] = claimed.ids
    ends = claimed.ends(outcome="abandoned", cause="failed", seconds=1.0, failure=FAILURE)
    assert finalising.mark_ending(raw, ends, AUTHOR, allowance_seconds=15.0) == [one]
    marked = job(one)
    assert (marked.state, marked.ending, marked.ending_attempt, marked.attempt) == ("running", "abandoned", 1, 1)
    assert (marked.claim_id, marked.error) == (claimed.claim_id, SUMMARY)
    left = "SELECT extract(epoch FROM overdue_at - statement_timestamp())::float8 FROM pgjobs_job"
    assert raw.value(left) == pytest.approx(15, abs=5)
    assert Attempt.objects.count() == 1
    assert finalising.finalise_end(raw, claimed.ends(outcome="abandoned", cause="failed", failure=FAILURE), AUTHOR) == [
        one
    ]
    assert Attempt.objects.count() == 1


def test_a_released_callback_is_claimed_again_as_a_callback(raw: RawDatabase) -> None:
    """Its start is given back, the attempts of the body are not; the history keeps the number of the body."""
    claimed = claimed_one(raw, max_attempts=1)
    [one] = claimed.ids
    finalising.mark_ending(raw, claimed.ends(outcome="cancelled"), AUTHOR, allowance_seconds=15.0)
    finalising.release_jobs(raw, claimed.ends(cause="released", seconds=1.0), AUTHOR)
    assert (job(one).attempt, job(one).ending, job(one).ending_attempt) == (1, "cancelled", 0)
    assert Attempt.objects.get().number == 1
    [taken] = claim(raw).jobs
    assert (taken.attempt, taken.ending, taken.ending_attempt) == (1, "cancelled", 1)


def test_a_release_without_a_cause_leaves_the_job_as_it_was(raw: RawDatabase) -> None:
    """It had not started: same place in the queue, attempt given back, no history."""
    [one] = register()
    before = raw.row(one)
    claimed = claim(raw)
    [back] = finalising.release_jobs(raw, claimed.ends(), AUTHOR)
    assert back == ReleasedJob(one, "default", 0, times=0)
    after = raw.row(one)
    assert after["ready_at"] is not None, "it counts as late from now on"
    assert after == {**before, "claimed_at": after["claimed_at"], "ready_at": after["ready_at"]}
    assert not Attempt.objects.exists()


def test_a_release_of_what_had_started_is_in_the_history(raw: RawDatabase) -> None:
    claimed = claimed_one(raw)
    finalising.release_jobs(raw, claimed.ends(cause="released", seconds=4.0, failure=FAILURE), AUTHOR)
    kept = Attempt.objects.get()
    assert (kept.number, kept.cause, kept.message, kept.duration_seconds) == (1, "released", "card refused", 4.0)


def test_releases_of_what_had_started_are_counted(raw: RawDatabase) -> None:
    """What never started counts for nothing, and another cause neither."""
    register()
    times = []
    for cause in ("released", None, "released", "failed", "released"):
        claimed = claim(raw)
        if cause == "failed":
            finalising.finalise_retry(raw, claimed.ends(cause=cause, failure=FAILURE), AUTHOR)
        else:
            times += [back.times for back in finalising.release_jobs(raw, claimed.ends(cause=cause), AUTHOR)]
    assert times == [1, 0, 2, 3]


def test_parking_holds_the_job_for_other_code_and_gives_the_attempt_back(raw: RawDatabase) -> None:
    """P13, P14: not charged, the reason kept, never looped."""
    claimed = claimed_one(raw)
    [one] = claimed.ids
    assert finalising.park_jobs(raw, claimed.ends(reason="There is no job 'test.job'.", fingerprint="abc")) == [one]
    held = job(one)
    assert (held.state, held.attempt, held.hold_reason) == ("parked", 0, "There is no job 'test.job'.")
    assert claim(raw).ids == []


def test_parked_jobs_go_on_by_other_code_than_parked_them(raw: RawDatabase) -> None:
    register(3)
    parked = claim(raw, 3)
    finalising.park_jobs(raw, parked.ends(fingerprint="old"))
    assert keeping.unpark_jobs(raw, {"test.job": "old", "other.job": "new"}, limit=10) == []
    first, then = ([row.id for row in keeping.unpark_jobs(raw, {"test.job": "new"}, limit=2)] for _ in range(2))
    assert (len(first), len(then), {*first, *then}) == (2, 1, set(parked.ids))
    assert sorted(claim(raw, 5).ids) == parked.ids


def test_progress_is_kept_while_the_claim_holds(raw: RawDatabase) -> None:
    claimed = claimed_one(raw)
    [one] = claimed.ids
    assert finalising.write_progress(raw, [(one, str(claimed.claim_id), {"progress": '{"n": 3, "total": 9}'})]) == [one]
    assert job(one).progress == {"n": 3, "total": 9}


REQUEUE: dict[str, Callable[[Database, list[End]], Sequence[Any]]] = {
    "finalise_retry": lambda db, ends: finalising.finalise_retry(db, ends, AUTHOR),
    "finalise_snooze": finalising.finalise_snooze,
    "release_jobs": lambda db, ends: finalising.release_jobs(db, ends, AUTHOR),
    "park_jobs": finalising.park_jobs,
}


@pytest.mark.parametrize("name", REQUEUE)
def test_a_job_that_was_to_be_cancelled_does_not_go_back_into_the_queue(raw: RawDatabase, name: str) -> None:
    """A54, C46: the request that came meanwhile wins; the missing id tells the worker, which ends the job."""
    claimed = claimed_one(raw)
    [one] = claimed.ids
    steering.cancel_jobs(raw, [one], mode="ask", by="anna", reason="", with_callback=[])
    before = raw.row(one)
    ends = claimed.ends(delay=0.0, cause="failed", seconds=0.0, failure=FAILURE, reason="x")
    assert list(REQUEUE[name](raw, ends)) == []
    assert raw.row(one) == before
    assert not Attempt.objects.exists()
    assert finalising.read_fences(raw, claimed.fences())[one] == (one, True, False, None, False, True, True, False)


def test_a_success_after_a_request_to_cancel_is_a_success(raw: RawDatabase) -> None:
    """A54: a running job that was only asked, and made it."""
    claimed = claimed_one(raw)
    [one] = claimed.ids
    steering.cancel_jobs(raw, [one], mode="ask", by="", reason="", with_callback=[])
    assert finalising.finalise_success(raw, claimed.ends(), AUTHOR) == [one]
    assert job(one).state == "succeeded"


def test_a_job_that_ends_with_a_callback_left_goes_through_the_history_once(raw: RawDatabase) -> None:
    """One row per claim: marking writes it, the end that follows adds none."""
    claimed = claimed_one(raw)
    ends = claimed.ends(outcome="abandoned", cause="failed", seconds=1.0, failure=FAILURE)
    for _ in range(2):
        finalising.mark_ending(raw, ends, AUTHOR, allowance_seconds=1.0)
    finalising.finalise_end(raw, ends, AUTHOR)
    assert Attempt.objects.count() == 1


def test_a_batch_records_all_but_the_foreign_row(raw: RawDatabase) -> None:
    """P20, C55: one lost job does not affect the others."""
    register(5)
    claimed = claim(raw, 5)
    lost = claimed.ids[2]
    raw.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s", [lost])
    before = raw.row(lost)
    assert sorted(finalising.finalise_success(raw, claimed.ends(result='"ok"'), AUTHOR)) == [
        i for i in claimed.ids if i != lost
    ]
    assert raw.row(lost) == before


@pytest.mark.parametrize("name", ["finalise_success", *REQUEUE])
def test_a_batch_does_not_wait_for_a_locked_row(raw: RawDatabase, other: RawDatabase, name: str) -> None:
    """It is busy and tried again: not recorded now, and not lost either."""
    register(3)
    claimed = claim(raw, 3)
    busy = claimed.ids[1]
    other.lock(busy)
    raw.query(f"SET statement_timeout = '{patience(2)}s'")
    writes: dict[str, Any] = {
        "finalise_success": lambda db, ends: finalising.finalise_success(db, ends, AUTHOR),
        **REQUEUE,
    }
    ends = claimed.ends(delay=0.0, cause="failed", seconds=0.0, failure=FAILURE)
    first = [row if isinstance(row, int) else row[0] for row in writes[name](raw, ends)]
    assert sorted(first) == [claimed.ids[0], claimed.ids[2]]
    assert finalising.read_fences(raw, [(busy, str(claimed.claim_id))])[busy] == (
        busy,
        True,
        False,
        None,
        False,
        False,
        True,
        False,
    )
    other.rollback()
    assert [row if isinstance(row, int) else row[0] for row in writes[name](raw, ends[1:2])] == [busy]


def test_a_lost_answer_to_a_success_is_known_as_done(raw: RawDatabase) -> None:
    """The repetition touches nothing, and the row says that this claim ended it."""
    claimed = claimed_one(raw)
    [one] = claimed.ids
    finalising.finalise_success(raw, claimed.ends(result="1"), AUTHOR)
    before = raw.row(one)
    assert finalising.finalise_success(raw, claimed.ends(result="2"), AUTHOR) == []
    reading = finalising.read_fences(raw, claimed.fences())[one]
    assert (reading.ours, reading.ended) == (True, True)
    assert raw.row(one) == before


def test_a_lost_answer_to_a_retry_is_known_as_done_by_the_history(raw: RawDatabase) -> None:
    """The claim has left the row, even another may be on it; the history names the claim that failed."""
    claimed = claimed_one(raw)
    [one] = claimed.ids
    ends = claimed.ends(delay=0.0, cause="failed", seconds=0.0, failure=FAILURE)
    finalising.finalise_retry(raw, ends, AUTHOR)
    claim(raw)
    before = raw.row(one)
    assert finalising.finalise_retry(raw, ends, AUTHOR) == []
    reading = finalising.read_fences(raw, claimed.fences())[one]
    assert (reading.ours, reading.recorded) == (False, "failed")
    assert raw.row(one) == before
    assert Attempt.objects.count() == 1


def test_a_lost_answer_to_a_suspension_is_known_as_done_by_what_the_job_waits_for(raw: RawDatabase) -> None:
    """A step that has ended under the same claim says nothing of a suspension."""
    claimed = claimed_one(raw)
    [one] = claimed.ids
    memos.write_memo(raw, *claimed.fences()[0], NewMemo("pay", "step", "1", 0, 32))
    assert finalising.read_fences(raw, claimed.fences())[one].recorded is None
    later = '{"memo": "sleep", "kind": "sleep", "event": null, "delay": 60, "failures": 0, "progressed": true}'
    [end] = claimed.ends()
    memos.suspend_jobs(raw, [replace(end, columns=later)], AUTHOR)
    reading = finalising.read_fences(raw, claimed.fences())[one]
    assert (reading.ours, reading.recorded) == (False, "suspend")
    assert job(one).flow == FlowFlag.REMEMBERS


def test_a_lost_answer_to_marking_is_known_as_done(raw: RawDatabase) -> None:
    claimed = claimed_one(raw)
    [one] = claimed.ids
    finalising.mark_ending(
        raw, claimed.ends(outcome="abandoned", cause="failed", failure=FAILURE), AUTHOR, allowance_seconds=1
    )
    reading = finalising.read_fences(raw, claimed.fences())[one]
    assert reading == (one, True, False, "failed", True, False, True, False)


def test_a_ledger_row_goes_after_the_last_of_its_jobs(raw: RawDatabase) -> None:
    """Guarded: while one of its jobs still carries the claim, the lease must stay."""
    register(2)
    claimed = claim(raw, 2)
    first, second = claimed.ends()
    finalising.finalise_success(raw, [first], AUTHOR)
    assert finalising.delete_claims(raw, [str(claimed.claim_id)]) == 0
    finalising.release_jobs(raw, [second], AUTHOR)
    assert finalising.delete_claims(raw, [str(claimed.claim_id)]) == 1
    assert not Claim.objects.exists()


def test_an_uncommitted_end_keeps_its_ledger_row(raw: RawDatabase, other: RawDatabase) -> None:
    """The commit may still fail, and then nothing would be left to find the job by."""
    claimed = claimed_one(raw)
    finalising.finalise_success(other, claimed.ends(), AUTHOR)
    assert finalising.delete_claims(raw, [str(claimed.claim_id)]) == 0
    other.rollback()
    assert finalising.delete_claims(raw, [str(claimed.claim_id)]) == 0
    finalising.finalise_success(raw, claimed.ends(), AUTHOR)
    assert finalising.delete_claims(raw, [str(claimed.claim_id)]) == 1


def test_the_parts_of_a_claim_go_one_by_one(raw: RawDatabase) -> None:
    register(250)
    claimed = claim(raw, 250)
    first_part = set(Claim.objects.get(claim_id=claimed.claim_id, part=0).job_ids)
    finalising.finalise_success(raw, [end for end in claimed.ends() if end.id in first_part], AUTHOR)
    assert finalising.delete_claims(raw, [str(claimed.claim_id)]) == 1
    assert Claim.objects.get().part == 1


def test_all_leases_are_renewed_by_one_statement_that_touches_no_job(raw: RawDatabase, other: RawDatabase) -> None:
    """P16, P19, P20: answered while every job row is locked; a claim without a row was rescued."""
    register(4)
    claims = [claim(raw, 2), claim(raw, 2)]
    gone = "00000000-0000-4000-8000-00000000dead"
    other.lock(*claims[0].ids, *claims[1].ids)
    raw.query("UPDATE pgjobs_claim SET lease_expires_at = lease_expires_at - interval '1 hour'")
    raw.query(f"SET statement_timeout = '{patience(2)}s'")
    check_ins = {str(claims[0].claim_id): 5.0, str(claims[1].claim_id): 100.0, gone: 1.0}
    assert keeping.renew_claims(raw, check_ins, lease_seconds=30.0) == {str(taken.claim_id) for taken in claims}
    left = dict(
        raw.query("SELECT claim_id, extract(epoch FROM check_at - statement_timestamp())::float8 FROM pgjobs_claim")
    )
    assert left[claims[0].claim_id] == pytest.approx(5, abs=3)
    assert left[claims[1].claim_id] == pytest.approx(30, abs=3)


def test_an_expired_lease_that_nobody_rescued_may_be_renewed_and_its_job_ended(raw: RawDatabase) -> None:
    """X1, C8, C41: running the work twice would be worse."""
    claimed = claimed_one(raw)
    raw.query("UPDATE pgjobs_claim SET lease_expires_at = '2001-01-01', check_at = '2001-01-01'")
    assert keeping.renew_claims(raw, {str(claimed.claim_id): 30.0}, lease_seconds=30.0) == {str(claimed.claim_id)}
    raw.query("UPDATE pgjobs_claim SET lease_expires_at = '2001-01-01', check_at = '2001-01-01'")
    assert finalising.finalise_success(raw, claimed.ends(), AUTHOR) == claimed.ids


def test_a_heartbeat_is_one_row_a_worker(raw: RawDatabase) -> None:
    facts = {
        "id": WORKER, "name": "w", "host": "h", "pid": 1, "queues": None, "excluded_queues": '["a"]', "processes": 1,
        "threads": 1, "async_slots": 1, "version": "0", "release": "", "state": "running", "running": 0, "finished": 0,
        "protocol": 1,
    }  # fmt: skip
    for running in range(3):
        keeping.beat(raw, {**facts, "running": running})
    found = raw.query("SELECT name, queues, excluded_queues, running, last_beat_at > started_at FROM pgjobs_heartbeat")
    assert found == [("w", None, ["a"], 2, True)]


def test_the_identity_names_the_database_and_its_table(raw: RawDatabase, other: RawDatabase) -> None:
    """A child under a test runner can never claim from another database."""
    ours, same = keeping.read_identity(raw), keeping.read_identity(other)
    assert ours[:3] == same[:3]
    assert ours.table is not None
    assert ours.backend_pid == raw.pid
    raw.query("SET search_path = pg_temp")
    assert keeping.read_identity(raw).table is None


def test_backends_of_a_dead_executor_are_ended(raw: RawDatabase, other: RawDatabase) -> None:
    other.query("SET application_name = 'pgjobs executor 1'")
    other.commit()
    assert keeping.terminate_backends(raw, "pgjobs executor 1") == 1
    wait_until(lambda: keeping.terminate_backends(raw, "pgjobs executor 1") == 0, 10, "its server process has ended")
    with pytest.raises(Exception, match="terminat"):
        other.query("SELECT 1")


# Ends of which nothing is kept


def test_an_end_that_keeps_nothing_takes_the_history_along(raw: RawDatabase) -> None:
    """P28 X7: the ledger's row can go then, and no rescue finds anything."""
    one, other_one = register(2)
    first = claim(raw, 2)
    finalising.finalise_retry(raw, first.ends(cause="failed", seconds=1.0, failure=FAILURE), AUTHOR)
    second = claim(raw, 2)
    finalising.delete_claims(raw, [str(first.claim_id)])
    ends = second.ends()
    assert finalising.finalise_delete(raw, ends[:1]) == [one]
    assert list(Job.objects.values_list("pk", flat=True)) == [other_one]
    assert set(Attempt.objects.values_list("job_id", flat=True)) == {other_one}
    assert finalising.finalise_delete(raw, ends) == [other_one], "what is gone is no error"
    assert finalising.delete_claims(raw, [str(second.claim_id)]) == 1
    assert (Attempt.objects.count(), Claim.objects.count()) == (0, 0)


WAITED = "WHERE NOT j.waited"


def test_a_job_that_somebody_waits_for_is_left_to_be_ended_with_its_row(raw: RawDatabase) -> None:
    waited, plain = register(2)
    claimed = claim(raw, 2)
    assert keeping.mark_waited(raw, waited) == (False, True)
    assert finalising.finalise_delete(raw, claimed.ends()) == [plain]
    assert finalising.finalise_success(raw, claimed.ends(result="1")[:1], AUTHOR) == [waited]


def test_without_its_guard_a_waiter_would_lose_the_result(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged twin of the test above."""
    [waited] = register()
    claimed = claim(raw)
    keeping.mark_waited(raw, waited)
    sabotage(monkeypatch, "finalise_delete", WAITED, "WHERE true")
    assert finalising.finalise_delete(raw, claimed.ends()) == [waited]


def test_a_delete_waits_for_nobody_who_holds_a_row_however_lightly(raw: RawDatabase, other: RawDatabase) -> None:
    """FOR KEY SHARE, as the insert of a row that points to the job takes it, is enough to refuse a DELETE."""
    held, free = register(2)
    claimed = claim(raw, 2)
    other.query("SELECT id FROM pgjobs_job WHERE id = %s FOR KEY SHARE", [held])
    raw.query("SET lock_timeout = '2s'")
    assert finalising.finalise_delete(raw, claimed.ends()) == [free]
    assert finalising.finalise_success(raw, claimed.ends(result="1")[:1], AUTHOR) == [held]
    other.rollback()
