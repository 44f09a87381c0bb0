"""``django_pgjobs.testing``: jobs run and end inside a plain ``TestCase``, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.db import DataError, IntegrityError, OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import translation

from django_pgjobs import Abandon, Backoff, Cancel, JobContext, Snooze, current_context, signals
from django_pgjobs import job as define
from django_pgjobs.decisions import Failure
from django_pgjobs.definition.registry import registry
from django_pgjobs.execution import finalise
from django_pgjobs.models import Attempt, Claim, Job
from django_pgjobs.store import statements as store
from django_pgjobs.testing import Ran, arun_jobs, isolated_registry, run_job, run_jobs
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, claim, patience, wait_until

in_a_test_case = pytest.mark.django_db
"""A transaction around the test, as in ``TestCase``."""

said: list[object] = []
"""What the jobs of this module did, in order."""


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    said.clear()
    yield
    said.clear()


@pytest.fixture(autouse=True)
def receivers_as_before() -> Iterator[None]:
    known = [signals.job_started, signals.job_finished, signals.job_retried, signals.lease_lost, signals.attempt_ended]
    before = [list(signal.receivers) for signal in known]
    yield
    for signal, receivers in zip(known, before, strict=True):
        signal.receivers = receivers
        signal.sender_receivers_cache.clear()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "django_pgjobs")


@define(name="run.says", max_attempts=1)
def says(value: object = None) -> object:
    said.append(value)
    return value


@define(name="run.makes_user", max_attempts=1)
def makes_user(name: str) -> int:
    return User.objects.create(username=name).pk


@define(name="run.fails", max_attempts=3, backoff=Backoff(0))
def fails(text: str = "no") -> None:
    said.append(current_context().attempt)
    raise ValueError(text)


@define(name="run.gives_up", max_attempts=1)
def gives_up() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


@gives_up.on_abandon
def after_giving_up(context: JobContext) -> None:
    said.append(context.error)


@define(name="run.fails_later", max_attempts=3, backoff=Backoff(3600))
def fails_later() -> None:
    raise ValueError("later")


@define(name="run.writes_and_fails", max_attempts=1)
def writes_and_fails(name: str) -> None:
    User.objects.create(username=name)
    raise ValueError("written before")


@define(name="run.swallows", max_attempts=1)
def swallows() -> None:
    User.objects.create(username="lost")
    try:
        User.objects.create(username="lost")
    except IntegrityError:
        said.append("swallowed")


def divides_by_zero() -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
    except DataError:
        said.append("swallowed")


@define(name="run.careful")
def careful() -> str:
    User.objects.create(username="kept")
    try:
        with transaction.atomic():
            User.objects.create(username="kept")
    except IntegrityError:
        return "survived"
    return "impossible"


@define(name="run.snoozes_after_trouble")
def snoozes_after_trouble() -> None:
    try:
        User.objects.create(pk=None, username=None)  # type: ignore[misc]
    except IntegrityError:
        raise Snooze(60) from None


@define(name="run.durable")
def durable() -> None:
    with transaction.atomic(durable=True):
        User.objects.create(username="durable")


@define(name="run.spawns")
def spawns(n: int) -> None:
    said.append(n)
    if n:
        spawns.using(priority=n % 3).register(n - 1)


@define(name="run.goes_on")
def goes_on() -> None:
    goes_on.register()


@define(name="run.hooks")
def hooks(text: str) -> None:
    transaction.on_commit(lambda: said.append(text))


@define(name="run.ahooks", max_attempts=1)
async def asynchronous(name: str) -> dict[str, Any]:
    await asyncio.sleep(0)
    user = await User.objects.acreate(username=name)
    says_so = await says.aregister(name)
    current_context().progress(1, 2, "half")
    thread = await sync_to_async(threading.get_ident)()
    return {"user": user.pk, "job": says_so.pk, "in": current_context().id, "thread": thread}


@define(name="run.async_fails", max_attempts=1)
async def async_fails() -> None:
    await User.objects.acreate(username="twice")
    await User.objects.acreate(username="twice")


@async_fails.on_abandon
async def async_regrets(context: JobContext) -> None:
    said.append(await User.objects.acount())


@define(name="run.tells", takes_context=True)
def reports(context: JobContext) -> dict[str, object]:
    context.progress(3, 4, "nearly")
    assert current_context() is context
    stored = Job.objects.get(pk=context.id)
    return {"attempt": context.attempt, "state": stored.state, "progress": stored.progress}


@define(name="run.with_callbacks", max_attempts=2, backoff=Backoff(0))
def with_callbacks(how: str) -> None:
    raise {"fail": ValueError("no"), "cancel": Cancel("changed"), "abandon": Abandon("pointless")}[how]


@with_callbacks.on_abandon
def regrets(context: JobContext, how: str) -> None:
    User.objects.create(username="regrets")
    said.append(("abandoned", how, getattr(context.error, "summary", None)))


@with_callbacks.on_cancel
def forgets(context: JobContext, how: str) -> None:
    said.append(("cancelled", how, context.error))


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


@define(name="run.leaves", max_attempts=1)
def leaves(how: str) -> None:
    raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "generator": GeneratorExit()}[how]


def outcomes(ran: Ran) -> dict[str, list[int]]:
    """The headings of a summary that have something under them."""
    return {name: ids for name in Ran.__slots__ if name not in ("ran", "errors") and (ids := getattr(ran, name))}


class PlainTestCase(TestCase):
    """As a project has it: unittest, one transaction, nothing committed."""

    def test_jobs_run_and_their_effects_stay(self) -> None:
        """A1, A2, A3, C31: the job is called with its arguments, its value is stored, its effects are there."""
        job = makes_user.register("anna")
        ran = run_jobs()
        assert (ran.ran, ran.succeeded, ran.errors) == ([job.pk], [job.pk], [])
        job.refresh_from_db()
        assert job.state == "succeeded"
        assert job.result == User.objects.get().pk
        assert job.duration_seconds is not None
        assert not Claim.objects.exists()

    def test_hooks_wait_for_the_commit_that_never_comes(self) -> None:
        hooks.register("first")
        run_jobs()
        assert said == []
        hooks.register("second")
        with self.captureOnCommitCallbacks(execute=True) as captured:
            run_jobs()
        assert said == ["second"]
        assert len(captured) == 1

    def test_waiting_for_a_job_that_has_run_returns_at_once(self) -> None:
        job = says.register({"a": 1})
        run_jobs()
        assert job.wait(0).result == {"a": 1}

    def test_a_durable_block_works_as_in_a_worker(self) -> None:
        durable.register()
        assert run_jobs(raise_errors=True).succeeded
        assert User.objects.filter(username="durable").exists()

    async def test_in_an_async_test(self) -> None:
        """Both colours, on the connection that holds the test's transaction."""
        job = await asynchronous.aregister("bert")
        plain = await says.aregister(1)
        ran = await arun_jobs()
        assert ran.succeeded[:2] == [job.pk, plain.pk]
        assert await User.objects.filter(username="bert").aexists()
        assert said == [1, "bert"]


class AutocommitTestCase(TransactionTestCase):
    """As in a worker: every statement of a job is committed."""

    def test_what_a_failing_job_wrote_stays(self) -> None:
        job = writes_and_fails.register("anna")
        assert run_jobs().abandoned == [job.pk]
        assert User.objects.get().username == "anna"

    def test_a_swallowed_error_is_no_trouble(self) -> None:
        job = swallows.register()
        assert run_jobs().succeeded == [job.pk]
        assert User.objects.get().username == "lost"

    def test_an_async_job(self) -> None:
        job = asynchronous.register("anna")
        assert run_job(job, raise_errors=True).progress == {"n": 1, "total": 2, "message": "half"}


@in_a_test_case
def test_a_job_that_breaks_the_transaction_loses_its_own_work_only() -> None:
    """A3, C27: the failure is recorded with type and text; neighbours and the test go on."""
    makes_user.register("anna")
    broken = makes_user.register("anna")
    after = makes_user.register("bert")
    ran = run_jobs()
    assert ran.abandoned == [broken.pk]
    assert ran.succeeded[-1] == after.pk
    assert isinstance(ran.errors[0], IntegrityError)
    assert sorted(User.objects.values_list("username", flat=True)) == ["anna", "bert"]
    broken.refresh_from_db()
    assert broken.error.startswith("IntegrityError: duplicate key")
    attempt = broken.attempts.get()
    assert attempt.exception == "django.db.utils.IntegrityError"
    assert "makes_user" in attempt.traceback


@in_a_test_case
def test_a_job_that_fails_keeps_what_it_wrote_as_in_a_worker() -> None:
    writes_and_fails.register("anna")
    run_jobs()
    assert User.objects.get().username == "anna"


@in_a_test_case
def test_a_job_that_swallows_a_database_error_cannot_succeed_in_a_transaction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it wrote is undone, so a success would be a lie; the error says what to do."""
    job = swallows.register()
    ran = run_jobs()
    assert said == ["swallowed"]
    assert ran.abandoned == [job.pk]
    assert isinstance(ran.errors[0], TransactionManagementError)
    assert not User.objects.exists()
    assert "TransactionTestCase" in caplog.text


@in_a_test_case
def test_an_error_that_django_does_not_know_of_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """A cursor leaves no mark on Django's side of the connection."""
    with mock.patch.object(swallows, "func", side_effect=divides_by_zero):
        job = swallows.register()
        assert run_jobs().abandoned == [job.pk]
    assert "caught a database error" in caplog.text
    makes_user.register("anna")
    assert run_jobs().succeeded


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("marked", [True, False])
def test_other_databases_have_savepoints_too(marked: bool) -> None:
    """And one that is not PostgreSQL is believed when it says nothing."""

    def writes() -> None:
        User.objects.using("other").create(username="elsewhere")
        transaction.set_rollback(marked, using="other")

    with mock.patch.object(swallows, "func", side_effect=writes):
        job = swallows.register()
        assert outcomes(run_jobs()) == {"abandoned" if marked else "succeeded": [job.pk]}
    assert User.objects.using("other").exists() is not marked


@in_a_test_case
def test_a_database_error_inside_a_block_of_its_own_is_no_trouble() -> None:
    job = careful.register()
    assert run_job(job).result == "survived"
    assert User.objects.get().username == "kept"


@in_a_test_case
def test_a_snooze_after_a_database_error_is_a_snooze() -> None:
    job = snoozes_after_trouble.register()
    assert run_jobs().snoozed == [job.pk]


@in_a_test_case
def test_attempts_are_used_up(caplog: pytest.LogCaptureFixture) -> None:
    """A4, C33, C37, P23, P38: three runs, each in the history, logged as in production."""
    job = fails.register("broken")
    ran = run_jobs()
    assert said == [1, 2, 3]
    assert ran.ran == [job.pk] * 3
    assert outcomes(ran) == {"retried": [job.pk] * 2, "abandoned": [job.pk]}
    assert [str(error) for error in ran.errors] == ["broken"] * 3
    job.refresh_from_db()
    assert (job.state, job.attempt, job.error) == ("abandoned", 3, "ValueError: broken")
    assert list(job.attempts.order_by("number").values_list("number", "cause")) == [(n, "failed") for n in (1, 2, 3)]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]
    assert all(record.exc_info for record in caplog.records)


@in_a_test_case
def test_a_retry_waits_for_its_delay() -> None:
    """C34, P24: the delay is counted by the database's clock; the next call finds nothing due."""
    job = fails_later.register()
    assert outcomes(run_jobs()) == {"retried": [job.pk]}
    assert run_jobs() == Ran()
    assert outcomes(run_jobs(include_scheduled=True)) == {"retried": [job.pk], "abandoned": [job.pk]}


@in_a_test_case
def test_scheduled_jobs_run_when_asked() -> None:
    later = says.using(delay=3600).register("later")
    now = says.register("now")
    assert run_jobs().ran == [now.pk]
    assert run_jobs(include_scheduled=True).ran == [later.pk]
    later.refresh_from_db()
    assert later.finished_at is not None
    assert later.run_at < later.finished_at


@in_a_test_case
def test_jobs_of_jobs_run_too() -> None:
    spawns.register(5)
    assert len(run_jobs().ran) == 6
    assert said == [5, 4, 3, 2, 1, 0]


@in_a_test_case
def test_jobs_that_never_end_are_reported() -> None:
    goes_on.register()
    with pytest.raises(RuntimeError, match=r"After 4 rounds 1 jobs are still due, the first is run\.goes_on #"):
        run_jobs(max_rounds=4)
    assert Job.objects.filter(state="succeeded").count() == 4


@in_a_test_case
def test_the_last_round_may_be_the_last() -> None:
    says.register()
    assert len(run_jobs(max_rounds=1).ran) == 1


@in_a_test_case
def test_order_limit_and_queues() -> None:
    for text, options in {"c": {"queue": "b"}, "b": {"queue": "a"}, "a": {"priority": 5}}.items():
        says.using(**options).register(text)  # type: ignore[arg-type]
    says.using(queue="else").register("not this")
    assert len(run_jobs(queues={"default", "a", "b"}, limit=2).ran) == 2
    assert said == ["a", "c"]
    run_jobs(queues="a")
    assert said == ["a", "c", "b"]


@in_a_test_case
def test_an_error_is_raised_once_it_is_recorded() -> None:
    job = fails.register("seen")
    with pytest.raises(ValueError, match="seen"):
        run_jobs(raise_errors=True)
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("ready", 1)
    with pytest.raises(ValueError, match="seen"):
        run_job(job, raise_errors=True)


@in_a_test_case
@pytest.mark.parametrize("how", ["exit", "generator"])
def test_what_leaves_a_worker_is_a_failure(how: str) -> None:
    """C28."""
    job = leaves.register(how)
    assert outcomes(run_jobs()) == {"abandoned": [job.pk]}


@in_a_test_case
def test_an_interrupt_ends_the_test_but_leaves_no_job_behind() -> None:
    """C28, and Ctrl-C: recorded as a worker would, and raised."""
    job = leaves.register("interrupt")
    with pytest.raises(KeyboardInterrupt):
        run_jobs()
    job.refresh_from_db()
    assert (job.state, job.error) == ("abandoned", "KeyboardInterrupt")


@in_a_test_case
def test_the_test_frameworks_own_exceptions_come_through() -> None:
    with mock.patch.object(says, "func", side_effect=pytest.fail.Exception("asserted in a job")):
        says.register()
        with pytest.raises(pytest.fail.Exception):
            run_jobs()


@in_a_test_case
def test_an_async_job_uses_the_connection_of_the_test() -> None:
    """The job's own context, its registrations and its last progress report included."""
    job = run_job(asynchronous.register("anna"))
    user = User.objects.get(username="anna")
    again = Job.objects.get(name="run.says")
    assert job.result == {"user": user.pk, "job": again.pk, "in": job.pk, "thread": threading.get_ident()}
    assert job.progress == {"n": 1, "total": 2, "message": "half"}


@in_a_test_case
def test_an_async_job_that_breaks_the_transaction() -> None:
    job = async_fails.register()
    assert outcomes(run_jobs()) == {"abandoned": [job.pk]}
    assert said == [0]


@in_a_test_case
def test_a_job_knows_its_context() -> None:
    """A64."""
    expected = {"attempt": 1, "state": "running", "progress": {"n": 3, "total": 4, "message": "nearly"}}
    assert run_job(reports.register()).result == expected
    with pytest.raises(RuntimeError):
        current_context()


_tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


@in_a_test_case
def test_a_job_sees_nothing_of_the_callers_context() -> None:
    """As in a worker: another process, another time, no active language."""
    token = _tenant.set("north")
    with mock.patch.object(says, "func", side_effect=lambda: [_tenant.get(), translation.get_language()]):
        job = says.register()
        with translation.override("de"):
            run_jobs(raise_errors=True)
    _tenant.reset(token)
    job.refresh_from_db()
    assert job.result == ["none", "en-us"]


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
    assert "callback failed on_abandon=run.bad_callback" in caplog.text
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
    Job.objects.update(ending_attempt=finalise.CALLBACK_STARTS)
    assert outcomes(run_jobs()) == {"cancelled": [job.pk]}
    assert said == []
    assert "callback crashed 3 times" in caplog.text


@in_a_test_case
def test_a_cancelled_job_whose_payload_is_unreadable_ends_without_its_callback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It cannot be parked, and would be marked for the callback for ever."""
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
        job = Job.objects.get(pk=store.register_job("default", store.NewJob("no.such", "{}")).id)
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
    with mock.patch.object(store, "read_payload", return_value=None):
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
    failing = mock.patch.object(finalise, "write", side_effect=RuntimeError("ours"))
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
    assert heard == [
        (fails, {**failed, "attempt": 1, "delay": 0.0}),
        (says, {**failed, "job_id": fine.pk, "name": "run.says", "attempt": 1, "outcome": "succeeded", "error": ""}),
        (fails, {**failed, "attempt": 2, "delay": 0.0}),
        (fails, {**failed, "attempt": 3, "outcome": "abandoned"}),
    ]


def test_a_row_that_somebody_holds_is_left_alone(other: RawDatabase) -> None:
    """And the one behind it is not run in its place."""
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
    real, calls = finalise.write, iter([True, False, False])

    def fails_once(*args: Any, **options: Any) -> Any:
        if next(calls):
            raise RuntimeError("ours")
        return real(*args, **options)

    with mock.patch.object(finalise, "write", fails_once), pytest.raises(RuntimeError, match="ours"):
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
    store.release_jobs(raw, taken.ends(), AUTHOR)
    assert run_jobs().succeeded == [job.pk]


@pytest.mark.usefixtures("committed")
def test_in_an_async_function_without_a_transaction() -> None:
    async def test() -> Ran:
        await asynchronous.aregister("anna")
        return await arun_jobs()

    assert len(async_to_sync(test)().succeeded) == 2


@in_a_test_case
def test_on_abandon_is_given_the_whole_error() -> None:
    """C6, row A5: with its kind, the chain of causes and a traceback, as the history shows them."""
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
    """C6: the callback runs all the same."""

    def away(*_: object) -> None:
        raise OperationalError("away")

    gives_up.register()
    monkeypatch.setattr(store, "read_failure", lambda *_: Failure("OSError", "of another attempt"))
    run_jobs()
    gives_up.register()
    monkeypatch.setattr(store, "read_failure", away)
    run_jobs()
    assert said == [Failure("", "ValueError: outer ← KeyError: 'inner'")] * 2
    assert "history cannot be read, a callback gets one line of its error" in caplog.text
