"""``on_success``: the result is stored first, then the callback runs at least once, then the job has succeeded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_pgjobs import Backoff, JobContext, job
from django_pgjobs.ends import finalise
from django_pgjobs.ends.kinds import END, MARK, SUCCESS
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.execution import attempt
from django_pgjobs.execution.prepared import Prepared
from django_pgjobs.execution.single_job import Performer
from django_pgjobs.models import Job, StoredResult
from django_pgjobs.store import finalising, keeping
from django_pgjobs.testing import isolated_registry, run_jobs
from tests.plugins.fix_db import AUTHOR, RawDatabase, claim

pytestmark = pytest.mark.usefixtures("raw")

said: list[Any] = []


@pytest.fixture(autouse=True)
def isolated() -> Iterator[None]:
    said.clear()
    with isolated_registry():
        yield


def define() -> Any:
    """A job with a callback that notes what it finds."""

    @job(name="success.told", max_attempts=3, backoff=Backoff(0))
    def told(number: int) -> int:
        if number < 0 and len(said) < 1:
            said.append("failed")
            raise ValueError("not yet")
        return number * 2

    @told.on_success
    def tell(context: JobContext, number: int) -> None:
        row = Job.objects.get(pk=context.id)
        said.append((row.state, row.ending, row.outcome, row.result, number, context.error))

    return told


def test_the_callback_finds_the_result_and_the_job_ends_behind_it() -> None:
    told = define()
    one = told.register(21)
    assert run_jobs().succeeded == [one.pk]
    assert said == [("running", "succeeded", None, 42, 21, None)]
    one.refresh_from_db()
    assert (one.state, one.result, one.attempt, one.error) == ("succeeded", 42, 1, "")
    assert one.finished_at is not None
    assert not one.attempts.exists()


def test_an_earlier_failure_is_not_the_callbacks_error() -> None:
    told = define()
    one = told.register(-1)
    assert run_jobs().succeeded == [one.pk]
    assert one.attempts.get().cause == "failed"
    assert said == ["failed", ("running", "succeeded", None, -2, -1, None)]


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_an_error_in_it_is_logged_and_the_job_has_succeeded(colour: str, caplog: pytest.LogCaptureFixture) -> None:
    @job
    async def body() -> str:
        return "done"

    if colour == "sync":

        @body.on_success
        def fails(context: JobContext) -> None:
            raise RuntimeError("cannot tell")

    else:

        @body.on_success
        async def afails(context: JobContext) -> None:
            raise RuntimeError("cannot tell")

    one = body.register()
    assert run_jobs().succeeded == [one.pk]
    one.refresh_from_db()
    assert (one.state, one.result) == ("succeeded", "done")
    assert any("callback failed callback=on_success " in record.message for record in caplog.records)


def test_a_job_without_it_ends_by_one_statement() -> None:
    """Plain jobs pay nothing."""

    @job(name="success.plain")
    def plain() -> None: ...

    told = define()
    assert finalise.end_of(attempt.NOTHING, 1, "c", plain.name, 0.0)[0] == SUCCESS
    assert finalise.end_of(attempt.NOTHING, 1, "c", told.name, 0.0)[0] == MARK


def test_after_a_crash_it_runs_again_and_the_body_does_not(raw: RawDatabase) -> None:
    """Three starts at most; then the job ends without it. The result stays what it was."""
    told = define()
    one = told.register(4)
    crashing = Performer(raw, AUTHOR, run=lambda prepared: crash(prepared))

    def crash(prepared: Prepared) -> Any:
        if prepared.job.ending is not None:
            said.append("crash")
            raise SystemExit
        return attempt.run_here(prepared)

    for _ in range(3):
        taken = claim(raw)
        with pytest.raises(SystemExit):
            crashing.perform(taken.jobs[0])
        assert Job.objects.get().result == 8
        assert one.why().code in ("callback", "running")
        raw.query("UPDATE pgjobs_claim SET lease_expires_at = statement_timestamp(), check_at = statement_timestamp()")
        keeping.rescue_jobs(
            raw, limit=10, quiet_seconds=0, grace_seconds=0, stale_seconds=60, without_on_cancel=[],
            without_on_abandon=[],
        )  # fmt: skip
        row = Job.objects.get()
        assert (row.state, row.ending, row.attempt) == ("ready", "succeeded", 1)
    assert "Only its end is left: on_success, if it has one; then it is succeeded." in one.why().text
    assert one.cancel().skipped == {"ending": 1}, "it has succeeded"
    taken = claim(raw)
    assert crashing.perform(taken.jobs[0]).kind == END
    one.refresh_from_db()
    assert (one.state, one.result, said) == ("succeeded", 8, ["crash"] * 3)


def test_a_success_is_remembered_under_its_key_before_the_callback() -> None:
    told = define()
    first, second = (told.using(idempotency_key="once").register(1) for _ in range(2))
    assert len(run_jobs().succeeded) == 2
    assert StoredResult.objects.get().result == 2
    assert StoredResult.objects.get().job_id == first.pk
    second.refresh_from_db()
    assert (second.result, len(said)) == (2, 2)


@pytest.mark.parametrize("strict", [False, True], ids=["by default", "strict"])
def test_a_result_that_cannot_be_stored_calls_it_only_if_the_job_succeeds(strict: bool) -> None:
    @job(strict_results=strict)
    def body() -> object:
        return object()

    @body.on_success
    def tell(context: JobContext) -> None:
        said.append(Job.objects.get(pk=context.id).result)

    one = body.register()
    ran = run_jobs()
    if strict:
        assert (ran.abandoned, said) == ([one.pk], [])
        return
    assert ran.succeeded == [one.pk]
    [stored] = said
    assert "object" in stored["$unstored"]
    assert one.value() is None


def test_a_lost_claim_marks_nothing(raw: RawDatabase) -> None:
    """The fence of the mark is that of every end."""
    told = define()
    told.register(1)
    [end] = claim(raw).ends(outcome="succeeded", result="1")
    raw.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid()")
    assert finalising.mark_ending(raw, [end], AUTHOR, allowance_seconds=1.0) == []
    assert Job.objects.get().ending is None


def test_it_is_checked_as_the_other_callbacks_are() -> None:
    told = define()
    with pytest.raises(InvalidJob, match="on_success is set already"):
        told.on_success(lambda context, number: None)

    @job
    def other(number: int) -> None: ...

    with pytest.raises(InvalidJob, match="on_success"):

        @other.on_success  # type: ignore[arg-type]
        def wrong() -> None: ...
