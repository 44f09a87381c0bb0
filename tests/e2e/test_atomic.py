"""Atomic jobs with real workers: what a job does in the database and its end are one, whatever happens between."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.db import connection
from django.utils import timezone

from django_pgjobs.models import Job, StoredResult
from tests.e2e import atomic
from tests.e2e.atomic import effects, one_transaction, one_transaction_a_step
from tests.plugins.fix_db import Background, RawDatabase, wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history, read, started

ARGUMENTS: tuple[str, ...] = ()
TAKEN = (
    "Abandon: The next step, tests.e2e.atomic.does, cannot enter its queue: another job there has the key of this one."
)
WORKER: dict[str, object] = {"threads": 4, "conf": {"POLL_SECONDS": 600}}


@pytest.fixture(autouse=True)
def table(committed: None) -> Iterator[None]:
    with atomic.laid_out():
        yield


def test_the_end_and_the_effects_are_one_transaction(shared_worker: WorkerProcess) -> None:
    """P35: with its result, its duration and the worker that ran it."""
    (after,) = ended(atomic.does.register("succeeds"))
    assert (after.outcome, after.result, after.attempt) == ("succeeded", "done", 1)
    assert one_transaction(after)
    assert after.duration_seconds is not None
    assert after.worker is not None
    wait_until(lambda: not connection_has_claims(), 10, "its claim is struck")


def connection_has_claims() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pgjobs_claim")
        return bool(cursor.fetchone() != (0,))


@pytest.mark.parametrize(
    ("deed", "outcome", "error"),
    [
        ("fails", "abandoned", "ValueError: no"),
        ("cancels", "cancelled", ""),
        ("abandons", "abandoned", "Abandon: hopeless"),
        ("returns nonsense", "abandoned", "UnstorableResult"),
        ("swallows", "abandoned", "RolledBack: The body caught a database error"),
        ("swallows in an inner block", "abandoned", "RolledBack: The body called set_rollback"),
        ("undoes", "abandoned", "RolledBack: The body called set_rollback"),
        ("closes", "abandoned", "RolledBack: The body closed the connection"),
        ("is durable", "abandoned", "RuntimeError: A durable atomic block"),
    ],
)
def test_a_body_that_does_not_succeed_has_done_nothing(
    shared_worker: WorkerProcess, deed: str, outcome: str, error: str
) -> None:
    """A failure is retried and recorded as ever; what cannot be committed is seen before the end is written."""
    (after,) = ended(atomic.does.register(deed))
    assert (after.outcome, effects(after.pk)) == (outcome, [])
    assert error in after.error
    retried = deed not in ("cancels", "abandons", "returns nonsense")
    assert after.attempt == (2 if retried else 1)


def test_a_snooze_undoes_what_was_done(shared_worker: WorkerProcess) -> None:
    job = atomic.does.register("snoozes")
    wait_until(lambda: read(job).claim_id is None and read(job).run_at > timezone.now(), 15, "it snoozes")
    assert (read(job).attempt, effects(job.pk)) == (0, [])


def test_an_error_in_a_block_of_its_own_is_the_bodys_affair(shared_worker: WorkerProcess) -> None:
    (after,) = ended(atomic.does.register("survives"))
    assert (after.outcome, after.result) == ("succeeded", "survived")
    assert one_transaction(after)


@pytest.mark.parametrize("deed", ["sleeps", "sleeps in the server"])
def test_a_job_that_is_stopped_has_done_nothing(shared_worker: WorkerProcess, deed: str) -> None:
    """C40: by its timeout, which is charged, and by a cancel."""
    first, second = atomic.does.using(timeout=0.2, max_attempts=1).register(deed), atomic.does.register(deed)
    wait_until(lambda: read(second).state == "running", 15, "it runs")
    second.cancel(mode="interrupt")
    late, unwanted = ended(first, second)
    assert (late.outcome, history(late), effects(late.pk)) == ("abandoned", [(1, "timeout")], [])
    assert (unwanted.outcome, effects(unwanted.pk)) == ("cancelled", [])


def test_a_cancel_request_and_a_report_wait_for_no_body(shared_worker: WorkerProcess) -> None:
    """A54: the row is written last. A job that was asked to stop and has succeeded has succeeded."""
    job = atomic.reports.register("asked")
    started(shared_worker.stage, "asked")
    wait_until(lambda: read(job).progress, 10, "its report is stored beside its transaction")
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '2s'")
        job.cancel(mode="ask")
        cursor.execute("RESET lock_timeout")
    assert effects(job.pk) == []
    shared_worker.stage.open("asked")
    (after,) = ended(job)
    assert after.outcome == "succeeded"
    assert one_transaction(after)


def test_a_job_whose_claim_is_lost_has_done_nothing(shared_worker: WorkerProcess) -> None:
    """P35 C40: the fence is in the transaction."""
    job = atomic.waits.register("lost")
    started(shared_worker.stage, "lost")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s", [job.pk])
    shared_worker.stage.open("lost")
    shared_worker.wait_for_log(f"lease lost, nothing of the job was changed .*job={job.pk} ")
    assert effects(job.pk) == []
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM pgjobs_job WHERE id = %s", [job.pk])


def test_a_constraint_that_fails_at_the_commit_takes_the_end_along(shared_worker: WorkerProcess) -> None:
    """An ordinary failure, with attempts left."""
    ended(atomic.does.register("succeeds", "same"))
    (after,) = ended(atomic.does.register("succeeds", "same"))
    assert (after.outcome, history(after), effects(after.pk)) == (
        "abandoned",
        [(1, "failed"), (2, "failed")],
        [],
    )
    assert "IntegrityError" in after.error


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "REPEATABLE READ"])
def test_a_conflict_at_a_stricter_level_is_a_failure(shared_worker: WorkerProcess, isolation: str) -> None:
    """40001: somebody has changed the job's row since the transaction's snapshot. The next attempt succeeds."""
    job = atomic.waits.register("strict", isolation)
    started(shared_worker.stage, "strict")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgjobs_job SET waited = true WHERE id = %s", [job.pk])
    shared_worker.stage.open("strict")
    (after,) = ended(job)
    assert (after.outcome, history(after), effects(after.pk)) == ("succeeded", [(1, "failed")], [(2, str(job.pk))])
    assert "could not serialize access" in after.attempts.get().message


def test_a_deadlock_with_rows_of_the_job_is_a_failure(
    shared_worker: WorkerProcess, other: RawDatabase, background: Background
) -> None:
    """40P01: whose transaction holds the job's row waits for what the body has written. The next attempt succeeds."""
    job = atomic.waits.register("deadlock")
    started(shared_worker.stage, "deadlock")
    other.query("SET LOCAL deadlock_timeout = '60s'")  # so that the job's own finds it
    other.lock(job.pk)
    other.query("INSERT INTO atomic_effect VALUES (0, 0, %s)", [str(job.pk)])
    checked = background(other.query, "SET CONSTRAINTS ALL IMMEDIATE")
    wait_until(lambda: waits_for_somebody(other.pid), 10, "it waits for the body")
    shared_worker.stage.open("deadlock")
    checked.result(20)
    other.rollback()
    (after,) = ended(job)
    assert (after.outcome, effects(after.pk)) == ("succeeded", [(2, str(job.pk))])
    assert "deadlock detected" in after.attempts.get().message


def waits_for_somebody(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid])
        return bool(cursor.fetchone() == (True,))


def test_hooks_run_behind_the_commit_and_cannot_undo_it(shared_worker: WorkerProcess) -> None:
    job = atomic.does.register("hooks")
    (after,) = ended(job)
    assert (after.outcome, after.attempt) == ("succeeded", 1)
    assert one_transaction(after)
    shared_worker.wait_for_log(f"on_commit hook failed, the job is committed all the same .*job={job.pk} ")
    assert shared_worker.stage.count("hook", job.pk, True) == 1


def test_what_a_job_registers_joins_its_transaction(shared_worker: WorkerProcess) -> None:
    (after,) = ended(atomic.does.register("registers"))
    wait_until(lambda: Job.objects.filter(name=atomic.follows.name, outcome="succeeded").count() == 1, 15, "it ran")
    assert after.outcome == "succeeded"
    kept = atomic.does.using(max_attempts=1).register("swallows")
    ended(kept)
    assert Job.objects.filter(name=atomic.follows.name).count() == 1


def test_who_waits_is_woken(shared_worker: WorkerProcess, background: Background) -> None:
    job = atomic.waits.register("woken")
    waiter = background(job.wait, 30)
    wait_until(lambda: read(job).waited, 15, "somebody waits")
    shared_worker.stage.open("woken")
    assert waiter.result(30).result == "woken"


def test_a_step_and_the_move_to_the_next_are_one_transaction(shared_worker: WorkerProcess) -> None:
    """P29: two steps, two effects, each committed with what the row becomes."""
    (after,) = ended(atomic.does.register("goes on"))
    assert (after.outcome, after.result, after.attempt) == ("succeeded", "done", 1), after.error
    assert len(effects(after.pk)) == 2
    assert (after.steps.count(), one_transaction_a_step(after)) == (1, True)


def test_a_step_with_a_delay_is_not_left_to_the_next_poll(shared_worker: WorkerProcess) -> None:
    """P30: the worker polls each ten minutes."""
    (after,) = ended(atomic.does.register("goes on later"), timeout=30)
    assert (after.outcome, len(effects(after.pk))) == ("succeeded", 2)


@pytest.mark.parametrize("deed", ["goes on behind a hook", "goes on behind a hook and later"])
def test_a_hook_behind_a_step_may_take_its_time(shared_worker: WorkerProcess, deed: str) -> None:
    """The row is the next step's by then, which another thread of the same worker may run; nothing is lost."""
    job = atomic.does.register(deed)
    wait_until(lambda: shared_worker.stage.count("hook-begin", job.pk) == 1, 15, "the hook runs")
    if deed == "goes on behind a hook":
        (after,) = ended(job)
        assert (after.outcome, len(effects(after.pk))) == ("succeeded", 2)
    for number in range(3):  # each time the keeper has read flags, and found nothing lost
        beside = atomic.reports.register(f"{job.pk}-beside-{number}")
        started(shared_worker.stage, f"{job.pk}-beside-{number}")
        beside.cancel(mode="interrupt")
        ended(beside)
    shared_worker.stage.open(f"slow-hook-{job.pk}")
    wait_until(lambda: shared_worker.stage.count("hook-end", job.pk) == 1, 15, "the hook has ended")
    assert not re.search(rf"lost.* job={job.pk} ", shared_worker.log)


def test_a_step_whose_key_is_taken_has_done_nothing(shared_worker: WorkerProcess) -> None:
    """One job has the key in the queue of the step, so the other is abandoned, and its effects with it."""
    holder = atomic.does.using(queue="elsewhere", unique="k", delay=3600).register("succeeds")
    (after,) = ended(atomic.does.using(unique="k").register("goes on elsewhere"))
    assert (after.outcome, after.error) == ("abandoned", TAKEN)
    assert (effects(after.pk), after.steps.count()) == ([], 0)
    shared_worker.wait_for_log(f"job abandoned .*job={after.pk} ")
    holder.abandon()


def test_a_result_that_is_not_stored(shared_worker: WorkerProcess) -> None:
    (after,) = ended(atomic.quiet.register())
    assert (after.outcome, after.result) == ("succeeded", None)
    assert one_transaction(after)


def test_a_result_under_a_key_is_stored_in_the_same_transaction(shared_worker: WorkerProcess) -> None:
    """The second of that key returns the first one's result, without an effect."""
    (first,) = ended(atomic.once.register("k"))
    (second,) = ended(atomic.once.register("k"))
    words = f"first {first.pk}"
    assert (first.result, second.result, StoredResult.objects.get().result) == (words, words, words)
    assert one_transaction(first)
    assert effects(second.pk) == []


def test_on_success_runs_behind_the_commit_of_the_body(shared_worker: WorkerProcess) -> None:
    """The transaction marks the job; the callback's end is the job's."""
    (after,) = ended(atomic.tells.register("succeeds"))
    assert (after.outcome, after.result, after.ending) == ("succeeded", "done", "succeeded")
    assert len(effects(after.pk)) == 1
    assert shared_worker.stage.count("on_success", after.pk, True) == 1
    (failed,) = ended(atomic.tells.register("fails"))
    assert (failed.outcome, effects(failed.pk)) == ("abandoned", [])
    assert shared_worker.stage.count("on_abandon", failed.pk) == 1
