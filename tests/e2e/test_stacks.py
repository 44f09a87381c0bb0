"""Where a running job is: asked for in the shell, answered by the worker that runs it."""

from __future__ import annotations

import json
import os
import signal

from django_pgjobs.models import Job, JobStack
from tests.e2e import durable, hard, jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended, started
from tests.plugins.shell import printed


def stack_of(job: Job, *options: str, status: int = 0) -> str:
    """Ask in the shell; return what it prints."""
    code, text = printed("stack", str(job.pk), "--by=anna", *options)
    assert code == status, text
    return text


def test_the_stack_of_a_thread_a_coroutine_and_a_busy_loop(worker: Workers, stage: Stage) -> None:
    """By notification: the heartbeat would come too late."""
    process = worker(processes=1, threads=3, conf={"BEAT_SECONDS": 60, "STALE_SECONDS": 130})
    sleeps, naps = jobs.waits.register("thread"), jobs.awaits.register("task")
    spins = hard.goes_on.using(timeout=60).register("spins", "busy")
    started(stage, "thread")
    started(stage, "task")
    wait_until(lambda: Job.objects.get(pk=spins.pk).state == "running", 15, "it spins")
    text = stack_of(sleeps)
    assert text.splitlines()[0].startswith(f"attempt 1 on worker {process.name} at ")
    assert "Where it is (most recent call last):" in text
    assert "in waits\n    stage.here().wait(str(key))" in text
    assert "in awaits\n    await asyncio.sleep(0.01)" in stack_of(naps)
    assert "in _spins" in stack_of(spins)
    fields = json.loads(stack_of(sleeps, "--format=json", "--reason=again"))
    assert (fields["attempt"], fields["by"], fields["reason"], fields["problem"]) == (1, "anna", "again", "")
    assert "in waits" in fields["stack"]
    stage.open("thread")
    stage.open("task")
    ended(sleeps, naps)
    assert JobStack.objects.filter(job=sleeps).count() == 2, "they stay with the job"


def test_without_notifications_the_next_heartbeat_brings_it(worker: Workers, stage: Stage) -> None:
    worker(processes=1, threads=1, conf={"BEAT_SECONDS": 0.5, "STALE_SECONDS": 3, "NOTIFY": False})
    job = jobs.waits.register("go")
    started(stage, "go")
    assert "in waits" in stack_of(job)


def test_the_step_of_a_durable_function_is_named(worker: Workers, stage: Stage) -> None:
    worker(processes=1, threads=1)
    job = durable.travels.register("a", stops="first")
    wait_until(lambda: stage.count("first", "a") == 1, 15, "it is in its step")
    assert "In step first:\n" in stack_of(job)


def test_a_job_in_c_that_holds_the_interpreter_is_told_so_and_answers_later(worker: Workers, stage: Stage) -> None:
    worker(processes=1, threads=1)
    job = jobs.holds_the_gil_for.register(6.0)
    started(stage, "gil")
    assert "code in C may hold the interpreter" in stack_of(job, status=1)
    assert JobStack.objects.get().problem == "silent"
    assert ended(job)[0].outcome == "succeeded", "asking harms nothing"


def test_a_worker_that_is_gone_is_named_and_the_next_attempt_answers(worker: Workers, stage: Stage) -> None:
    lost = worker(processes=1, threads=1, conf={"LEASE_SECONDS": 2, "RENEW_SECONDS": 0.5})
    job = jobs.waits.register("go")
    started(stage, "go")
    os.killpg(lost.process.pid, signal.SIGKILL)
    assert f"worker {lost.name}" in stack_of(job, "--wait=1s", status=1)
    worker(processes=1, threads=1, conf={"LEASE_SECONDS": 2, "RENEW_SECONDS": 0.5})
    started(stage, "go", 2)
    assert "in waits" in stack_of(job)
    rows = [(row.number, row.answered_at is None) for row in JobStack.objects.order_by("pk")]
    assert rows == [(1, True), (2, False)]


def test_an_inline_worker_answers_at_its_heartbeat(worker: Workers, stage: Stage) -> None:
    worker("--inline", ready=False, conf={"BEAT_SECONDS": 0.5, "STALE_SECONDS": 3})
    job = jobs.waits.register("go")
    started(stage, "go")
    assert "in waits" in stack_of(job)
    stage.open("go")
    ended(job)
