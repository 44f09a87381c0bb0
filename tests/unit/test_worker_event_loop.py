"""What an ``async def`` job comes to where our clean-up after it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import cast

import pytest
from asgiref.sync import sync_to_async

from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Decision
from django_pgjobs.worker.executor import cleanup, event_loop
from django_pgjobs.worker.executor.event_loop import EventLoop
from django_pgjobs.worker.executor.loop_threads import JobCalls, LoopThreads
from django_pgjobs.worker.executor.main import Executor
from django_pgjobs.worker.executor.task_door import TaskDoor
from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.board import Board
from django_pgjobs.worker.shared.run_groups import SentRun
from tests.unit.test_worker_executor import End, sent


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    board = Board.create(1, 1)
    yield Executor(cast(channel.ExecutorEnd, End()), board, 1, 1, "default").loop
    board.close()


def decided(loop: EventLoop, monkeypatch: pytest.MonkeyPatch, outcome: Decision | Exception) -> Decision:
    """What a job comes to that has used a connection, and whose clean-up then fails."""

    async def attempt(run: SentRun) -> Decision:
        await sync_to_async(lambda: None)()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def fails(job: object) -> None:
        raise OSError("the connection cannot be closed")

    async def decide_one() -> Decision:
        loop.doors[run.run] = TaskDoor(run)
        return await loop._decide(run)

    run = sent(1, attempt=1, max_attempts=1)
    monkeypatch.setattr(loop, "_attempt", attempt)
    monkeypatch.setattr(cleanup, "tidy", fails)
    return asyncio.run(decide_one())


@pytest.mark.parametrize("outcome", [decide.Succeeded('"done"'), decide.Snoozed(5.0)], ids=["succeeded", "snoozed"])
def test_a_clean_up_that_fails_replaces_no_outcome(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, outcome: Decision
) -> None:
    """A job that has returned has succeeded."""
    assert decided(loop, monkeypatch, outcome) == outcome
    assert "clean-up after a job failed, its outcome is kept job=1" in caplog.text


def test_a_job_without_an_outcome_gets_one_by_its_attempts(loop: EventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only attempt is its last."""
    decision = decided(loop, monkeypatch, RuntimeError("ours"))
    assert isinstance(decision, decide.Abandoned)
    assert decision.cause == "failed"


@pytest.mark.parametrize("times", [1, 2])
def test_a_thread_is_cleaned_up_though_the_job_has_its_own_task_cancelled(times: int) -> None:
    """Even while a call still runs: otherwise the thread would never serve again, nor end, nor its connection."""
    cleaned: list[bool] = []
    threads = LoopThreads(1.0)
    slow = threading.Event()

    async def ends() -> int:
        calls = JobCalls(threads, [])
        calls.submit(slow.wait, 10)
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        task.cancel()
        for turn in range(1, times):
            loop.call_later(0.05 * turn, task.cancel)
        loop.call_later(0.05 * times, slow.set)
        await event_loop._clean_up(calls, lambda: cleaned.append(True))
        return task.cancelling()

    assert asyncio.run(ends()) == 0
    assert cleaned == [True]
    assert len(threads.idle) == 1


def test_a_call_after_the_end_of_its_job_is_refused() -> None:
    """Its thread may serve another job by then."""
    calls = JobCalls(LoopThreads(1.0), [])
    assert calls.end(lambda: None) is None
    with pytest.raises(RuntimeError, match=r"The job has ended\."):
        calls.submit(lambda: None)


def test_a_thread_waits_however_long_the_settings_say() -> None:
    calls: SimpleQueue[str] = SimpleQueue()
    calls.put("made")
    with pytest.raises(OverflowError):
        calls.get(timeout=1e12)
    assert calls.get(timeout=LoopThreads(1e12).idle_seconds) == "made"
