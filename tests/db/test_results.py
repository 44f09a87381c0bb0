"""How a job went so far, in one statement: its row, the attempts that did not succeed, and who runs it now."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from django_pgjobs.decisions import Failure
from django_pgjobs.inspection.results import read_result, read_results
from django_pgjobs.models import Attempt, Job
from django_pgjobs.serialization.payload import decode_payload, decode_result
from django_pgjobs.store import finalising, keeping
from django_pgjobs.store.finalising import Author, End
from tests.db.steering_ground import ready, running, succeeded
from tests.plugins.explaining import Explained, analysed_while_empty
from tests.plugins.fix_db import AUTHOR, FAILURE, WORKER, RawDatabase, claim, job, register

pytestmark = pytest.mark.usefixtures("committed")

OTHER = UUID(int=77)


def again(raw: RawDatabase, *, worker: UUID = WORKER, seconds: float = 1.0) -> None:
    """Claim the only job and fail; it may run again at once."""
    author = Author(worker)
    finalising.finalise_retry(
        raw, claim(raw, worker=worker).ends(delay=0.0, cause="failed", seconds=seconds, failure=FAILURE), author
    )


def test_no_job_no_result() -> None:
    assert read_result("default", 7) is None
    assert read_results("default", [7, 8]) == {}
    assert read_results("default", []) == {}


def test_a_job_that_nobody_has_started_tells_what_was_registered() -> None:
    """§1.3: name, queue, priority, arguments, headers and the instant of its registration."""
    [one] = register(queue="mail", priority=7, headers='{"task": {"backend": "second"}}')
    read = read_result("default", one)
    assert read is not None
    assert (read.id, read.name, read.queue, read.priority, read.state) == (one, "test.job", "mail", 7, "ready")
    assert decode_payload(read.payload) == ([1], {})
    assert json.loads(read.headers or "") == {"task": {"backend": "second"}}
    assert read.created_at == job(one).created_at
    assert (read.attempt, read.started_at, read.last_attempted_at, read.workers) == (0, None, None, ())
    assert (read.attempts, read.failures, read.last_failure, read.is_running) == ((), (), None, False)


def test_while_it_runs_its_worker_is_known_from_the_claim(raw: RawDatabase) -> None:
    """O5: the row has no worker yet."""
    read = read_result("default", running(raw))
    assert read is not None
    assert (read.worker, read.claimed_by, read.workers) == (None, WORKER, (WORKER,))
    assert read.is_running
    assert read.started_at == read.last_attempted_at == read.claimed_at
    assert read.finished_at is None


def test_every_charged_attempt_tells_its_worker_and_its_failure(raw: RawDatabase) -> None:
    [one] = register()
    again(raw, worker=OTHER)
    again(raw)
    third = claim(raw, worker=OTHER)
    read = read_result("default", one)
    assert read is not None
    assert [(found.number, found.cause, found.worker) for found in read.attempts] == [
        (1, "failed", OTHER),
        (2, "failed", WORKER),
    ]
    assert read.failures == read.attempts
    assert read.failures[0].exception == FAILURE.kind
    assert read.failures[0].message == FAILURE.message
    assert read.failures[0].chain == FAILURE.chain
    assert read.failures[0].traceback == FAILURE.traceback
    assert read.workers == (OTHER, WORKER, OTHER)
    assert read.last_failure is None, "the third attempt runs"
    assert read.claim_id == third.claim_id


def test_the_first_start_stays_while_the_last_one_moves(raw: RawDatabase) -> None:
    """§1.3: ``started_at`` and ``last_attempted_at`` are starts of bodies, not of claims."""
    [one] = register()
    again(raw, seconds=0.25)
    Attempt.objects.update(started_at=F("started_at") - timedelta(hours=1))
    again(raw, seconds=0.5)
    read = read_result("default", one)
    assert read is not None
    first, second = read.attempts
    assert read.started_at == first.started_at
    assert read.last_attempted_at == second.started_at
    assert (read.state, read.is_running) == ("ready", False)


def test_a_success_tells_its_value_its_worker_and_when_its_body_began(raw: RawDatabase) -> None:
    register()
    held = claim(raw)
    Job.objects.update(claimed_at=Now() - timedelta(minutes=5))
    [one] = finalising.finalise_success(raw, held.ends(result='{"a": [1]}', seconds=2.0), AUTHOR)
    read = read_result("default", one)
    assert read is not None
    assert (read.state, read.outcome, read.workers) == ("succeeded", "succeeded", (WORKER,))
    assert decode_result(read.result or "") == {"a": [1]}
    assert read.finished_at is not None
    assert read.last_attempted_at == read.started_at == read.finished_at - timedelta(seconds=2)
    assert (read.failures, read.claimed_by) == ((), None)


def test_a_released_attempt_is_not_counted(raw: RawDatabase) -> None:
    [one] = register()
    finalising.release_jobs(raw, claim(raw, worker=OTHER).ends(cause="released", seconds=1.0), AUTHOR)
    read = read_result("default", one)
    assert read is not None
    assert [found.cause for found in read.attempts] == ["released"]
    assert (read.failures, read.workers, read.started_at) == ((), (), None)
    again(raw)
    read = read_result("default", one)
    assert read is not None
    assert [(found.number, found.cause) for found in read.failures] == [(1, "failed")]
    assert read.workers == (WORKER,)


def test_a_death_beside_the_job_is_no_failure_however_late_it_is_written(raw: RawDatabase) -> None:
    """The job has run again meanwhile, under the same number, and that end counts."""
    [one] = register()
    again(raw)
    crash = keeping.Crash(one, str(uuid4()), 1, 1.0, "django_pgjobs.exceptions.ExecutorDied", "killed")
    keeping.record_crashes(raw, [(crash, 5.0)], AUTHOR)
    read = read_result("default", one)
    assert read is not None
    assert [found.cause for found in read.attempts] == ["crashed", "failed"]
    assert [found.cause for found in read.failures] == ["failed"]


def test_the_end_by_an_operator_tells_who_and_why(raw: RawDatabase) -> None:
    """§1.5: a cancel by its columns, an abandon by its words; neither is an attempt."""
    one, other = ready(raw), ready(raw)
    job(one).cancel(by="ops", reason="not needed")
    job(other).abandon(by="ops", reason="broken")
    read = read_results("default", [one, other])
    assert (read[one].outcome, read[one].cancel_by, read[one].cancel_reason) == ("cancelled", "ops", "not needed")
    assert (read[other].outcome, read[other].error) == ("abandoned", "Abandoned by ops: broken")
    assert [read[one].is_abandoned_by_hand, read[other].is_abandoned_by_hand] == [False, True]
    assert [found.failures for found in read.values()] == [(), ()]


def test_an_operators_end_of_a_retrying_job_keeps_when_it_last_ran(raw: RawDatabase) -> None:
    [one] = register()
    again(raw)
    Attempt.objects.update(started_at=F("started_at") - timedelta(hours=1))
    job(one).cancel()
    read = read_result("default", one)
    assert read is not None
    assert read.last_attempted_at == read.attempts[0].started_at
    assert read.last_failure == read.attempts[0]


def test_a_job_that_failed_for_the_last_time_is_not_abandoned_by_hand(raw: RawDatabase) -> None:
    register()
    ends = claim(raw).ends(outcome="abandoned", cause="failed", seconds=1.0, failure=FAILURE)
    [one] = finalising.finalise_end(raw, ends, AUTHOR)
    read = read_result("default", one)
    assert read is not None
    assert (read.outcome, read.is_abandoned_by_hand, len(read.failures)) == ("abandoned", False, 1)
    assert read.last_failure == read.failures[0]


def test_with_its_callback_left_it_counts_as_running_and_a_lost_callback_as_no_attempt(raw: RawDatabase) -> None:
    """§1.4: its body will not run again, and it has not finished."""
    [one] = register()
    ends = claim(raw).ends(outcome="abandoned", cause="failed", seconds=1.0, failure=FAILURE)
    finalising.mark_ending(raw, ends, AUTHOR, allowance_seconds=5.0)
    finalising.release_jobs(raw, [End(one, str(job(one).claim_id))], AUTHOR)
    read = read_result("default", one)
    assert read is not None
    assert (read.state, read.ending, read.is_running) == ("ready", "abandoned", True)
    for callback in (OTHER, WORKER):
        claim(raw, worker=callback, lease=-1.0)
        raw.query("UPDATE pgjobs_claim SET check_at = lease_expires_at")
        seconds = {"quiet_seconds": 0, "grace_seconds": 0, "stale_seconds": 60}
        keeping.rescue_jobs(raw, limit=5, without_on_cancel=[], without_on_abandon=[], **seconds)  # type: ignore[arg-type]
    read = read_result("default", one)
    assert read is not None
    assert [(found.number, found.cause) for found in read.attempts] == [(1, "failed"), (1, "lost"), (1, "lost")]
    assert [found.cause for found in read.failures] == ["failed"]
    assert read.workers == (WORKER,)


def test_many_are_read_by_one_statement_and_stay_apart(
    raw: RawDatabase, django_assert_num_queries: pytest.FixtureRequest
) -> None:
    failed, done, runs = register()[0], 0, 0
    again(raw)
    Job.objects.filter(pk=failed).update(run_at=Now() + timedelta(hours=1))
    done, runs = succeeded(raw), running(raw)
    with django_assert_num_queries(1):  # type: ignore[operator]
        read = read_results("default", [runs, done, failed, failed, 10**18])
    assert set(read) == {failed, done, runs}
    assert [len(read[one].attempts) for one in (failed, done, runs)] == [1, 0, 0]
    assert [read[one].workers for one in (failed, done, runs)] == [(WORKER,)] * 3
    assert [read[one].state for one in (failed, done, runs)] == ["ready", "succeeded", "running"]


def test_of_very_many_attempts_the_latest_are_read_and_the_first_start_is_known(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_pgjobs.store.results.MOST_ATTEMPTS", 2)
    [one] = register()
    for _ in range(4):
        again(raw)
    read = read_result("default", one)
    assert read is not None
    assert [found.number for found in read.attempts] == [3, 4]
    assert read.started_at == Attempt.objects.get(number=1).started_at
    assert read.workers == (None, None, WORKER, WORKER)


def test_what_others_wrote_into_a_chain_or_an_instant_does_not_stop_the_reading(raw: RawDatabase) -> None:
    [one] = register()
    again(raw)
    raw.query("""UPDATE pgjobs_attempt SET chain = '["odd", ["a", "b"], ["c"]]', started_at = '-infinity'""")
    read = read_result("default", one)
    assert read is not None
    assert read.attempts[0].chain == (("a", "b"),)
    raw.query("""UPDATE pgjobs_attempt SET chain = '"odd"'""")
    read = read_result("default", one)
    assert read is not None
    assert read.attempts[0].chain == ()


@pytest.mark.parametrize("analysed", [False, True])
def test_reading_costs_the_jobs_that_are_asked_for_whatever_the_statistics(raw: RawDatabase, analysed: bool) -> None:
    """By keys from the ids to the jobs, from each to its attempts and its claim; neither table is scanned."""
    with analysed_while_empty(raw):
        ids = register(20_000)
        raw.query(
            "INSERT INTO pgjobs_attempt (job_id, claim_id, number, cause)"
            " SELECT j, gen_random_uuid(), n, 'failed' FROM unnest(%s::bigint[]) AS j, generate_series(1, 2) AS n",
            [ids],
        )
        raw.query(
            "INSERT INTO pgjobs_claim (claim_id, part, worker, lease_expires_at, check_at, job_ids)"
            " SELECT gen_random_uuid(), 0, %s, now(), now(), ARRAY[g] FROM generate_series(1, 5000) AS g",
            [WORKER],
        )
        held = claim(raw, 100)
        if analysed:
            raw.query("ANALYZE pgjobs_job, pgjobs_attempt, pgjobs_claim")
        for asked in (held.ids[:1], held.ids, ids[-100:]):
            watch = Explained(len(asked))
            with transaction.atomic(), connection.execute_wrapper(watch):
                found = read_results("default", asked)
            assert watch.seen == 1
            assert watch.faults == []
            assert all(len(read.attempts) == 2 for read in found.values())
            assert len(found) == len(asked)


def test_an_unknown_claim_names_no_worker(raw: RawDatabase) -> None:
    """Its lease may have been rescued between the claim and this read."""
    one = running(raw)
    Job.objects.filter(pk=one).update(claim_id=uuid4())
    read = read_result("default", one)
    assert read is not None
    assert read.workers == (None,)


def test_an_exception_without_a_message_reads_as_it_was_written(raw: RawDatabase) -> None:
    [one] = register()
    failure = Failure("shop.Declined", "", (("shop.Declined", ""),), "")
    finalising.finalise_retry(raw, claim(raw).ends(delay=0.0, cause="failed", seconds=1.0, failure=failure), AUTHOR)
    read = read_result("default", one)
    assert read is not None
    assert (read.failures[0].message, read.failures[0].chain) == ("", (("shop.Declined", ""),))
