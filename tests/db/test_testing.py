"""``django_pgjobs.testing``: moving rows in time, and assertions about registered jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any
from unittest.mock import ANY

import pytest
from django.db import connection

from django_pgjobs import Backoff, JobContext
from django_pgjobs import job as define
from django_pgjobs.models import Attempt, Heartbeat, Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.store import registering
from django_pgjobs.store.database import on
from django_pgjobs.store.new_jobs import NewJob
from django_pgjobs.testing import assert_not_registered, assert_registered, backdate, isolated_registry, run_jobs
from tests.plugins.fix_db import WORKER, RawDatabase, claim

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


class Size(StrEnum):
    LARGE = "large"


@define(name="testing.sends", aliases=["testing.sent"], sensitive=["text"])
def sends(user_id: int, text: str = "hello", /, *more: object, queue: object = None, **extra: object) -> None: ...


@define(name="testing.fails", backoff=Backoff(3600), max_attempts=2)
def fails() -> None:
    raise ValueError


@define(name="testing.tells", takes_context=True)
def reports(context: JobContext, count: int) -> None: ...


def instants(row: Any, *names: str) -> list[datetime]:
    row.refresh_from_db()
    return [getattr(row, name) for name in names]


# backdate


def test_a_job_is_moved_into_the_past() -> None:
    job = sends.using(delay=HOUR).register(1)
    run_at, created_at = job.run_at, job.created_at
    assert run_jobs().ran == []
    assert backdate(job, run_at=3601, created_at=HOUR) == 1
    assert job.run_at == run_at - timedelta(seconds=3601)
    assert instants(job, "run_at", "created_at") == [run_at - timedelta(seconds=3601), created_at - HOUR]
    assert run_jobs().ran == [job.pk]


def test_a_retry_is_brought_forward() -> None:
    job = fails.register()
    run_jobs()
    backdate(job, run_at=HOUR)
    assert run_jobs().abandoned == [job.pk]
    job.refresh_from_db()
    ended = job.finished_at
    assert ended is not None
    backdate(Job.objects.filter(outcome="abandoned"), finished_at=timedelta(days=30))
    assert instants(job, "finished_at") == [ended - timedelta(days=30)]
    backdate(Attempt.objects.all(), ended_at=HOUR)


def test_many_are_moved_even_out_of_their_own_filter() -> None:
    jobs = [sends.using(delay=n * 60).register(n) for n in range(4)]
    later = Job.objects.filter(run_at__gt=jobs[0].run_at).order_by("-run_at")
    assert backdate(later[:2], run_at=HOUR) == 2
    assert backdate(later, run_at=-HOUR) == 1
    assert run_jobs().ran == [jobs[2].pk, jobs[3].pk, jobs[0].pk]


def test_an_instant_that_is_not_set_stays_so() -> None:
    job = sends.register(1)
    assert backdate(job, finished_at=HOUR) == 1
    assert job.finished_at is None


def test_a_lease_is_that_of_the_claim() -> None:
    """House rule: tests move rows and stub no clock."""
    held = sends.using(timeout=60).register(1)
    claim(on("default"), lease=30)
    free = sends.register(2)
    row = Claim.objects.get()
    lease, check = row.lease_expires_at, row.check_at
    assert backdate(held, lease=HOUR) == 1
    assert backdate(free, lease=HOUR) == 1
    assert instants(row, "lease_expires_at", "check_at") == [lease - HOUR, check - HOUR]
    backdate(row, lease_expires_at=-HOUR)
    assert instants(row, "lease_expires_at", "check_at") == [lease, check - HOUR]


def test_a_deadline_is_looked_at_where_the_claim_says() -> None:
    held = sends.using(timeout=60).register(1)
    claim(on("default"), lease=30)
    row = Claim.objects.get()
    lease, check = row.lease_expires_at, row.check_at
    held.refresh_from_db()
    deadline = held.overdue_at
    assert deadline is not None
    backdate(held, overdue_at=HOUR)
    assert held.overdue_at == deadline - HOUR
    assert instants(row, "lease_expires_at", "check_at") == [lease, check - HOUR]


def test_a_heartbeat_is_moved() -> None:
    beat = Heartbeat.objects.create(
        id=WORKER, name="w", host="h", pid=1, processes=1, threads=1, async_slots=0, version="1"
    )
    beat.refresh_from_db()
    before = beat.last_beat_at
    backdate(beat, last_beat_at=90)
    assert beat.last_beat_at == before - timedelta(seconds=90)


def test_what_is_no_instant_is_refused() -> None:
    job = sends.register(1)
    with pytest.raises(TypeError, match=r"Job has no instant 'finish_at' \(did you mean 'finished_at'\?\)"):
        backdate(job, finish_at=1)
    with pytest.raises(TypeError, match="Claim has no instant 'lease'"):
        backdate(Claim.objects.all(), lease=1)
    with pytest.raises(TypeError, match=r"needs what to move, one or more of run_at, .*, lease"):
        backdate(job)


# assert_registered


def test_the_job_is_found_by_its_arguments() -> None:
    job = sends.register(1, "hello", queue="mine")
    assert assert_registered(sends.bind(1, "hello", queue="mine"), queue="default") == [job]
    assert assert_registered(sends.bind(1, queue="mine")) == [job]
    assert assert_registered(sends) == [job]
    run_jobs()
    assert assert_registered(sends) == [job]
    assert_not_registered(sends, 2)
    assert_not_registered(sends, queue="bulk")
    assert_not_registered(fails)


def test_defaults_count_as_given_and_values_as_stored() -> None:
    sends.register(1)
    assert_registered(sends, 1, "hello")
    sends.register(2, "a", Size.LARGE, Decimal("1.50"), (1, [2]), when=datetime(2024, 1, 1))
    assert_registered(sends, 2, "a", Size.LARGE, Decimal("1.5"), (1, [2]), when=datetime(2024, 1, 1))
    assert_registered(sends, 2, ANY, "large", ANY, (1, ANY), when=ANY)
    assert_not_registered(sends, 2, "a", "large", ANY, [1, [2]], when=ANY)


def test_the_context_is_no_argument() -> None:
    reports.register(count=3)
    assert_registered(reports.bind(3))
    assert_registered(reports.bind(count=3))
    assert_not_registered(reports.bind(4))


def test_a_renamed_job_is_found_by_its_alias() -> None:
    registering.register_plain(connection, NewJob("testing.sent", '{"args": [7]}'))
    assert_registered(sends, 7)


def test_numbers_are_exact_unless_any_will_do() -> None:
    for _ in range(2):
        sends.register(1)
    assert len(assert_registered(sends, 1, count=2)) == 2
    assert len(assert_registered(sends, 1, count=None)) == 2
    assert assert_registered(sends, 2, count=0) == []
    with pytest.raises(AssertionError, match="1 expected, 2 registered"):
        assert_registered(sends, 1)
    with pytest.raises(AssertionError, match="at least one expected, 0 registered"):
        assert_registered(sends, 2, count=None)


def test_options_of_a_bound_job_are_compared() -> None:
    run_at = sends.register(1).run_at
    sends.using(queue="bulk", priority=7, timeout=None, max_attempts=2, run_at=run_at).register(1)
    assert_registered(sends.using(queue="bulk", priority=7, timeout=None, max_attempts=2).bind(1))
    assert_registered(sends.using(run_at=run_at, delay=None).bind(1), count=2)
    assert_registered(sends.using(queue="bulk", database="default").bind(1))
    assert_not_registered(sends.using(priority=6).bind(1))
    assert_not_registered(sends.using(priority=7).bind(1), queue="default")


def test_a_failure_says_what_is_registered() -> None:
    sends.using(queue="mail", priority=3).register(1, "text", "more", size=2)
    fails.register()
    with pytest.raises(AssertionError) as raised:
        assert_registered(sends, 1, queue="mail")
    lines = str(raised.value).splitlines()
    assert lines[0] == (
        "1 expected, 0 registered: testing.sends(user_id=1, text='hello', more=(), queue=None, extra={}) queue='mail'"
    )
    assert lines[1] == "Registered:"
    arguments = "user_id=1, text='text', more=('more',), queue=None, extra={'size': 2}"
    assert lines[2].endswith(f"testing.sends({arguments}) ready queue='mail' priority=3")
    assert lines[3].endswith("testing.fails() ready queue='default' priority=0")
    with pytest.raises(AssertionError, match=r"registered, but should not be: testing\.fails\(…\)\nRegistered:\n"):
        assert_not_registered(fails)


def test_a_failure_with_nothing_or_very_much_registered() -> None:
    with pytest.raises(AssertionError, match=r"Registered:\n  nothing$"):
        assert_registered(fails)
    fails.register_many([()] * 23)
    with pytest.raises(AssertionError, match=r"  … and 3 more$"):
        assert_registered(fails)


@pytest.mark.parametrize("payload", ['{"args": ["too", "many"]}', '{"args": [{"$": "no such tag"}]}', "[1]", "{}"])
def test_what_no_code_understands_is_listed_as_it_lies_there(payload: str) -> None:
    for name in ("testing.tells", "no.such"):
        registering.register_plain(connection, NewJob(name, payload))
    with pytest.raises(AssertionError, match=r"testing\.tells\(payload=.*\n.*no\.such\(payload="):
        assert_registered(reports.bind(1))


def test_arguments_that_do_not_fit_are_an_error_of_the_test() -> None:
    with pytest.raises(TypeError, match="user_id"):
        assert_registered(sends, text="no user")
    with pytest.raises(TypeError, match="has its arguments already"):
        assert_registered(sends.bind(1), 1)


def test_an_isolated_registry_knows_nothing() -> None:
    job = sends.register(1)
    with isolated_registry():
        assert run_jobs().parked == [job.pk]
    job.retry()
    assert run_jobs().succeeded == [job.pk]


def test_the_committed_are_seen_too(raw: RawDatabase) -> None:
    sends.register(1)
    assert_registered(sends, 1, database="default")
