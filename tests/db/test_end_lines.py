"""The line about an end, once it is stored."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from django_pgjobs import Abandon, Backoff, Cancel, JobContext, Snooze
from django_pgjobs import job as define
from django_pgjobs.maintenance.expiry import JobExpirer
from django_pgjobs.models import Job
from django_pgjobs.testing import run_jobs
from tests.plugins.fix_db import RawDatabase

pytestmark = pytest.mark.usefixtures("committed")

SECRET = "tell-nobody"


@define(name="lines.does", queue="mail", max_attempts=2, backoff=Backoff(3600))
def does(how: str, secret: str = SECRET) -> str:
    errors: dict[str, BaseException] = {
        "fails": ValueError("no\nway"),
        "abandons": Abandon("why"),
        "cancels": Cancel("why"),
        "snoozes": Snooze(3600),
    }
    if how in errors:
        raise errors[how]
    return f"result {SECRET}"


@define(name="lines.called", max_attempts=1)
def called() -> None: ...


@called.on_success
def after_success(context: JobContext) -> None: ...


def lines(caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    """What is logged at DEBUG of the ends while the jobs run, without what differs each time."""
    with caplog.at_level(logging.DEBUG, "django_pgjobs"):
        run_jobs(**options)
    ends = [each for each in caplog.records if each.levelno == logging.DEBUG and each.name == "django_pgjobs.jobs"]
    assert SECRET not in caplog.text, "neither arguments nor a result stand in any line"
    return [
        re.sub(r"\d+\.\d{4}\b|[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT\S+?(?=:? |$)", "…", e.getMessage())
        for e in ends
    ]


@pytest.mark.parametrize(
    ("how", "phrase", "outcome", "rest"),
    [
        ("ends", "job ended", "succeeded", "seconds=…"),
        ("fails", "attempt ended, the job has not", "retried", "cause=failed seconds=… run_at=…: ValueError: no way"),
        ("abandons", "job ended", "abandoned", "cause=failed seconds=…: Abandon: why"),
        ("cancels", "job ended", "cancelled", "seconds=…"),
        ("snoozes", "attempt ended, the job has not", "snoozed", "seconds=… run_at=…"),
    ],
)
def test_each_stored_end_is_one_line(
    how: str, phrase: str, outcome: str, rest: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A70, P38: with the facts of the attempt and the words that the metrics have."""
    job = does.register(how)
    about = f"name=lines.does job={job.pk} attempt=1/2 claim=… queue=mail"
    assert lines(caplog) == [f"{phrase} {about} outcome={outcome} {rest}"]


def test_an_end_with_a_callback_is_told_before_and_after_it(caplog: pytest.LogCaptureFixture) -> None:
    job = called.register()
    about = f"name=lines.called job={job.pk} attempt=1/1 claim=… queue=default outcome=succeeded"
    assert lines(caplog) == [f"attempt ended, a callback follows {about} seconds=…", f"job ended {about}"]


def test_nothing_is_told_at_info(caplog: pytest.LogCaptureFixture) -> None:
    does.register("ends")
    with caplog.at_level(logging.INFO, "django_pgjobs"):
        run_jobs()
    assert [record.getMessage().split()[0] for record in caplog.records] == ["START", "END"]


def test_a_job_that_expires_unclaimed_is_told_by_the_leader(raw: RawDatabase, caplog: pytest.LogCaptureFixture) -> None:
    job = does.using(expires=3600).register("ends")
    Job.objects.filter(pk=job.pk).update(expires_at="2026-01-01T00:00:00Z")
    with caplog.at_level(logging.DEBUG, "django_pgjobs"):
        assert JobExpirer(lambda jobs: None)(raw) == 1
    assert (
        f"job ended name=lines.does job={job.pk} attempt=0 queue=mail outcome=cancelled: it expired before it started"
    ) in caplog.messages
