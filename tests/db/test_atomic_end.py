"""The end of a job inside the transaction of its own body: the statements, the doubt, and jobs run without workers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.checks import CheckMessage
from django.db import OperationalError, connection, connections, transaction

from django_pgjobs import checks, sql
from django_pgjobs import decisions as decide
from django_pgjobs.ends.kinds import NEXT, RETRY, SUCCESS
from django_pgjobs.execution import attempt
from django_pgjobs.execution.prepared import Prepared, RunControl
from django_pgjobs.execution.single_job import Performer, WrittenEnd
from django_pgjobs.models import Job
from django_pgjobs.store import atomic, finalising, keeping, steering
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.database import on
from django_pgjobs.store.finalising import End
from tests.db.atomic_ground import goes_on, makes, marks, told
from tests.plugins.fix_db import AUTHOR, WORKER, Background, RawDatabase, blocked_by, claim, job, register, wait_until


@pytest.fixture(autouse=True)
def no_users(committed: None) -> None:
    told.clear()
    User.objects.all().delete()


def ends_of(count: int = 1) -> list[End]:
    register(count)
    return claim(on("default"), count).ends(seconds=1.5, result='"kept"')


def rescue(db: RawDatabase) -> list[int]:
    db.query("UPDATE pgjobs_claim SET lease_expires_at = now() - interval '1 s', check_at = lease_expires_at")
    db.query("UPDATE pgjobs_claim SET check_at = lease_expires_at")
    return [
        rescued.id
        for rescued in keeping.rescue_jobs(
            db,
            limit=10,
            quiet_seconds=0,
            grace_seconds=1,
            stale_seconds=60,
            without_on_cancel=["test.job"],
            without_on_abandon=["test.job"],
        )
    ]


# --- the statements --------------------------------------------------------------------------------------------------


def test_an_end_is_there_once_its_transaction_is_committed(raw: RawDatabase, other: RawDatabase) -> None:
    """P35: result, duration, and the worker that claimed it."""
    [end] = ends_of()
    assert atomic.end_atomic(other, end)
    assert job(end.id).state == "running"
    other.commit()
    after = job(end.id)
    assert (after.outcome, after.result, after.duration_seconds, after.worker) == ("succeeded", "kept", 1.5, WORKER)


def test_a_rescue_passes_by_an_end_that_is_not_committed(raw: RawDatabase, other: RawDatabase) -> None:
    """It skips the locked row, and finds it ended later; a rollback leaves the job to it."""
    first, second = ends_of(2)
    assert atomic.end_atomic(other, first)
    other.query("SAVEPOINT second")
    assert atomic.end_atomic(other, second)
    assert rescue(raw) == []
    other.query("ROLLBACK TO SAVEPOINT second")
    other.commit()
    wait_until(lambda: rescue(raw) == [second.id], 10, "the rescue looks again")
    assert [job(end.id).state for end in (first, second)] == ["succeeded", "ready"]


def test_a_transaction_whose_job_was_rescued_learns_it(raw: RawDatabase, other: RawDatabase) -> None:
    """C40: the rescue holds the row; the end waits for it, and finds the claim gone."""
    [end] = ends_of()
    rescue(raw)
    for write in (atomic.end_atomic, atomic.end_atomic_keyed):
        assert not write(other, end)
    assert not atomic.mark_atomic(other, end, allowance_seconds=1.0)
    other.query("DELETE FROM pgjobs_job")
    assert not atomic.end_atomic_keyed(other, end)


@pytest.mark.parametrize("write", [atomic.end_atomic, atomic.end_atomic_keyed])
def test_an_end_waits_for_a_locked_row(
    raw: RawDatabase, other: RawDatabase, background: Background, write: Any
) -> None:
    [end] = ends_of()
    other.lock(end.id)

    def write_in_a_transaction() -> bool:
        with transaction.atomic():
            return bool(write(on("default"), end))

    waiting = background(write_in_a_transaction)
    wait_until(lambda: blocked_by(raw, other.pid), 10, "the end waits")
    other.commit()
    assert waiting.result(10)
    assert job(end.id).outcome == "succeeded"


@pytest.mark.parametrize("write", [atomic.end_atomic, atomic.end_atomic_keyed])
def test_an_end_does_not_wait_for_ever(
    raw: RawDatabase, other: RawDatabase, monkeypatch: pytest.MonkeyPatch, write: Any
) -> None:
    """5 s, shortened here. Then the attempt has failed, like one of any other lock timeout."""
    whole = sql.statement
    monkeypatch.setattr(sql, "statement", lambda name: whole(name).replace("'5s'", "'50ms'"))
    monkeypatch.setattr(atomic, "LOCK_TIMEOUT", "50ms")
    [end] = ends_of()
    other.lock(end.id)
    with pytest.raises(OperationalError, match="lock timeout"), transaction.atomic():
        write(on("default"), end)
    assert job(end.id).state == "running"


@pytest.mark.parametrize("write", [atomic.end_atomic, atomic.end_atomic_keyed])
@pytest.mark.parametrize("outermost", [True, False])
def test_a_commit_waits_as_long_as_the_project_allows(
    raw: RawDatabase, other: RawDatabase, write: Any, outermost: bool
) -> None:
    """Constraints that are deferred are checked at the COMMIT. In a savepoint nothing at all is left behind."""
    [end] = ends_of()
    other.query("SET LOCAL lock_timeout = '77s'")
    other.query("SET LOCAL idle_in_transaction_session_timeout = '88s'")
    assert write(other, end, outermost=outermost)
    settings = [other.value(f"SHOW {name}") for name in ("lock_timeout", "idle_in_transaction_session_timeout")]
    assert settings == ["77s", atomic.IDLE_TIMEOUT if outermost else "88s"]
    other.commit()
    assert other.value("SHOW idle_in_transaction_session_timeout") == "0"


@pytest.mark.parametrize("write", [atomic.end_atomic, atomic.end_atomic_keyed])
def test_a_client_that_is_gone_does_not_keep_the_row_locked(
    raw: RawDatabase, other: RawDatabase, monkeypatch: pytest.MonkeyPatch, write: Any
) -> None:
    """Nor one that was frozen between the end and the COMMIT: the server ends its session."""
    monkeypatch.setattr(atomic, "IDLE_TIMEOUT", "100ms")
    [end] = ends_of()
    fence = (end.id, end.claim_id)
    assert write(other, end)
    assert atomic.settle_doubts(raw, [fence]) == {}
    wait_until(lambda: atomic.settle_doubts(raw, [fence]), 10, "the row is free")
    assert job(end.id).state == "running"
    with pytest.raises(psycopg.Error, match="idle-in-transaction timeout"):
        other.commit()


def test_what_became_of_jobs_in_doubt(raw: RawDatabase, other: RawDatabase) -> None:
    """Committed, marked, rolled back, ended by a rescue, claimed by another, locked, gone."""
    ended, marked_only, open_one, abandoned, taken, locked, gone = ends_of(7)
    atomic.end_atomic(raw, ended)
    marked_only.outcome = "succeeded"
    with raw.raw.transaction():
        assert atomic.mark_atomic(raw, marked_only, allowance_seconds=5.0)
    finalising.finalise_end(raw, [End(abandoned.id, abandoned.claim_id, outcome="abandoned")], AUTHOR)
    raw.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s", [taken.id])
    raw.query("DELETE FROM pgjobs_job WHERE id = %s", [gone.id])
    other.lock(locked.id)
    fences = [(end.id, end.claim_id) for end in (ended, marked_only, open_one, abandoned, taken, locked, gone)]
    found = {job_id: (now.ours, now.succeeded, now.marked) for job_id, now in atomic.settle_doubts(raw, fences).items()}
    assert found == {
        ended.id: (True, True, False),
        marked_only.id: (True, False, True),
        open_one.id: (True, False, False),
        abandoned.id: (True, False, False),
        taken.id: (False, False, False),
    }


def test_a_success_of_its_own_is_no_loss(raw: RawDatabase) -> None:
    """P19: between the COMMIT and its report the row is ended, and nobody may stop the job for that."""
    own, rescued = ends_of(2)
    steering.cancel_jobs(raw, [own.id], mode="kill", by="", reason="", with_callback=[])
    atomic.end_atomic(raw, own)
    finalising.finalise_end(raw, [End(rescued.id, rescued.claim_id, outcome="abandoned")], AUTHOR)
    flags = keeping.read_flags(raw, [(own.id, own.claim_id), (rescued.id, rescued.claim_id)])
    assert [(flag.id, flag.lost) for flag in flags] == [(rescued.id, True)]


# --- one job in this thread ------------------------------------------------------------------------------------------


def perform(raw: RawDatabase, **parts: Any) -> WrittenEnd:
    taken = claim(raw)
    [one] = taken.jobs
    return Performer(raw, AUTHOR, **parts).perform(one)


def test_a_commit_that_raised_and_came_through_is_a_success(raw: RawDatabase) -> None:
    """The doubt is settled by the row: nothing is retried."""
    made = makes.register("ada")

    def loses_the_answer(prepared: Prepared) -> decide.Decision:
        decision = attempt.run_here(prepared)
        assert decision == decide.Committed()
        return decide.InDoubt(decide.Retried(0.0, decide.Failure("OSError", "lost")))

    ended = perform(raw, run=loses_the_answer)
    assert (ended.kind, ended.recorded, job(made.pk).outcome) == (SUCCESS, True, "succeeded")
    assert User.objects.count() == 1


def test_a_mark_that_raised_and_came_through_is_followed_by_its_callback(raw: RawDatabase) -> None:
    made = marks.register("ada")

    def loses_the_answer(prepared: Prepared) -> decide.Decision:
        decision = attempt.run_here(prepared)
        if prepared.job.ending is not None:
            return decision
        assert decision == decide.Committed(marked=True)
        return decide.InDoubt(decide.Abandoned("no attempts left", decide.Failure("OSError", "lost")))

    perform(raw, run=loses_the_answer)
    assert job(made.pk).outcome == "succeeded"
    assert told == [("ada", True)]


def test_a_next_step_that_raised_and_came_through_is_taken(raw: RawDatabase) -> None:
    """P29 P35: the row shows by the step it keeps that the transaction was committed."""
    made = goes_on.register("ada")

    def loses_the_answer(prepared: Prepared) -> decide.Decision:
        decision = attempt.run_here(prepared)
        assert decision == decide.Committed(stepped=True, step_in=("default", 0))
        return decide.InDoubt(decide.Retried(0.0, decide.Failure("OSError", "lost")))

    ended = perform(raw, run=loses_the_answer)
    after = job(made.pk)
    assert (ended.kind, ended.recorded) == (NEXT, True)
    assert (after.name, after.state, after.attempt) == (makes.name, "ready", 0)
    assert perform(raw).kind == SUCCESS
    assert set(User.objects.values_list("username", flat=True)) == {"ada", "ada's heir"}


def test_a_cancel_requested_meanwhile_undoes_an_atomic_step(raw: RawDatabase, other: RawDatabase) -> None:
    """The job does not go on, and of the step nothing remains."""
    made = goes_on.register("ada")

    def is_cancelled(prepared: Prepared) -> decide.Decision:
        steering.cancel_jobs(other, [made.pk], mode="ask", by="", reason="", with_callback=[])
        other.commit()
        return attempt.run_here(prepared)

    perform(raw, run=is_cancelled)
    after = job(made.pk)
    assert (after.name, after.state) == (goes_on.name, "cancelled")
    assert not User.objects.exists()


@pytest.mark.parametrize(("text", "left"), [("COMMIT", ["ada"]), ("ROLLBACK", [])])
def test_a_body_that_ends_its_transaction_itself_has_failed(raw: RawDatabase, text: str, left: list[str]) -> None:
    made = makes.register("ada", text)
    assert perform(raw).kind == RETRY
    after = job(made.pk)
    assert (after.outcome, after.error.partition(":")[0]) == (None, "RolledBack")
    assert "ended its transaction by a COMMIT or ROLLBACK of its own" in after.error
    assert list(User.objects.values_list("username", flat=True)) == left


def test_a_step_whose_job_is_lost_has_done_nothing(raw: RawDatabase, other: RawDatabase) -> None:
    made = goes_on.register("ada")

    def loses_it(prepared: Prepared) -> decide.Decision:
        other.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s", [made.pk])
        other.commit()
        decision = attempt.run_here(prepared)
        assert decision == decide.Lost()
        return decision

    assert not perform(raw, run=loses_it).recorded
    assert (job(made.pk).name, User.objects.count()) == (goes_on.name, 0)


@pytest.mark.parametrize("comes_through", [True, False])
def test_an_error_at_the_commit_leaves_the_attempt_in_doubt(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch, comes_through: bool
) -> None:
    """What was committed is recognised; what was not is an ordinary failure."""
    made, wrapper = makes.register("ada"), connections["default"]
    kind: Any = type(wrapper)
    commit = kind._commit

    def unplugged(self: Any) -> None:
        if comes_through:
            commit(self)
        self.connection.close()
        raise OperationalError("the connection is lost")

    decisions: list[decide.Decision] = []

    def keeps(prepared: Prepared) -> decide.Decision:
        monkeypatch.setattr(kind, "_commit", unplugged)
        decisions.append(attempt.run_here(prepared))
        monkeypatch.undo()
        return decisions[0]

    ended = perform(raw, run=keeps)
    assert isinstance(decisions[0], decide.InDoubt)
    assert ended.kind == (SUCCESS if comes_through else RETRY)
    assert (job(made.pk).outcome, User.objects.count()) == (("succeeded", 1) if comes_through else (None, 0))


def test_a_loss_is_told(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    made = makes.register("ada")

    def loses_it(prepared: Prepared) -> decide.Decision:
        raw.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s", [made.pk])
        return attempt.run_here(prepared)

    ended = perform(raw, run=loses_it)
    assert (ended.kind, ended.recorded, User.objects.count()) == (SUCCESS, False, 0)
    assert f"lease lost, nothing of the job was changed name=atomic.makes job={made.pk}" in caplog.text


def test_without_a_connection_nothing_runs_and_nothing_is_charged(
    raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = makes.register("ada")
    connection.close()

    def refuses(self: Any, params: Any) -> Any:
        raise OperationalError("too many connections")

    def keeps(prepared: Prepared) -> decide.Decision:
        monkeypatch.setattr(type(connections["default"]), "get_new_connection", refuses)
        decision = attempt.run_here(prepared)
        monkeypatch.undo()
        return decision

    perform(raw, run=keeps)
    assert (job(made.pk).state, job(made.pk).attempt) == ("ready", 0)


def test_a_job_that_is_atomic_needs_a_database() -> None:
    """Nowhere may it run without its transaction."""
    claimed = ClaimedJob(
        1, datetime.now(UTC), '{"args": ["ada"], "kwargs": {}}', "default", 0, makes.name, 1, 1, None, None, "c"
    )
    prepared = attempt.prepare(claimed, lambda _: lambda *_: None, RunControl())
    assert isinstance(prepared, Prepared)
    decision = attempt.run_here(prepared)
    assert isinstance(decision, decide.Abandoned)
    assert "no database here" in decision.failure.message  # type: ignore[union-attr]


def test_a_job_that_bypasses_the_queue_is_one_transaction_too(raw: RawDatabase) -> None:
    from django_pgjobs.registering import local_pool

    for name, then in (("ada", ""), ("bob", "fail"), ("cyd", "undo")):
        makes.using(bypass=True).register(name, then)
        wait_until(lambda: not local_pool.of_this_process.running, 10, "it has ended")
    assert list(User.objects.values_list("username", flat=True)) == ["ada"]
    assert Job.objects.count() == 0


# --- the check -------------------------------------------------------------------------------------------------------


class Elsewhere:
    def db_for_write(self, model: type, **hints: object) -> str | None:
        return "replica" if model is Job else None


def test_a_project_whose_jobs_are_elsewhere_is_warned(settings: Any) -> None:
    """One transaction does not span two databases."""
    assert list(checks.check_atomic_jobs()) == []
    settings.DATABASE_ROUTERS = [f"{__name__}.Elsewhere"]
    [found] = list(checks.check_atomic_jobs())
    assert isinstance(found, CheckMessage)
    assert (found.id, "'replica'" in found.msg) == ("pgjobs.W005", True)
