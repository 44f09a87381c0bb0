"""Operators' wishes reach jobs wherever they are: waiting, in a buffer, running, in their callback."""

from __future__ import annotations

import time

from django_pgjobs import register_many
from django_pgjobs.models import Job
from tests.e2e import jobs
from tests.plugins.fix_db import RawDatabase, patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history, read

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"threads": 2, "conf": {"POLL_SECONDS": 60, "CALLBACK_SECONDS": 1.0}}


def running(worker: WorkerProcess, job: Job, *words: object) -> Job:
    """Wait until ``job`` has noted that it started."""
    wait_until(lambda: worker.stage.count(*words), 15, f"{words} was noted")
    return job


def test_cancel_ask_is_seen_within_a_second_or_two(shared_worker: WorkerProcess) -> None:
    """A54 §5: reaches a running job without NOTIFY; a failure after it is a cancel, without a retry."""
    took = []
    for _ in range(3):
        job = jobs.obedient.register("fail")
        running(shared_worker, job, "start", job.pk)
        asked_at = time.monotonic()
        assert Job.objects.filter(pk=job.pk).cancel(by="operator o'brien", reason="too late").changed == 1
        (after,) = ended(job)
        took.append(shared_worker.stage.traces("saw", job.pk)[0].at - asked_at)
        assert shared_worker.stage.traces("saw", job.pk)[0].words[2:] == ("True", "operator_o'brien", "too_late")
        assert (after.outcome, after.attempt) == ("cancelled", 1)
        assert (after.cancel_by, after.cancel_reason) == ("operator o'brien", "too late")
        assert history(after) == [(1, "failed")]
        assert "stopped half way" in after.error
    assert max(took) < patience(2), took


def test_a_success_after_ask_is_a_success(shared_worker: WorkerProcess) -> None:
    """A54 §5."""
    job = running(shared_worker, one := jobs.obedient.register("succeed"), "start", one.pk)
    job.cancel(by="x")
    (after,) = ended(job)
    assert (after.outcome, after.result) == ("succeeded", "finished all the same")


def test_a_job_that_obeys_ends_as_cancelled(shared_worker: WorkerProcess) -> None:
    """A54 §2: ``raise Cancel()`` after it saw the wish; nothing is charged as a failure."""
    job = running(shared_worker, one := jobs.obedient.register("cancel"), "start", one.pk)
    job.cancel(by="x", reason="the operator's words")
    (after,) = ended(job)
    assert (after.outcome, after.cancel_reason, history(after)) == ("cancelled", "the operator's words", [])


def test_a_job_that_hears_nothing_fails_once_and_is_cancelled(shared_worker: WorkerProcess) -> None:
    """A54: a failing handler is not retried; ``on_cancel`` runs once, whoever learns of the cancel first."""
    for round_ in range(5):
        job = jobs.watched.register(f"deaf-{round_}")
        running(shared_worker, job, "start", f"deaf-{round_}")
        job.cancel(by="x")
        shared_worker.stage.open(f"deaf-{round_}")
        (after,) = ended(job)
        assert (after.outcome, after.attempt, history(after)) == ("cancelled", 1, [(1, "failed")])
        assert shared_worker.stage.count("on_cancel", job.pk) == 1
        assert shared_worker.stage.count("start", f"deaf-{round_}") == 1


def test_cancel_kill_ends_the_process_and_the_job(shared_worker: WorkerProcess) -> None:
    """A30 C26 §2: whatever it does; its neighbour is released uncharged and runs again."""
    neighbour = running(shared_worker, jobs.waits.register("beside"), "start", "beside")
    job = jobs.holds_the_gil_for_ever.register()
    running(shared_worker, job, "start", "gil")
    pid = shared_worker.stage.traces("start", "gil")[0].pid
    asked_at = time.monotonic()
    job.cancel(mode="kill", by="x", reason="enough")
    (after,) = ended(job)
    assert time.monotonic() - asked_at < patience(3)
    assert (after.outcome, after.cancel_reason) == ("cancelled", "enough")
    wait_until(lambda: pid not in shared_worker.executors(), 5, "its process is gone")
    wait_until(lambda: shared_worker.stage.count("start", "beside") == 2, 20, "the neighbour runs again")
    shared_worker.stage.open("beside")
    assert ended(neighbour)[0].attempt == 1


def test_ask_then_kill(shared_worker: WorkerProcess) -> None:
    """§2: a wish may become stronger."""
    job = running(shared_worker, jobs.waits.register("stubborn"), "start", "stubborn")
    job.cancel(by="x")
    asked_until = time.monotonic() + 1.5
    wait_until(lambda: time.monotonic() > asked_until, 5, "the first wish has arrived")
    assert read(job).state == "running"
    job.cancel(mode="kill", by="y")
    assert ended(job)[0].outcome == "cancelled"


def test_kill_runs_on_cancel_in_another_process(shared_worker: WorkerProcess) -> None:
    """§5 callbacks: fenced, after the process of the body is dead."""
    job = running(shared_worker, jobs.watched.register("k"), "start", "k")
    body = shared_worker.stage.traces("start", "k")[0].pid
    job.cancel(mode="kill")
    (after,) = ended(job)
    assert after.outcome == "cancelled"
    (callback,) = shared_worker.stage.traces("on_cancel", job.pk)
    assert callback.pid != body


def test_a_waiting_job_that_is_cancelled_never_runs(shared_worker: WorkerProcess) -> None:
    """A53: with ``on_cancel`` a worker runs the callback and nothing else."""
    plain = jobs.effect.using(delay=60).register("never")
    watched = jobs.watched.using(delay=60).register("never")
    Job.objects.filter(pk__in=[plain.pk, watched.pk]).cancel()
    one, two = ended(plain, watched)
    assert (one.outcome, two.outcome, two.attempt) == ("cancelled", "cancelled", 0)
    assert shared_worker.stage.count("on_cancel", watched.pk) == 1
    assert not shared_worker.stage.count("effect")
    assert not shared_worker.stage.count("start")


def test_a_job_in_the_buffer_that_is_cancelled_never_runs(shared_worker: WorkerProcess) -> None:
    """A53: claimed and sent ahead behind busy threads, then taken back."""
    ended(*Job.objects.filter(pk__in=register_many(jobs.effect.bind(n) for n in range(200))))
    blockers = register_many(jobs.waits.bind("busy") for _ in range(2))
    behind = register_many(jobs.effect.bind(f"behind-{n}") for n in range(20))
    wait_until(lambda: shared_worker.stage.count("start", "busy") == 2, 15, "both threads are busy")
    result = Job.objects.filter(pk__in=behind).cancel(reason="not needed")
    assert result.changed == 20
    after = ended(*Job.objects.filter(pk__in=behind), timeout=15)
    assert {job.outcome for job in after} == {"cancelled"}
    shared_worker.stage.open("busy")
    ended(*Job.objects.filter(pk__in=blockers))
    assert not [trace for trace in shared_worker.stage.traces("effect") if "behind" in trace.words[1]]


def test_a_running_job_that_is_released_is_ready_again_uncharged(shared_worker: WorkerProcess) -> None:
    """P34 C53: it is interrupted, its place in the history says why, and it runs again."""
    job = running(shared_worker, jobs.waits.register("once more"), "start", "once_more")
    job.release(by="x")
    wait_until(lambda: shared_worker.stage.count("start", "once_more") == 2, 20, "it runs again")
    shared_worker.stage.open("once more")
    (after,) = ended(job)
    assert (after.outcome, after.attempt, history(after)) == ("succeeded", 1, [(1, "released")])


def test_a_row_that_an_operator_has_locked_delays_only_itself(shared_worker: WorkerProcess, other: RawDatabase) -> None:
    """P20 C14: the end of a job whose row is locked is written when it is free; others are written at once."""
    job = running(shared_worker, jobs.waits.register("locked"), "start", "locked")
    other.lock(job.pk)
    shared_worker.stage.open("locked")
    wait_until(lambda: shared_worker.stage.count("end", "locked"), 10, "the body has returned")
    assert ended(jobs.effect.register("free"))[0].outcome == "succeeded"
    assert read(job).state == "running"
    other.rollback()
    assert ended(job)[0].outcome == "succeeded"


def test_a_job_that_was_taken_away_changes_nothing_any_more(shared_worker: WorkerProcess, raw: RawDatabase) -> None:
    """C44 C46 C47: ended and deleted under a running job: its end is dropped, the worker says so and goes on."""
    gone = running(shared_worker, jobs.waits.register("gone"), "start", "gone")
    ended_elsewhere = running(shared_worker, jobs.waits.register("taken"), "start", "taken")
    raw.query("DELETE FROM pgjobs_job WHERE id = %s", [gone.pk])
    raw.query(
        "UPDATE pgjobs_job SET claim_id = gen_random_uuid(), error = 'another owner' WHERE id = %s",
        [ended_elsewhere.pk],
    )
    before = raw.row(ended_elsewhere.pk)
    shared_worker.stage.open("gone")
    shared_worker.stage.open("taken")
    shared_worker.wait_for_log(f"lease lost.*job={gone.pk} ")
    shared_worker.wait_for_log(f"lease lost.*job={ended_elsewhere.pk} ")
    assert raw.row(ended_elsewhere.pk) == before
    assert ended(jobs.effect.register("next"))[0].outcome == "succeeded"
    raw.query("UPDATE pgjobs_job SET claim_id = NULL, outcome = 'cancelled', finished_at = now()")
