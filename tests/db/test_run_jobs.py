"""``django_pgjobs.testing``: jobs run and end inside a plain ``TestCase``, and leave nothing behind."""

from __future__ import annotations

import contextvars
import threading
from datetime import timedelta
from unittest import mock

import pytest
from django.contrib.auth.models import User
from django.db import DataError, IntegrityError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase, TransactionTestCase
from django.utils import timezone, translation

from django_pgjobs import Backoff, JobContext, Snooze, current_context
from django_pgjobs import job as define
from django_pgjobs.models import Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.testing import Ran, arun_jobs, run_job, run_jobs
from tests.db.forged_rows import FORGED, forge
from tests.db.run_jobs_ground import asynchronous, fails, in_a_test_case, makes_user, outcomes, said, says

pytestmark = pytest.mark.usefixtures("nothing_said", "receivers_as_before", "quiet")


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
    assert (context.run_at, context.timeout, context.remaining_attempts) == (stored.run_at, stored.timeout_seconds, 1)
    return {"attempt": context.attempt, "state": stored.state, "progress": stored.progress}


@define(name="run.leaves", max_attempts=1)
def leaves(how: str) -> None:
    raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "generator": GeneratorExit()}[how]


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
    """A3, C27: the failure is recorded with type and text; neighbours and the test continue."""
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
    """A64: what it reads of itself is what its row says."""
    expected = {"attempt": 1, "state": "running", "progress": {"n": 3, "total": 4, "message": "nearly"}}
    planned = reports.using(timeout=7.5, max_attempts=1, run_at=timezone.now() - timedelta(hours=1)).register()
    assert run_job(planned).result == expected
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
@pytest.mark.parametrize("what", FORGED)
def test_a_row_that_cannot_be_claimed_or_read_is_parked_and_the_others_run(what: str) -> None:
    """The transaction of the test stays usable."""
    change, words = FORGED[what]
    before, bad, after = says.register(1), says.register(2), says.register(3)
    forge(bad, change)
    ran = run_jobs()
    assert said == [1, 3]
    assert (ran.succeeded, ran.parked, ran.errors) == ([before.pk, after.pk], [bad.pk], [])
    held = Job.objects.defer("timeout_seconds", "payload").get(pk=bad.pk)
    assert (held.state, held.attempt) in (("parked", 0), ("parked", 1), ("parked", 2147483647))
    assert words in held.hold_reason
    assert User.objects.count() == 0


@in_a_test_case
def test_one_job_that_cannot_be_claimed_is_said_to_be_parked() -> None:
    bad = says.register(1)
    forge(bad, FORGED["timeout NaN"][0])
    with pytest.raises(ValueError, match="is parked, so it cannot be run"):
        run_job(bad)
