"""``deadline=``: a job is not started after this instant, is stopped at it, and is abandoned then."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_pgjobs import Backoff, JobContext, clock, job
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Job
from django_pgjobs.testing import isolated_registry, run_jobs
from tests.plugins.fix_db import RawDatabase, claim, patience

pytestmark = pytest.mark.usefixtures("raw")

ran: list[int] = []


@pytest.fixture(autouse=True)
def isolated() -> Iterator[None]:
    ran.clear()
    with isolated_registry():
        yield


def soon(seconds: float) -> datetime:
    return timezone.now() + timedelta(seconds=seconds)


def pass_by(registered: Job) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgjobs_job SET deadline = statement_timestamp() - interval '1 s'")


def test_a_job_is_not_started_after_its_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """D26 P38: abandoned with the reason and one ERROR, its callback called, its body not."""
    abandoned: list[Any] = []

    @job
    def body() -> None:
        ran.append(1)

    @body.on_abandon
    def gone(context: JobContext) -> None:
        abandoned.append(context.error)

    registered = body.using(deadline=soon(60)).register()
    pass_by(registered)
    with caplog.at_level(logging.WARNING, "django_pgjobs"):
        assert run_jobs().abandoned == [registered.pk]
    [line] = caplog.records
    assert (line.levelname, f" job={registered.pk} " in line.getMessage()) == ("ERROR", True)
    assert line.getMessage().endswith(": its deadline had passed before it started")
    registered.refresh_from_db()
    assert (ran, registered.attempt) == ([], 1)
    assert "deadline had passed before the attempt could start" in registered.error
    assert registered.attempts.get().cause == "timeout"
    assert len(abandoned) == 1


def test_before_its_deadline_a_job_runs_and_knows_it() -> None:
    left: list[float | None] = []

    @job(takes_context=True, timeout=None)
    def body(context: JobContext) -> None:
        left.append(context.remaining())

    @job(takes_context=True, timeout=10)
    def limited(context: JobContext) -> None:
        left.append(context.remaining())

    body.using(deadline=soon(60)).register()
    limited.using(deadline=soon(60)).register()
    assert len(run_jobs().succeeded) == 2
    assert left[0] is not None
    assert left[1] is not None
    assert 50 < left[0] <= 60
    assert left[1] <= 10


def test_a_failure_that_leaves_no_time_for_another_attempt_is_the_last() -> None:
    @job(max_attempts=5, backoff=Backoff(120, jitter=0))
    def fails() -> None:
        raise OSError("line is down")

    late, early = fails.using(deadline=soon(60)).register(), fails.using(deadline=soon(600)).register()
    assert run_jobs().abandoned == [late.pk]
    late.refresh_from_db()
    assert "line is down" in late.error
    early.refresh_from_db()
    assert early.state == "ready"


def test_the_claim_tells_how_long_is_left_and_bounds_the_backstop(raw: RawDatabase) -> None:
    @job(timeout=3600)
    def body() -> None: ...

    registered = body.using(deadline=soon(100)).register()
    [claimed] = claim(raw).jobs
    assert claimed.until == pytest.approx(clock.monotonic() + 100, abs=patience(5))
    registered.refresh_from_db()
    assert registered.overdue_at is not None
    assert registered.claimed_at is not None
    assert timedelta(seconds=90) < registered.overdue_at - registered.claimed_at < timedelta(seconds=110)


def test_a_retry_by_an_operator_forgets_a_deadline_that_has_passed() -> None:
    @job
    def body() -> None:
        ran.append(1)

    registered = body.using(deadline=soon(60)).register()
    pass_by(registered)
    run_jobs()
    assert registered.retry().changed == 1
    assert run_jobs().succeeded == [registered.pk]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deadline": "tomorrow"}, "deadline must be a datetime, not 'tomorrow'"),
        ({"deadline": datetime(2026, 1, 1)}, "deadline must be an aware datetime"),
        ({"deadline": datetime(2020, 1, 1, tzinfo=UTC)}, "deadline must be in the future"),
        ({"deadline": datetime(2300, 1, 1, tzinfo=UTC)}, "deadline must be at most 3650 days ahead"),
        ({"deadline": datetime(2030, 1, 1, tzinfo=UTC), "run_at": datetime(2030, 1, 2, tzinfo=UTC)}, "after run_at"),
        ({"deadline": "soon", "delay": 3600}, "before the delay ends"),
    ],
)
def test_a_deadline_that_cannot_be_met_is_refused(options: dict[str, Any], words: str) -> None:
    @job
    def body() -> None: ...

    if options["deadline"] == "soon":
        options = {**options, "deadline": soon(60)}
    with transaction.atomic():
        with pytest.raises(InvalidJob, match=words):
            body.using(**options).register()
        body.register()
    assert Job.objects.count() == 1


def test_a_deadline_is_no_option_of_what_bypasses_the_queue_or_of_a_schedule() -> None:
    from django_pgjobs import Cron

    @job
    def body() -> None: ...

    with pytest.raises(InvalidJob, match="deadline and bypass exclude each other"):
        body.using(deadline=soon(60), bypass=True)
    with pytest.raises(InvalidJob, match="deadline makes no sense"):
        Cron("@daily", body.using(deadline=soon(60)).bind(), name="x")
