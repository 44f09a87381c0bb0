"""Tasks in real workers, seen by another process. Paper §1.3 to §1.6, §3.1, §8.2, §8.3, §8.9, §8.10."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_pgjobs.models import Job
from tests.db.tasks_ground import TASKS
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_tasks import finished
from tests.plugins.fix_worker import WorkerProcess, started

with override_settings(TASKS=TASKS):
    from tests.e2e import tasks
ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"env": {"PGJOBS_TEST_TASKS": json.dumps(TASKS), "PGJOBS_TEST_TASKS_SIGNALS": "1"}}


pytestmark = pytest.mark.usefixtures("our_tasks")


def told(stage: Stage, what: str, result: Any) -> list[tuple[str, ...]]:
    """What the worker's receivers noted about a result: (status, status of the row then, attempts)."""
    return [trace.words[2:] for trace in stage.traces(what, result.id)]


def wait_for_the_end(stage: Stage, result: Any) -> None:
    """Wait until the worker's receivers have noted the end of a result."""
    wait_until(lambda: told(stage, "finished", result), 10, "the end is told")


def test_every_kind_of_task_runs_and_gives_its_result(shared_worker: WorkerProcess) -> None:
    """§8.2: sync, async on the event loop, moved, prioritised, deferred."""
    sync, coroutine = tasks.effect.enqueue("a"), tasks.aeffect.enqueue("b")
    moved = tasks.effect.using(queue_name="elsewhere", priority=100).enqueue("c")
    later = tasks.effect.using(run_after=timedelta(seconds=0.5)).enqueue("d")
    finished(sync, coroutine, moved, later)
    assert [sync.return_value, moved.return_value, later.return_value] == ["a", "c", "d"]
    assert coroutine.return_value[0] == "b"
    assert "loop" in coroutine.return_value[1], "the supervisor knows its colour"
    assert (moved.task.queue_name, moved.task.priority) == ("elsewhere", 100)
    assert later.started_at >= later.task.run_after == later.enqueued_at + timedelta(seconds=0.5)
    for result in (sync, coroutine, moved, later):
        assert result == tasks.effect.get_backend().get_result(result.id)
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert (result.attempts, result.errors) == (1, [])


def test_a_retried_task_knows_its_errors_and_is_told_of_start_by_start(shared_worker: WorkerProcess) -> None:
    """§1.6, §8.10: one end, after the row says so."""
    [result] = finished(tasks.second_try.enqueue("x"))
    assert result.return_value == [2, ["builtins.LookupError"]]
    assert [error.exception_class for error in result.errors] == [LookupError]
    stage = shared_worker.stage
    wait_for_the_end(stage, result)
    assert told(stage, "started", result) == [("RUNNING", "RUNNING", "1"), ("RUNNING", "RUNNING", "2")]
    assert told(stage, "finished", result) == [("SUCCESSFUL", "SUCCESSFUL", "2")]


def test_ends_of_every_other_kind_are_failures_with_a_class_to_import(shared_worker: WorkerProcess) -> None:
    """§1.5, §8.3, §8.10: each is told, also where no attempt could; again if the executor died before it confirmed."""
    slow, unstorable = finished(tasks.too_slow.enqueue(), tasks.returns_no_json.enqueue())
    # Alone: it would lose, and so charge, the outcome of a job that has just ended beside it.
    (killed,) = finished(tasks.kills_its_process.enqueue())
    kinds = [[error.exception_class.__name__ for error in result.errors] for result in (slow, killed, unstorable)]
    assert kinds == [["DeadlinePassed"], ["ExecutorDied"], ["TypeError"]]
    stage = shared_worker.stage
    for result in (slow, killed, unstorable):
        assert (result.status, len(result.worker_ids)) == ("FAILED", 1)
        wait_for_the_end(stage, result)
        assert set(told(stage, "finished", result)) == {("FAILED", "FAILED", "1")}


def test_a_running_task_names_its_worker_and_can_be_cancelled(shared_worker: WorkerProcess) -> None:
    """§1.3, O5, §8.3: the same worker while it runs and afterwards."""
    result = tasks.waits.enqueue("k")
    started(shared_worker.stage, "k")
    result.refresh()
    assert (result.status, result.attempts) == ("RUNNING", 1)
    [worker] = result.worker_ids
    assert worker
    Job.objects.get(pk=result.id).cancel(by="ops", reason="enough")
    finished(result)
    assert (result.status, result.worker_ids) == ("FAILED", [worker])
    assert result.errors[-1].traceback == "Cancelled by ops: enough"
    wait_for_the_end(shared_worker.stage, result)
