"""Celery's tasks in workers of ours, without a broker: what needs processes, deaths and limits."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("celery", reason="Celery is not installed, or does not allow this Python")

from celery import chain, chord, states
from celery.exceptions import ChordError, TaskRevokedError, TimeLimitExceeded, WorkerLostError

from django_pgjobs.models import Job
from tests.e2e import celery_app as tasks
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"conf": {"MODULES": ["tests.e2e.celery_app"]}}


def test_a_result_comes_back_from_a_worker(shared_worker: WorkerProcess) -> None:
    result = tasks.add.delay(1, 2)
    assert result.get(timeout=patience(30)) == 3
    assert (result.state, result.successful()) == (states.SUCCESS, True)


def test_a_retry_stays_in_its_row(shared_worker: WorkerProcess) -> None:
    result = tasks.third_time.delay("x")
    assert result.get(timeout=patience(30)) == [result.id, 2]
    job = Job.objects.get(name="tests.e2e.celery_app.third_time")
    assert (job.attempt, job.max_attempts, job.attempts.count()) == (3, 4, 2)
    assert shared_worker.stage.count("try", "x") == 3


def test_a_chain_and_a_chord_end(shared_worker: WorkerProcess) -> None:
    assert chain(tasks.add.s(1), tasks.add.s(2), tasks.add.s(3))().get(timeout=patience(30)) == 7
    assert chord([tasks.add.s(n) for n in range(3)], tasks.total.s())().get(timeout=patience(30)) == 6


def test_a_task_catches_its_soft_limit(shared_worker: WorkerProcess) -> None:
    assert tasks.soft.delay().get(timeout=patience(30)) == "tidied up"


def test_a_hard_limit_fails_the_task_and_calls_its_errback(shared_worker: WorkerProcess) -> None:
    result = tasks.hard.apply_async(link_error=tasks.errback.s())
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=patience(30))
    assert result.state == states.FAILURE
    wait_until(lambda: shared_worker.stage.count("errback", result.id), 10, "the errback has run")
    assert shared_worker.stage.traces("errback")[0].words[2] == "TimeLimitExceeded"


def test_a_task_that_kills_its_process_runs_once(shared_worker: WorkerProcess) -> None:
    """As with Celery, unless ``acks_late`` says otherwise."""
    result = tasks.dies.apply_async(("x",), link_error=tasks.errback.s())
    with pytest.raises(WorkerLostError):
        result.get(timeout=60)
    wait_until(lambda: shared_worker.stage.count("errback", result.id), 10, "the errback has run")
    assert shared_worker.stage.count("dies", "x") == 1


def test_the_rest_of_a_chain_fails_with_a_member_that_dies(shared_worker: WorkerProcess) -> None:
    with pytest.raises(WorkerLostError):
        chain(tasks.dies.s("y"), tasks.add.s(1))().get(timeout=patience(30))
    result = chord([chain(tasks.dies.s("z"), tasks.add.s(1))], tasks.total.s())()
    wait_until(result.ready, 30, "the chord has ended")
    assert isinstance(result.result, ChordError)


def test_a_late_task_whose_process_dies_is_not_run_again(shared_worker: WorkerProcess) -> None:
    """Celery repeats it if the whole worker is lost, or by ``reject_on_worker_lost``."""
    with pytest.raises(WorkerLostError):
        tasks.dies_late.delay("late").get(timeout=60)
    assert shared_worker.stage.count("dies", "late") == 1


def test_a_link_is_called_once_though_its_task_ran_twice(shared_worker: WorkerProcess) -> None:
    result = tasks.dies_once.apply_async(("abc",), link=tasks.add.s(100))
    assert result.get(timeout=60) == 3
    assert shared_worker.stage.count("succeeded", result.id) == 2
    wait_until(lambda: not Job.objects.filter(finished_at=None).exists(), 20, "all jobs have ended")
    assert shared_worker.stage.count("add", 3, 100) == 1


@pytest.mark.parametrize("state", ["PROGRESS", "half done"])
def test_a_state_of_its_own_is_seen_while_it_runs(shared_worker: WorkerProcess, state: str) -> None:
    result = tasks.progresses.delay("go", state)
    wait_until(lambda: result.state == state, 20, "the progress is written")
    assert result.info == {"current": 1, "total": 2}
    shared_worker.stage.open("go")
    assert result.get(timeout=patience(30)) == "done"


def test_a_running_task_is_terminated(shared_worker: WorkerProcess) -> None:
    result = tasks.progresses.delay("never")
    wait_until(lambda: shared_worker.stage.count("progresses"), 20, "it runs")
    result.revoke()
    wait_until(lambda: Job.objects.get().cancel_requested_at is not None, 20, "it will not be tried again")
    assert not result.ready(), "it goes on, as with Celery"
    result.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=60)
    assert result.state == states.REVOKED


def test_a_beat_schedule_fires(worker: Workers) -> None:
    worker(conf={"MODULES": ["tests.e2e.celery_app"]}, env={"PGJOBS_TEST_BEAT": "1"})
    wait_until(lambda: worker.stage.count("add", 20, 22) >= 2, 30, "it has fired twice")
    assert set(Job.objects.values_list("cron_entry", flat=True)) == {"tick"}


def test_a_plain_job_may_wait_for_a_task_though_one_has_run_in_its_process(shared_worker: WorkerProcess) -> None:
    assert tasks.add.delay(1, 2).get(timeout=patience(30)) == 3
    assert tasks.waits_plainly.register().wait(30).result == 2


def test_a_task_may_not_wait_for_another(shared_worker: WorkerProcess) -> None:
    result: Any = tasks.waits_for_another.delay()
    with pytest.raises(RuntimeError, match="Never call"):
        result.get(timeout=patience(30))
