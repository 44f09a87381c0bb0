"""What people and receivers are told: signals, middleware, log lines, progress."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from django_pgjobs.models import Job
from django_pgjobs.queues import Queue
from tests import jobs as cast
from tests.e2e import jobs, receivers
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, read

LAYER = {"MIDDLEWARE": ["tests.e2e.layers.noting"]}
ARGUMENTS = ("-v2",)
WORKER: dict[str, object] = {
    "conf": {"POLL_SECONDS": 60, "CALLBACK_SECONDS": 1.0, **LAYER},
    "env": {"PGJOBS_TEST_RECEIVERS": "1"},
}


def heard(worker: WorkerProcess, job: Job, count: int) -> list[tuple[str, ...]]:
    """Wait for so many signals about a job and return their words, sorted by what they say first."""
    wait_until(lambda: worker.stage.count("signal", job.pk) >= count, 15, f"{count} signals about {job.pk} were heard")
    return [trace.words[2:] for trace in worker.stage.traces("signal", job.pk)]


@pytest.mark.parametrize("job", [jobs.effect, jobs.aeffect], ids=["sync", "async"])
def test_a_success_is_told_in_order_and_finished_after_the_write(shared_worker: WorkerProcess, job: Any) -> None:
    """C59 C60 C67: the receiver reads the row and finds the end there."""
    one = job.register("k")
    assert heard(shared_worker, one, 3) == [
        ("started", "1"),
        ("ended", "Succeeded", "NoneType"),
        ("finished", "succeeded", "succeeded"),
    ]


def test_a_failure_is_told_with_its_exception_a_retry_with_its_delay(shared_worker: WorkerProcess) -> None:
    """C62 C63 C67: retried only after the write, finished once, after the callback."""
    one = jobs.doomed.register()
    told = heard(shared_worker, one, 6)
    assert [words for words in told if words[0] == "ended"] == [
        ("ended", "Retried", "ValueError"),
        ("ended", "Abandoned", "ValueError"),
    ]
    ((_, attempt, delay, _state),) = [words for words in told if words[0] == "retried"]
    assert (attempt, float(delay)) == ("1", 0.0)
    assert told[-1] == ("finished", "abandoned", "abandoned")


def test_signals_carry_executor_duration_error_and_the_instant_of_a_retry(shared_worker: WorkerProcess) -> None:
    """C60 C62 C63 C66: the executor is told by the name of its connections; the instant is the database's."""
    one = jobs.doomed.register()
    heard(shared_worker, one, 6)
    facts = [trace.words[2:] for trace in shared_worker.stage.traces("facts", one.pk)]
    [started, *_] = [words for words in facts if words[0] == "started"]
    [retried] = [words for words in facts if words[0] == "retried"]
    [finished] = [words for words in facts if words[0] == "finished"]
    assert started[1].startswith("pgjobs_")
    assert retried[1] == finished[1] == started[1]
    assert 0 <= float(retried[2]) < 60
    assert 0 <= float(finished[2]) < 60
    [first, *_] = one.attempts.order_by("number")
    assert datetime.fromisoformat(retried[3]) == first.ended_at
    assert "ValueError" in retried[4]
    assert finished[3] == "default"
    assert "ValueError" in finished[4]


@pytest.mark.parametrize("fails", [False, True], ids=["success", "failure"])
def test_durations_are_those_of_the_body(shared_worker: WorkerProcess, *, fails: bool) -> None:
    """C61 C62 C63: at least as long as the body itself measured, on the same clock."""
    one = jobs.measures.register(fails=fails)
    heard(shared_worker, one, 6 if fails else 3)
    told = [trace.words[2:] for trace in shared_worker.stage.traces("facts", one.pk)]
    durations = [float(words[2]) for words in told if words[0] in ("retried", "finished")]
    after = read(one)
    own = [float(attempt.message.rpartition(" ")[2]) for attempt in one.attempts.order_by("number")]
    assert len(durations) == len(own or [after.result]) == (2 if fails else 1)
    for duration, took in zip(durations, own or [float(str(after.result))], strict=True):
        assert 0.2 <= took <= duration < took + patience(1)
    assert after.duration_seconds == pytest.approx(durations[-1], abs=0.001)


def test_a_cancel_and_a_crash_are_told_by_whoever_is_alive(shared_worker: WorkerProcess) -> None:
    """C59 C67: the process of the body is dead; another one tells of the end."""
    crashed, cancelled = jobs.dies_once.register("kill"), cast.cancels.register("no need")
    told = shared_worker.stage.count
    wait_until(
        lambda: told("signal", cancelled.pk, "finished", "cancelled", "cancelled") == 1, 10, "the cancel is told"
    )
    wait_until(lambda: told("signal", crashed.pk, "finished", "abandoned", "abandoned") == 1, 10, "the crash is told")


@pytest.mark.parametrize("held", [True, False], ids=["the leader ends it", "a worker claims it"])
def test_a_job_that_expired_is_told_as_cancelled(shared_worker: WorkerProcess, *, held: bool) -> None:
    """In a paused queue nobody claims it; it says expired either way, and its body is not called."""
    if held:
        Queue("held").pause()
    late = jobs.effect.using(queue="held", run_at=timezone.now() - timedelta(seconds=9), expires=0.001)
    one, started = late.register("late"), jobs.waits.using(expires=2.0).register("punctual")
    wait_until(lambda: shared_worker.stage.count("start", "punctual") == 1, 10, "it has started")
    assert heard(shared_worker, one, 1) == [("finished", "cancelled", "cancelled")]
    row = read(one)
    assert (row.cancel_reason, row.state) == ("expired", "cancelled")
    assert shared_worker.stage.count("effect", "late") == 0
    past = Job.objects.filter(pk=started.pk, expires_at__lt=Now())
    wait_until(past.exists, 10, "it runs past its expiry")
    shared_worker.stage.open("punctual")
    assert ended(started)[0].outcome == "succeeded"
    Queue("held").resume()


def test_a_receiver_that_leaves_takes_nobody_along(shared_worker: WorkerProcess) -> None:
    """C28: SystemExit in a receiver of ``job_finished``."""
    before = shared_worker.executors()
    shared_worker.stage.open("receiver-fails")
    heard(shared_worker, jobs.effect.register("k"), 3)
    one = jobs.effect.register("after")
    assert ended(one)[0].outcome == "succeeded"
    assert shared_worker.executors() == before
    assert ("finished", "succeeded", "succeeded") in heard(shared_worker, one, 3)


def test_what_an_executor_was_telling_when_it_crashed_is_told_by_another(shared_worker: WorkerProcess) -> None:
    """C59: so a signal may come twice, and is not lost while the worker lives."""
    one = jobs.waits.register("told twice")
    shared_worker.stage.open(f"receiver-crashes-{one.pk}")
    shared_worker.stage.open("told twice")
    finished = ("finished", "succeeded", "succeeded")
    assert heard(shared_worker, one, 4)[2:] == [finished, finished]


@pytest.mark.parametrize("job", [jobs.starts_slowly, jobs.astarts_slowly], ids=["sync", "async"])
def test_a_soft_limit_waits_for_receivers_of_the_start(shared_worker: WorkerProcess, job: Any) -> None:
    """They take longer than the limit. Raised there, the job could not catch it; it counts from the job's own code."""
    before = set(shared_worker.executors())
    (after,) = ended(job.register())
    assert (after.outcome, after.attempts.count()) == ("succeeded", 0), after.error
    took: Any = after.duration_seconds, after.result
    assert took[0] > receivers.SLOW_SECONDS
    assert 0.3 < took[1] < patience(1.4)
    if job is jobs.starts_slowly:
        wait_until(lambda: before.isdisjoint(shared_worker.executors()), 30, "its executor has been replaced")


@pytest.mark.parametrize("job", [jobs.headers, jobs.aheaders], ids=["sync", "async"])
def test_middleware_is_around_the_job_and_finds_the_headers(
    shared_worker: WorkerProcess, settings: Any, job: Any
) -> None:
    """§2 middleware: captured at register, one layer for both colours."""
    settings.PGJOBS = {**settings.PGJOBS, **LAYER}
    one = job.register()
    assert ended(one)[0].result == {"tenant": "blue"}
    entered = "in" if job is jobs.headers else "in-async"
    assert [trace.words[2:] for trace in shared_worker.stage.traces("layer", one.pk)] == [
        (entered, "blue"),
        ("out", "blue"),
    ]


def test_start_and_end_are_logged_with_the_description_and_an_ordinal_from_the_second_try(
    shared_worker: WorkerProcess,
) -> None:
    """A9 A10 A70 P21 P38: with ``-v 2``; all facts in their order."""
    shared_worker.stage.open("logged")
    one, failing = jobs.waits.register("logged"), jobs.doomed.register()
    ended(one, failing)
    facts = rf"name=tests\.e2e\.jobs\.waits job={one.pk} attempt=1/3 claim=[0-9a-f-]+ queue=default"
    facts = rf'{facts} description="waits for logged"'
    shared_worker.wait_for_log(rf"START run {facts} run_at={re.escape(one.run_at.isoformat(timespec='milliseconds'))}")
    shared_worker.wait_for_log(rf"END outcome=succeeded seconds=[\d.]+ {facts}\n")
    shared_worker.wait_for_log(
        rf"START run name=tests\.e2e\.jobs\.doomed job={failing.pk} attempt=1/2 claim=\S+ queue=default run_at=\S+\n"
    )
    shared_worker.wait_for_log(rf"START 2nd attempt to run name=tests\.e2e\.jobs\.doomed job={failing.pk} ")
    shared_worker.wait_for_log(rf"END outcome=retried .* job={failing.pk} .*: ValueError: outer")
    shared_worker.wait_for_log(rf"END outcome=abandoned .* job={failing.pk} .*: ValueError: outer")
    log = shared_worker.log
    assert re.search(rf"WARNING attempt failed, retry in 0.0 s .*job={failing.pk} .*outer", log)
    assert re.search(rf"ERROR job abandoned .*job={failing.pk} .*outer", log)


def test_progress_is_seen_while_the_job_runs(shared_worker: WorkerProcess) -> None:
    """§2 progress: written by the worker, without the job's own transaction."""
    one = jobs.progresses.register("p")
    wait_until(lambda: read(one).progress is not None, 5, "its progress can be read")
    assert read(one).progress == {"n": 3, "total": 10, "message": "the third of ten"}
    assert read(one).state == "running"
    shared_worker.stage.open("p")
    assert ended(one)[0].outcome == "succeeded"
