"""``run_jobs``: callbacks, cancels, claims that are lost, rows that somebody holds, signals."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.test import override_settings

from django_pgjobs import Abandon, Backoff, Cancel, JobContext, Snooze, signals
from django_pgjobs import job as define
from django_pgjobs.decisions import Failure
from django_pgjobs.definition.registry import registry
from django_pgjobs.ends import kinds
from django_pgjobs.models import Attempt, Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.store import finalising, registering
from django_pgjobs.store.new_jobs import NewJob
from django_pgjobs.testing import Ran, arun_jobs, isolated_registry, run_job, run_jobs
from tests.db.run_jobs_ground import asynchronous, fails, in_a_test_case, makes_user, outcomes, said, says
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, claim, patience, wait_until

pytestmark = pytest.mark.usefixtures("nothing_said", "receivers_as_before", "quiet")


@define(name="run.gives_up", max_attempts=1)
def gives_up() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


@gives_up.on_abandon
def after_giving_up(context: JobContext) -> None:
    said.append(context.error)


@define(name="run.with_callbacks", max_attempts=2, backoff=Backoff(0))
def with_callbacks(how: str) -> None:
    raise {"fail": ValueError("no"), "cancel": Cancel("changed"), "abandon": Abandon("pointless")}[how]


@with_callbacks.on_cancel
def forgets(context: JobContext, how: str) -> None:
    said.append(("cancelled", how, context.error))


@with_callbacks.on_abandon
def regrets(context: JobContext, how: str) -> None:
    User.objects.create(username="regrets")
    said.append(("abandoned", how, getattr(context.error, "summary", None)))


@define(name="run.bad_callback", max_attempts=1)
def bad_callback() -> None:
    raise ValueError("no")


@bad_callback.on_abandon
def breaks(context: JobContext) -> None:
    User.objects.create(username="gone")
    User.objects.create(username="gone")


@define(name="run.cancels_itself", max_attempts=5, takes_context=True)
def cancels_itself(context: JobContext, how: str) -> str:
    Job.objects.filter(pk=context.id).cancel(by="itself")
    if how == "fail":
        raise ValueError("after the cancel")
    if how == "snooze":
        raise Snooze(0)
    return "done"


@define(name="run.deletes_itself", takes_context=True)
def deletes_itself(context: JobContext) -> None:
    Job._base_manager.filter(pk=context.id).delete()


@in_a_test_case
@pytest.mark.parametrize(
    ("how", "state", "told"),
    [
        ("fail", "abandoned", ("abandoned", "fail", "ValueError: no")),
        ("abandon", "abandoned", ("abandoned", "abandon", "Abandon: pointless")),
        ("cancel", "cancelled", ("cancelled", "cancel", None)),
    ],
)
def test_callbacks_run_once_after_the_end(how: str, state: str, told: object) -> None:
    """A5: after the last failure, never between retries; its effects stay."""
    job = with_callbacks.register(how)
    ran = run_jobs()
    assert said == [told]
    assert getattr(ran, state) == [job.pk]
    job.refresh_from_db()
    assert (job.state, job.ending_attempt) == (state, 1)
    assert User.objects.filter(username="regrets").exists() is (state == "abandoned")


@in_a_test_case
def test_a_callback_that_breaks_the_transaction_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A7."""
    job = bad_callback.register()
    assert outcomes(run_jobs()) == {"abandoned": [job.pk]}
    assert "callback failed callback=on_abandon name=run.bad_callback" in caplog.text
    assert not User.objects.exists()


@in_a_test_case
def test_a_cancelled_job_gets_its_callback_only() -> None:
    job = with_callbacks.register("fail")
    job.cancel(by="anna")
    assert outcomes(run_jobs()) == {"cancelled": [job.pk]}
    assert said == [("cancelled", "fail", None)]


@in_a_test_case
def test_a_callback_that_killed_its_process_too_often_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    job = with_callbacks.register("fail")
    job.cancel()
    Job.objects.update(ending_attempt=kinds.CALLBACK_STARTS)
    assert outcomes(run_jobs()) == {"cancelled": [job.pk]}
    assert said == []
    assert "callback lost 3 processes or workers" in caplog.text


@in_a_test_case
def test_a_cancelled_job_whose_payload_is_unreadable_ends_without_its_callback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It cannot be parked, and would stay marked for the callback forever."""
    job = with_callbacks.register("fail")
    job.cancel()
    Job.objects.update(payload={"args": []})
    assert outcomes(run_jobs()) == {"cancelled": [job.pk]}
    assert "callback cannot run" in caplog.text


@in_a_test_case
@pytest.mark.parametrize(("how", "state"), [("fail", "cancelled"), ("snooze", "cancelled"), ("return", "succeeded")])
def test_a_cancel_that_meets_an_end(how: str, state: str) -> None:
    """A success is a success; any other end of a cancelled job is a cancel, and nothing stays claimed."""
    job = cancels_itself.register(how)
    assert outcomes(run_jobs()) == {state: [job.pk]}
    job.refresh_from_db()
    assert (job.state, job.cancel_by) == (state, "itself")
    causes = list(Attempt.objects.filter(job_id=job.pk).values_list("cause", flat=True))
    assert causes == (["failed"] if how == "fail" else []), "it was asked only, and failed by itself"


@in_a_test_case
def test_a_job_that_was_cancelled_between_two_claims_does_not_run() -> None:
    job = fails.register()
    Job.objects.update(cancel_requested_at=job.created_at)
    assert outcomes(run_jobs()) == {"cancelled": [job.pk]}
    assert said == []


@in_a_test_case
def test_a_job_that_is_gone_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """C59, C64."""
    job = deletes_itself.register()
    heard = mock.Mock()
    signals.lease_lost.connect(heard)
    assert outcomes(run_jobs()) == {"lost": [job.pk]}
    assert "lease lost, nothing of the job was changed name=run.deletes_itself" in caplog.text
    assert heard.call_args.kwargs["job_id"] == job.pk
    assert not Claim.objects.exists()


@in_a_test_case
def test_attempts_that_were_used_up_elsewhere_end_the_job_without_running_it() -> None:
    """C17, C18: killed on its last attempt, say; nothing of it starts."""
    job = fails.register()
    Job.objects.update(attempt=3)
    started = mock.Mock()
    signals.job_started.connect(started)
    assert outcomes(run_jobs()) == {"abandoned": [job.pk]}
    job.refresh_from_db()
    assert said == []
    assert not started.called
    assert job.error == "AttemptsExhausted: No attempts are left, so the job was not run again."
    assert not Attempt.objects.exists()


@in_a_test_case
def test_an_unknown_job_is_parked() -> None:
    with isolated_registry():
        assert registry.names() == []
        job = Job.objects.get(pk=registering.register_plain(connection, NewJob("no.such", "{}")).id)
        assert outcomes(run_jobs()) == {"parked": [job.pk]}
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("parked", 0)
    assert "no.such" in job.hold_reason
    with pytest.raises(ValueError, match=r"no\.such #\d+ is parked, so it cannot be run"):
        run_job(job)


@in_a_test_case
def test_a_large_payload_is_read_under_the_claim() -> None:
    job = says.register("x" * 200_000)
    run_jobs()
    assert said == ["x" * 200_000]
    assert run_jobs().ran == []
    job.refresh_from_db()
    assert job.state == "succeeded"


@in_a_test_case
def test_a_claim_lost_before_the_payload_is_read_changes_nothing() -> None:
    job = says.register("x" * 200_000)
    with mock.patch.object(finalising, "read_payload", return_value=None):
        assert run_jobs(max_rounds=2, limit=1).ran == [job.pk]
    assert said == []
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)


@in_a_test_case
def test_one_job_whatever_its_time() -> None:
    early, other = says.using(delay=3600).register("early"), says.register("other")
    assert run_job(early).state == "succeeded"
    assert said == ["early"]
    with pytest.raises(ValueError, match="is succeeded, so it cannot be run"):
        run_job(early)
    other.refresh_from_db()
    assert other.state == "ready"
    Job._base_manager.all().delete()
    with pytest.raises(ValueError, match="is gone"):
        run_job(other)


@in_a_test_case
@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_the_hour_that_clocks_repeat_has_two_of_every_instant() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TIME ZONE 'Europe/Berlin'")
    jobs = [says.using(run_at=datetime(2024, 10, 27, 2, 30)).register(n) for n in range(2)]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgjobs_job SET run_at = '2024-10-27 01:30+00' WHERE id = %s", [jobs[0].pk])
        cursor.execute("UPDATE pgjobs_job SET run_at = '2024-10-27 00:30+00' WHERE id = %s", [jobs[1].pk])
    assert run_job(jobs[0]).state == "succeeded"
    assert said == [0]


@in_a_test_case
def test_nothing_stays_claimed_if_we_fail() -> None:
    """Inside a transaction all of it is undone."""
    job = makes_user.register("anna")
    failing = mock.patch.object(kinds, "write", side_effect=RuntimeError("ours"))
    with failing, pytest.raises(RuntimeError, match="ours"):
        run_jobs()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)
    assert not Claim.objects.exists()
    assert not User.objects.exists()
    assert run_jobs().succeeded == [job.pk]


@in_a_test_case
def test_signals_of_stored_ends_are_sent() -> None:
    """C59, C62, C63."""
    heard: list[tuple[object, dict[str, object]]] = []

    def note(*, sender: object, signal: object, **facts: object) -> None:
        heard.append((sender, facts))

    signals.job_retried.connect(note)
    signals.job_finished.connect(note)
    job, fine = fails.register(), says.register()
    run_jobs()
    said_of = [(sender, facts.pop("duration"), facts.pop("retry_at", None)) for sender, facts in heard]
    assert all(isinstance(duration, float) for _, duration, _ in said_of)
    assert [retry_at is None for _, _, retry_at in said_of] == [False, True, False, True]
    failed = {
        "job_id": job.pk,
        "name": "run.fails",
        "queue": "default",
        "executor": "run_jobs",
        "error": "ValueError: no",
    }
    end = {**failed, "database": "default", "by_worker": True}
    fine_end = {**end, "job_id": fine.pk, "name": "run.says", "error": ""}
    assert heard == [
        (fails, {**failed, "attempt": 1, "delay": 0.0}),
        (says, {**fine_end, "attempt": 1, "outcome": "succeeded"}),
        (fails, {**failed, "attempt": 2, "delay": 0.0}),
        (fails, {**end, "attempt": 3, "outcome": "abandoned"}),
    ]


def test_a_row_that_somebody_holds_is_left_alone(other: RawDatabase) -> None:
    """And the next one does not run in its place."""
    first, second = says.register(1), says.register(2)
    other.lock(first.pk)
    with pytest.raises(ValueError, match="is ready, so it cannot be run"):
        run_job(first)
    assert run_jobs(max_rounds=2, limit=1).ran == [second.pk]
    other.rollback()
    assert run_jobs().ran == [first.pk]
    assert said == [2, 1]
    assert not Claim.objects.exists()


def test_the_end_waits_for_a_row_that_somebody_holds(
    other: RawDatabase, raw: RawDatabase, background: Background
) -> None:
    job = says.register(1)
    with mock.patch.object(says, "func", side_effect=lambda value: other.lock(job.pk)):
        done = background(run_jobs)
        wait_until(lambda: raw.query("SELECT 1 FROM pg_locks WHERE pid = %s", [other.pid]), 5, "the job locks its row")
        wait_until(lambda: raw.row(job.pk)["state"] == "running", 5, "the job runs")
        other.rollback()
        assert done.result(patience(30)).succeeded == [job.pk]


@pytest.mark.usefixtures("committed")
def test_a_committed_claim_is_given_back_if_we_fail() -> None:
    job = says.register(1)
    real, calls = kinds.write, iter([True, False, False])

    def fails_once(*args: Any, **options: Any) -> Any:
        if next(calls):
            raise RuntimeError("ours")
        return real(*args, **options)

    with mock.patch.object(kinds, "write", fails_once), pytest.raises(RuntimeError, match="ours"):
        run_jobs()
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 0)
    assert not Claim.objects.exists()


@pytest.mark.usefixtures("committed")
def test_a_job_in_other_hands_is_not_due(raw: RawDatabase) -> None:
    job = says.register(1)
    taken = claim(raw)
    assert taken.ids == [job.pk]
    assert run_jobs() == Ran()
    finalising.release_jobs(raw, taken.ends(), AUTHOR)
    assert run_jobs().succeeded == [job.pk]


@pytest.mark.usefixtures("committed")
def test_in_an_async_function_without_a_transaction() -> None:
    async def test() -> Ran:
        await asynchronous.aregister("anna")
        return await arun_jobs()

    assert len(async_to_sync(test)().succeeded) == 2


@in_a_test_case
def test_on_abandon_is_given_the_whole_error() -> None:
    """Row A5: with its kind, the chain of causes and a traceback, as the history shows them."""
    one = gives_up.register()
    assert run_jobs().abandoned == [one.pk]
    [error] = said
    assert isinstance(error, Failure)
    assert (error.kind, error.message) == ("ValueError", "outer")
    assert error.chain == (("ValueError", "outer"), ("KeyError", "'inner'"))
    assert error.traceback == Attempt.objects.get(job=one).traceback
    assert 'raise ValueError("outer") from error' in error.traceback


@in_a_test_case
def test_on_abandon_is_given_one_line_where_the_history_does_not_have_the_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The callback runs all the same."""

    def away(*_: object) -> None:
        raise OperationalError("away")

    gives_up.register()
    monkeypatch.setattr(finalising, "read_failure", lambda *_: Failure("OSError", "of another attempt"))
    run_jobs()
    gives_up.register()
    monkeypatch.setattr(finalising, "read_failure", away)
    run_jobs()
    assert said == [Failure("", "ValueError: outer ← KeyError: 'inner'")] * 2
    assert "history cannot be read, a callback gets one line of its error" in caplog.text
