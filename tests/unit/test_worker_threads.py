"""If no thread can be started, no slot, no signal and no job is lost, and the process goes on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from django_pgjobs import decisions as decide
from django_pgjobs.exceptions import DeadlinePassed
from django_pgjobs.execution import events
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.worker.executor import cancelling, event_loop, job_threads, orphan
from django_pgjobs.worker.executor.job_threads import JobThreads
from django_pgjobs.worker.executor.main import Executor
from django_pgjobs.worker.executor.outbox import Outbox
from django_pgjobs.worker.executor.run_queue import Buffers
from django_pgjobs.worker.executor.signal_sender import SignalSender
from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.board import Board
from django_pgjobs.worker.shared.channel_messages import Interrupted, ReleaseRuns, RunJobs, RunsReleased, Successes
from django_pgjobs.worker.shared.run_groups import SentRun, groups_of
from tests.plugins.fix_db import wait_until
from tests.unit.test_worker_executor import FUTURE, End, outcomes, sent
from tests.unit.worker_fakes import run_of


class Refusal:
    """How often a thread whose name begins like this is refused, from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.begin = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self.start(thread))

    def start(self, thread: threading.Thread) -> None:
        if self.left > 0 and thread.name.startswith("pgjobs-"):
            self.left -= 1
            raise RuntimeError("can't start new thread")
        self.begin(thread)


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> Refusal:
    return Refusal(monkeypatch)


@pytest.fixture
def end() -> End:
    return End()


@pytest.fixture
def executor(end: End) -> Iterator[Executor]:
    board = Board.create(1, 1)
    yield Executor(cast(channel.ExecutorEnd, end), board, 1, 1, "default")
    board.close()


def test_a_job_thread_that_cannot_be_replaced_is_tried_again(
    refusal: Refusal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread of an interrupted job ends; without another its slot would take no job any more."""
    monkeypatch.setattr(job_threads, "THREAD_SECONDS", 0.001)
    done: list[int] = []
    served = threading.Event()

    def levels() -> list[str]:
        return [record.levelname for record in caplog.records]

    class Endless:
        end = None

        def take_over(self, slot: int) -> list[SentRun]:
            return []

        def next(self, slot: int, *, rouse: bool) -> SentRun:
            if len(done) == 2:
                served.wait()
            return sent(len(done) + 1)

        def finish(self, run: SentRun, decision: decide.Decision) -> None:
            done.append(run.run)
            refusal.left = 3

    threads = JobThreads(cast(Any, Endless()), 1, "default")

    def run(run: SentRun, door: Any) -> decide.Decision:
        run.interrupted = True
        return decide.Succeeded("1")

    monkeypatch.setattr(threads, "run", run)
    with caplog.at_level(logging.WARNING):
        threads.start()
        wait_until(lambda: done == [1, 2] and levels().count("WARNING") == 2, 10, "the slot has taken the next job")
    assert levels().count("ERROR") == 2, "each is logged once"


def test_a_thread_that_ends_without_an_outcome_reports_one_and_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Any end counts, even by an exception from outside. The attempt is charged, the slot stays in use."""
    end = End()
    board = Board.create(1, 0)
    buffers = Buffers(cast(Any, end), board, Outbox(cast(Any, end), lambda: None), lambda: None)
    threads = JobThreads(buffers, 1, "default")

    def run(run: SentRun, door: Any) -> decide.Decision:
        if run.run == 1:
            raise SystemExit("from outside")
        return decide.Succeeded("2")

    monkeypatch.setattr(threads, "run", run)
    buffers.add(FUTURE, groups_of([run_of(10, number=1), run_of(20, number=2)]))
    threads.start()
    wait_until(lambda: any(isinstance(message, Successes) for message in end.sent), 10, "both have an outcome")
    (interrupted,) = [message for message in end.sent if isinstance(message, Interrupted)]
    assert interrupted == Interrupted(0.0, "SystemExit"), "its executor is to be recycled"
    decisions = outcomes(end)
    assert decisions.keys() == {1}
    assert isinstance(decisions[1], decide.Retried)
    assert decisions[1].failure.kind == "SystemExit"
    (succeeded,) = [message for message in end.sent if isinstance(message, Successes)]
    assert (succeeded.runs, succeeded.results) == ([2], ["2"])
    assert "job thread ended, replaced slot=0: SystemExit" in caplog.text
    assert not buffers.started


def test_an_interrupt_goes_to_the_thread_that_runs_the_job(executor: Executor) -> None:
    """A slot whose thread is being replaced runs no job that could be interrupted."""
    threads = JobThreads(executor.buffers, 2, "default")
    met: list[tuple[RunControl, object]] = []

    class Door:
        def interrupt(self, control: RunControl, kind: object) -> None:
            met.append((control, kind))

    control = RunControl()
    control.slot = 1
    threads.interrupt(control, DeadlinePassed)
    threads.doors[1] = cast(Any, Door())
    threads.interrupt(control, DeadlinePassed)
    assert met == [(control, DeadlinePassed)]


def test_a_slot_without_a_thread_gets_one_and_no_slot_gets_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control thread notices a thread that has died before it could start its successor."""
    served: list[int] = []
    dies = threading.Event()
    buffers = Buffers(cast(Any, None), Board.create(1, 0), Outbox(cast(Any, None), lambda: None), lambda: None)
    threads = JobThreads(buffers, 1, "default")
    start = threads._start_one

    def serve(slot: int) -> None:
        served.append(slot)
        dies.wait()

    monkeypatch.setattr(threads, "_serve", serve)
    threads.start()
    wait_until(lambda: served == [0], 10, "the slot is served")
    threads.revive()
    start(0)
    monkeypatch.setattr(threads, "_start_one", lambda slot: None)
    owner = threads.owners[0]
    assert owner is not None
    dies.set()
    owner.join(10)
    assert served == [0], "a second thread has found the slot taken"
    monkeypatch.setattr(threads, "_start_one", start)
    dies.clear()
    threads.revive()
    wait_until(lambda: served == [0, 0], 10, "the slot is served again")


def test_jobs_of_a_loop_that_cannot_be_started_are_handed_back(refusal: Refusal, executor: Executor, end: End) -> None:
    """The control thread, which tried, survives."""
    refusal.left = 1
    executor._obey(RunJobs(FUTURE, groups_of([run_of(10, number=1, is_async=True)])))
    assert executor.loop.loop is None
    executor._obey(ReleaseRuns([1]))
    assert end.sent == [RunsReleased([1], "asked")]


def test_a_payload_that_no_thread_can_read_costs_no_attempt(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(event_loop, "sync_to_async", lambda function: refused)
    assert isinstance(asyncio.run(executor.loop._with_payload(sent(1, payload=None).job)), decide.Snoozed)


def test_signals_wait_for_a_thread(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    notified: list[int] = []
    monkeypatch.setattr(events, "stored", lambda what, fields: None)
    sender = SignalSender(notified.append)
    refusal.left = 1
    sender.notify(1, [("finished", {"job_id": 1})])
    sender.close(1)
    assert notified == []
    sender.start()
    wait_until(lambda: notified == [1], 10, "receivers were notified")


def test_a_query_that_no_thread_can_cancel_goes_on(refusal: Refusal, caplog: pytest.LogCaptureFixture) -> None:
    refusal.left = 1
    cancelling.cancel_queries([object()])
    assert "cannot be cancelled: can't start new thread" in caplog.text


def test_without_a_thread_to_release_in_an_orphan_releases_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released: list[Any] = []

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(orphan, "_release", lambda items, *_: released.extend(items))
    monkeypatch.setattr(threading.Thread, "start", refused)
    orphan.release_unstarted([sent(1).job], ["default"], "pgjobs x")
    assert [each.id for each in released] == [10]
