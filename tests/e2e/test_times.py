"""When jobs start: at their time on the database's clock, after their commit, and at once on an idle worker."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_pgjobs import register_many
from django_pgjobs.models import Job
from tests.e2e import jobs
from tests.plugins.fix_db import RawDatabase, patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history, read

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"threads": 4, "conf": {"POLL_SECONDS": 60, "RENEW_SECONDS": 1, "CALLBACK_SECONDS": 1}}


def start_of(worker: WorkerProcess, key: object) -> float:
    """Return the instant (CLOCK_MONOTONIC) at which ``effect(key)`` was noted."""
    wait_until(lambda: worker.stage.count("effect", key), 30, f"{key} has run")
    return worker.stage.traces("effect", key)[0].at


def test_a_delayed_job_starts_at_its_time_though_the_poll_is_a_minute(
    shared_worker: WorkerProcess, raw: RawDatabase
) -> None:
    """A22 P8 W27: not before, and within a tenth of a second."""
    delayed = jobs.effect.using(delay=2.2).register("later")
    now = raw.value("SELECT clock_timestamp()")
    due = time.monotonic() + (delayed.run_at - now).total_seconds()
    late = start_of(shared_worker, "later") - due
    assert -0.005 <= late < patience(0.1)


def test_an_earlier_one_registered_later_is_not_held_up(shared_worker: WorkerProcess) -> None:
    """P8: a worker that sleeps until one instant wakes for a nearer one."""
    jobs.effect.using(delay=30).register("far")
    time_of_registering = time.monotonic()
    jobs.effect.using(delay=0.5).register("near")
    assert 0.45 <= start_of(shared_worker, "near") - time_of_registering < patience(0.75)


def test_a_job_is_not_seen_before_its_commit_and_at_once_after_it(shared_worker: WorkerProcess) -> None:
    """A68: registered in a transaction that takes its time."""
    with transaction.atomic():
        jobs.effect.register("patient")
        other = time.monotonic() + 0.5
        wait_until(lambda: time.monotonic() > other, 5, "half a second has passed")
        assert not shared_worker.stage.count("effect")
        committed_from = time.monotonic()
    assert 0 <= start_of(shared_worker, "patient") - committed_from < patience(0.25)


def test_a_registration_that_is_rolled_back_never_runs(shared_worker: WorkerProcess) -> None:
    """A66 X: nothing of it is there, and the worker goes on."""
    with transaction.atomic():
        jobs.effect.register("undone")
        transaction.set_rollback(True)
    with transaction.atomic():
        with transaction.atomic():
            jobs.effect.register("undone by savepoint")
            transaction.set_rollback(True)
        jobs.effect.register("done")
    start_of(shared_worker, "done")
    assert [trace.words for trace in shared_worker.stage.traces("effect")] == [("effect", "done")]


@pytest.mark.parametrize("count", [1, 4, 8, 20])
def test_after_a_burst_the_next_job_is_picked_up_at_once(shared_worker: WorkerProcess, count: int) -> None:
    """A68: whatever the last claim took, and however full it was, an idle worker hears the next registration."""
    ended(*jobs_of(register_many(jobs.effect.bind(n) for n in range(count))))
    for n in range(5):
        registered_at = time.monotonic()
        jobs.effect.register(f"next-{n}")
        assert start_of(shared_worker, f"next-{n}") - registered_at < patience(0.15), n


def jobs_of(ids: list[int]) -> list[Job]:
    return list(Job.objects.filter(pk__in=ids))


def test_retries_wait_by_the_backoff_on_the_databases_clock(shared_worker: WorkerProcess, raw: RawDatabase) -> None:
    """A34 C34 C35 P24: 2 s, then 6 s; read from the stored ``run_at``, moved in SQL instead of waited for."""
    failing = jobs.fails_thrice.register()
    for attempt, delay in ((1, 2.0), (2, 6.0)):
        waits = Job.objects.filter(pk=failing.pk, state="ready", attempt=attempt)
        wait_until(waits.exists, 30, f"attempt {attempt} failed")
        kept = read(failing).attempts.get(number=attempt)
        assert read(failing).run_at - kept.ended_at == timedelta(seconds=delay)
        assert kept.exception == "ValueError"
        assert raw.value("SELECT clock_timestamp() < %s", [read(failing).run_at])
        Job.objects.filter(pk=failing.pk).reschedule(delay=0)
    assert ended(failing)[0].outcome == "abandoned"
    assert shared_worker.stage.count("try", failing.pk) == 3


def test_a_retry_in_two_seconds_starts_then_and_not_at_the_poll(shared_worker: WorkerProcess) -> None:
    """A34 P24 W28: the worker that stored the retry knows when to look again."""
    failing = jobs.fails_thrice.register()
    wait_until(lambda: shared_worker.stage.count("try", failing.pk) == 2, 30, "it was tried twice")
    first, second = shared_worker.stage.traces("try", failing.pk)
    assert 2.0 <= second.at - first.at < patience(2.3)


def test_a_snoozed_job_comes_back_and_has_lost_no_attempt(shared_worker: WorkerProcess) -> None:
    """§5 attempts: snooze gives the attempt back."""
    snoozing = jobs.steers.register("snooze")
    assert ended(snoozing)[0].result == 1
    assert snoozing.attempts.count() == 0


def test_a_job_is_heard_of_within_milliseconds(shared_worker: WorkerProcess) -> None:
    """§6 pickup latency: the median of twenty on an idle worker, registering included."""
    took = []
    for n in range(20):
        began = time.monotonic()
        jobs.effect.register(f"quick-{n}")
        took.append(start_of(shared_worker, f"quick-{n}") - began)
    assert sorted(took)[10] < patience(0.05), took


TOLD = ["The attempt ran longer than its soft limit."]


def test_at_its_soft_limit_a_job_is_told_once_and_may_finish(shared_worker: WorkerProcess) -> None:
    """In Python, in queries, on the event loop, in its tasks: caught, it tidies up by a query, waits, and succeeds."""
    told: list[Any] = [jobs.tidies.register(how) for how in ("python", "query", *8 * ["queries"])]
    told += [jobs.atidies.register(how) for how in ("loop", "group", "wait_for")]
    for after in ended(*told):
        assert (after.outcome, after.attempt, after.result) == ("succeeded", 1, TOLD), after.error
        assert after.duration_seconds is not None
        assert after.duration_seconds < patience(5)
    assert ended(jobs.effect.register("after"))[0].outcome == "succeeded"


@pytest.mark.parametrize("job", [jobs.tidies, jobs.atidies], ids=["sync", "async"])
def test_a_job_that_lets_it_out_has_failed_by_its_own_exception(shared_worker: WorkerProcess, job: Any) -> None:
    """Not a timeout: retried by the rules for exceptions."""
    (after,) = ended(job.register("raise"))
    assert (after.outcome, history(after)) == ("abandoned", [(1, "failed"), (2, "failed")])
    assert "SoftDeadlinePassed: The attempt ran longer than its soft limit." in after.error


def test_behind_the_soft_limit_the_hard_one_stops_the_job_as_ever(shared_worker: WorkerProcess) -> None:
    (after,) = ended(jobs.goes_on.register())
    assert (after.outcome, history(after)) == ("abandoned", [(1, "timeout")])
    assert "ran longer than 1 s" in after.error
    assert shared_worker.stage.count("told", after.pk) == 1


def test_a_cancel_behind_the_soft_limit_interrupts_the_job(shared_worker: WorkerProcess) -> None:
    going = jobs.goes_on.using(timeout=(0.2, 60)).register()
    wait_until(lambda: shared_worker.stage.count("told", going.pk) == 1, 15, "it was told")
    going.cancel(mode="interrupt")
    (after,) = ended(going)
    assert (after.outcome, history(after)) == ("cancelled", [(1, "cancelled")])
