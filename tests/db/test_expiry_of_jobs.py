"""``expires=``: a job that has not started by then is cancelled, wherever it waits; a started one goes on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone

from django_pgjobs import Backoff, Cron, JobContext, Limit, Snooze, Unique, clock, job, register_many, sql
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.maintenance.cron_firing import Firer
from django_pgjobs.maintenance.expiry import JobExpirer
from django_pgjobs.models import CronEntry, Job
from django_pgjobs.queues import Queue, pauses
from django_pgjobs.store import finalising, firing, keeping
from django_pgjobs.store.finalising import End
from django_pgjobs.testing import backdate, isolated_registry, run_jobs
from tests.plugins.fix_db import AUTHOR, RawDatabase, claim, patience
from tests.plugins.sabotage import sabotage

pytestmark = pytest.mark.usefixtures("raw")

ran: list[Any] = []


@pytest.fixture(autouse=True)
def isolated() -> Iterator[None]:
    ran.clear()
    with isolated_registry():
        yield


def soon(seconds: float) -> datetime:
    return timezone.now() + timedelta(seconds=seconds)


def expire(*jobs: Job) -> None:
    """Let these jobs, or all, expire a second ago, by the database's clock."""
    where = "WHERE id = ANY (%s)" if jobs else ""
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE pgjobs_job SET expires_at = statement_timestamp() - interval '1 s' {where}",
            [[one.pk for one in jobs]] if jobs else None,
        )


def swept(raw: RawDatabase) -> list[int]:
    """The jobs that a turn of the leader ended."""
    ended: list[int] = []
    JobExpirer(lambda jobs: ended.extend(job.id for job in jobs))(raw)
    return sorted(ended)


# At the claim


def test_an_expired_job_is_not_started_but_cancelled() -> None:
    """Not abandoned: nothing went wrong, and nothing was lost but time. Its callback is told."""

    @job
    def body() -> None:
        ran.append(1)

    @body.on_cancel
    def gone(context: JobContext) -> None:
        ran.append(("gone", context.id))

    registered = body.using(expires=60).register()
    expire()
    assert run_jobs().cancelled == [registered.pk]
    registered.refresh_from_db()
    assert (registered.state, registered.cancel_reason, registered.error) == ("cancelled", "expired", "")
    assert ran == [("gone", registered.pk)]
    assert not registered.attempts.exists()


def test_a_job_that_starts_in_time_is_not_stopped_by_its_expiry(raw: RawDatabase) -> None:
    """Unlike a deadline: neither the backstop nor what the job knows of its time changes."""

    @job(takes_context=True, timeout=3600)
    def body(context: JobContext) -> None:
        ran.append(context.remaining())

    registered = body.using(expires=60).register()
    [claimed] = claim(raw).jobs
    assert claimed.expires == pytest.approx(clock.monotonic() + 60, abs=patience(5))
    registered.refresh_from_db()
    assert registered.overdue_at is not None
    assert registered.claimed_at is not None
    assert registered.overdue_at - registered.claimed_at > timedelta(seconds=3500)
    other = body.using(expires=60).register()
    assert run_jobs().succeeded == [other.pk]
    assert ran[0] > 3000


@pytest.mark.parametrize("how", ["retry", "snooze", "release", "rescue"])
def test_once_it_has_started_a_job_expires_no_more(raw: RawDatabase, how: str) -> None:
    """What is half done is not dropped: a job that ended as expired has done nothing."""

    @job(max_attempts=5)
    def body() -> None: ...

    body.using(expires=60).register()
    claimed = claim(raw, lease=-1.0 if how == "rescue" else 30.0)
    [end] = claimed.ends(cause="released" if how == "release" else "failed")
    if how == "retry":
        finalising.finalise_retry(raw, [End(end.id, end.claim_id, 0.0, cause="failed")], AUTHOR)
    elif how == "snooze":
        finalising.finalise_snooze(raw, [end])
    elif how == "release":
        finalising.release_jobs(raw, [End(end.id, end.claim_id, 0.1, cause="released")], AUTHOR)
    else:
        raw.query("UPDATE pgjobs_claim SET check_at = statement_timestamp()")
        keeping.rescue_jobs(
            raw, limit=10, quiet_seconds=0, grace_seconds=0, stale_seconds=60, without_on_cancel=[],
            without_on_abandon=[],
        )  # fmt: skip
    row = Job.objects.get()
    assert (row.state, row.expires_at) == ("ready", None)


def test_a_job_that_is_released_before_its_start_may_still_expire(raw: RawDatabase) -> None:
    @job
    def body() -> None: ...

    registered = body.using(expires=60).register()
    finalising.release_jobs(raw, claim(raw).ends(), AUTHOR)
    expire()
    assert swept(raw) == [registered.pk]


def test_a_job_that_an_older_worker_has_started_expires_no_more(raw: RawDatabase, capsys: Any) -> None:
    """That worker knows no expiry and leaves it on the row when it retries the job."""

    @job(max_attempts=5)
    def body() -> None: ...

    registered = body.using(expires=60).register()
    [end] = claim(raw).ends(cause="failed")
    finalising.finalise_retry(raw, [End(end.id, end.claim_id, 0.0, cause="failed")], AUTHOR)
    expire()
    assert swept(raw) == []
    assert registered.why().code != "expired"
    call_command("pgjobs", "list")
    assert "expired" not in capsys.readouterr().out
    assert run_jobs().succeeded == [registered.pk]


@pytest.mark.parametrize("how", ["release", "hold"])
def test_a_suspect_has_started_and_expires_no_more(raw: RawDatabase, how: str) -> None:
    """Its process died while it ran in company; a drain or a pause took it before it ran again."""

    @job
    def body() -> None: ...

    body.using(expires=60).register()
    [end] = claim(raw).ends()
    suspect = End(end.id, end.claim_id, suspect=True)
    if how == "release":
        finalising.release_jobs(raw, [suspect], AUTHOR)
    else:
        finalising.hold_jobs(raw, [suspect])
    assert Job.objects.get().expires_at is None


def test_a_failed_attempt_is_retried_after_the_expiry() -> None:
    @job(backoff=Backoff(120, jitter=0))
    def fails() -> None:
        raise OSError("line is down")

    @job
    def snoozes() -> None:
        raise Snooze(120)

    fails.using(expires=60).register()
    snoozes.using(expires=60).register()
    ended = run_jobs()
    assert (len(ended.retried), len(ended.snoozed)) == (1, 1)
    backdate(Job.objects.all(), run_at=3600)
    assert len(run_jobs().ran) == 2


# Where nobody claims it


def test_the_leader_ends_expired_jobs_wherever_they_wait(raw: RawDatabase) -> None:
    """In a paused queue, of a paused name, held by a limit, parked, scheduled later by an operator: none piles up."""

    @job
    def body() -> None: ...

    @job(limits=Limit(1))
    def limited() -> None: ...

    @job
    def paused() -> None: ...

    Queue("mail").pause()
    pauses.pause("job", paused.name)
    found = [body.using(expires=60, queue="mail").register(), limited.using(expires=60).register()]
    found += [body.using(expires=60, unique="k").register(), paused.using(expires=60).register()]
    parked = body.using(expires=60).register()
    Job.objects.filter(pk=parked.pk).update(hold="parked", hold_reason="unknown")
    moved = body.using(expires=60).register()
    moved.reschedule(delay=7200)
    late, never = body.using(expires=600).register(), body.register()
    assert swept(raw) == []
    expire(*found, parked, moved)
    assert swept(raw) == sorted(one.pk for one in [*found, parked, moved])
    rows = Job.objects.exclude(pk__in=[late.pk, never.pk])
    assert set(rows.values_list("state", "cancel_reason", "attempt")) == {("cancelled", "expired", 0)}
    assert {late.why().code, never.why().code} <= {"no_worker", "next", "behind"}
    assert body.using(unique="k").register().pk not in {one.pk for one in found}, "its key is free"


def test_only_the_callback_of_an_expired_job_is_left(raw: RawDatabase) -> None:
    @job
    def body() -> None:
        ran.append("body")

    @body.on_cancel
    def gone(context: JobContext) -> None:
        ran.append(context.attempt)

    registered = body.using(expires=60, delay=10).register()
    expire()
    assert swept(raw) == [], "it has not ended yet"
    registered.refresh_from_db()
    assert (registered.state, registered.ending, registered.cancel_reason) == ("ready", "cancelled", "expired")
    assert run_jobs().cancelled == [registered.pk]
    assert ran == [0]


def test_a_name_that_the_leader_does_not_know_is_left_to_a_worker_that_does(raw: RawDatabase) -> None:
    """It may have a callback."""

    @job(name="expiring.unknown")
    def body() -> None: ...

    registered = body.using(expires=60).register()
    expire()
    with isolated_registry():
        assert swept(raw) == []
    registered.refresh_from_db()
    assert registered.ending == "cancelled"


def test_expired_jobs_are_ended_batch_after_batch(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgjobs.maintenance.expiry.BATCH", 7)
    monkeypatch.setattr("django_pgjobs.maintenance.expiry.BATCH", 7)

    @job
    def body() -> None: ...

    ids = register_many([body.using(expires=60).bind() for _ in range(30)])
    expire()
    assert swept(raw) == sorted(ids)


def test_a_locked_job_expires_later(raw: RawDatabase, other: RawDatabase) -> None:
    @job
    def body() -> None: ...

    one, two = body.using(expires=60).register(), body.using(expires=60).register()
    expire()
    other.query("SELECT id FROM pgjobs_job WHERE id = %s FOR UPDATE", [one.pk])
    assert swept(raw) == [two.pk]
    other.rollback()
    assert swept(raw) == [one.pk]


GUARDS = [line for line in sql.statement("expire_jobs").splitlines() if "claim_id IS NULL" in line]


def test_without_its_guards_a_running_job_would_expire(raw: RawDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged twin."""

    @job
    def body() -> None: ...

    registered = body.using(expires=60).register()
    claim(raw)
    expire()
    assert len(GUARDS) == 2
    assert swept(raw) == []
    sabotage(monkeypatch, "expire_jobs", GUARDS[0])
    sabotage(monkeypatch, "expire_jobs", GUARDS[1], GUARDS[1].replace(" AND j.claim_id IS NULL", ""))
    [started] = [line for line in sql.statement("expire_jobs").splitlines() if "j.attempt = 0" in line]
    sabotage(monkeypatch, "expire_jobs", started)
    assert swept(raw) == [registered.pk]


# What people see


def test_why_says_when_a_job_expires_and_that_it_has(raw: RawDatabase) -> None:
    @job
    def body() -> None: ...

    registered = body.using(expires=3600).register()
    assert "If it has not started by " in registered.why().text
    assert registered.why().code == "no_worker"
    expire()
    found = registered.why()
    assert found.code == "expired"
    assert found.text.startswith("It expired ")
    assert "manage.py runjobs" in found.advice
    swept(raw)
    assert registered.why().text.endswith("ago: expired.")


def test_an_expired_job_that_nobody_has_ended_shows_as_expired(capsys: pytest.CaptureFixture[str]) -> None:
    @job
    def body() -> None: ...

    registered = body.using(expires=60).register()
    expire()
    call_command("pgjobs", "list")
    assert " expired " in capsys.readouterr().out
    call_command("pgjobs", "show", str(registered.pk), "--format", "json")
    shown = capsys.readouterr().out
    assert '"label": "expired"' in shown
    assert '"expires_at": "20' in shown


# Registering


def test_a_duration_counts_from_the_start_that_is_asked_for() -> None:
    """From the registration if there is none; the instance says what the row says."""

    @job(expires=timedelta(minutes=10))
    def body() -> None: ...

    at = soon(7200)
    found = [body.register(), body.using(delay=3600).register(), body.using(run_at=at).register()]
    found += [body.using(unique="k").register(), body.using(expires=30.5, delay=1.25).register()]
    ids = register_many([body.using(delay=60).bind(), body.bind()])
    for row in Job.objects.all():
        assert row.expires_at is not None
        seconds = 30.5 if row.pk == found[-1].pk else 600
        assert row.expires_at - row.run_at == timedelta(seconds=seconds)
    assert [one.expires_at for one in found] == [Job.objects.get(pk=one.pk).expires_at for one in found]
    assert len(ids) == 2
    assert body.using(expires=None).register().expires_at is None
    assert body.using(expires=at).register().expires_at == at


def test_the_expiry_of_the_latest_call_counts_for_a_postponed_job() -> None:
    @job(unique=Unique("k", on_conflict="postpone"))
    def body() -> None: ...

    first = body.using(expires=60, delay=10).register()
    again = body.using(expires=60, delay=600).register()
    assert again.pk == first.pk
    assert again.expires_at == again.run_at + timedelta(seconds=60)
    assert body.register().expires_at is None


def test_a_retry_by_an_operator_forgets_an_expiry_that_has_passed(raw: RawDatabase) -> None:
    @job
    def body() -> None:
        ran.append(1)

    registered = body.using(expires=60).register()
    expire()
    swept(raw)
    assert registered.retry().changed == 1
    assert run_jobs().succeeded == [registered.pk]


def test_a_retry_by_an_operator_keeps_an_expiry_only_if_the_job_has_not_started(raw: RawDatabase) -> None:
    """A job that ended as expired has never run."""

    @job(max_attempts=1)
    def body() -> None:
        raise ValueError

    started = body.using(expires=3600).register()
    assert run_jobs().abandoned == [started.pk]
    waiting = body.using(expires=3600).register()
    assert waiting.cancel().changed == 1
    assert Job.objects.filter(pk__in=[started.pk, waiting.pk]).retry().changed == 2
    started.refresh_from_db()
    waiting.refresh_from_db()
    assert started.expires_at is None
    assert waiting.expires_at is not None


def test_jobs_of_a_schedule_expire_by_the_time_they_fire(raw: RawDatabase) -> None:
    @job(cron=Cron("@hourly"), expires=300)
    def body() -> None: ...

    from django_pgjobs.definition.registry import registry

    declared = {entry.name: entry.declared() for entry in registry.crons()}
    assert '"expires_seconds": 300' in declared[body.name].options
    firing.declare_cron(raw, declared[body.name], overwrite=True, fresh_seconds=0.0)
    CronEntry.objects.get().run_now()
    row = Job.objects.get()
    assert row.expires_at == row.run_at + timedelta(seconds=300)
    backdate(CronEntry.objects.all(), created_at=7200, in_force_since=7200)
    Firer(lambda: True)(raw)
    fired = Job.objects.exclude(pk=row.pk).get()
    assert fired.expires_at == fired.run_at + timedelta(seconds=300)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"expires": "tomorrow"}, "expires must be seconds or a timedelta, not 'tomorrow'"),
        ({"expires": 0}, "expires must be at least 0.001 seconds, not 0"),
        ({"expires": -1}, "expires must be a finite number of seconds ≥ 0, not -1"),
        ({"expires": timedelta(days=4000)}, "expires must be at most 3650 days after the start"),
        ({"expires": datetime(2026, 1, 1)}, "expires must be an aware datetime"),
        ({"expires": datetime(2020, 1, 1, tzinfo=UTC)}, "expires must be in the future"),
        ({"expires": datetime(2300, 1, 1, tzinfo=UTC)}, "expires must be at most 3650 days ahead"),
        ({"expires": datetime(2030, 1, 1, tzinfo=UTC), "run_at": datetime(2030, 1, 2, tzinfo=UTC)}, "after run_at"),
        ({"expires": "soon", "delay": 3600}, "expires must be after the start, and .* is before the delay ends"),
        ({"ttl": 5}, r"unknown option 'ttl': write expires=…"),
    ],
)
def test_an_expiry_that_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    @job
    def body() -> None: ...

    if options.get("expires") == "soon":
        options = {**options, "expires": soon(60)}
    with transaction.atomic():
        with pytest.raises(InvalidJob, match=words):
            body.using(**options).register()
        body.register()
    assert Job.objects.count() == 1


def test_a_job_and_a_schedule_take_a_duration_only() -> None:
    with pytest.raises(InvalidJob, match="expires of @job must be seconds or a timedelta"):

        @job(expires=soon(60))  # type: ignore[call-overload]
        def wrong() -> None: ...

    @job
    def body() -> None: ...

    with pytest.raises(InvalidJob, match="expires must be a duration: the expression decides"):
        Cron("@daily", body.using(expires=soon(60)).bind(), name="x")
    with pytest.raises(InvalidJob, match="expires and bypass exclude each other"):
        body.using(expires=60, bypass=True)
