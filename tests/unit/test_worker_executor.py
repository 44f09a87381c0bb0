"""In the executor: what was sent is answered, whatever its outcome, its payload or its neighbours."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn, cast

import pytest
from django.db import InterfaceError, OperationalError, connections

from django_pgjobs import clock, job
from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Failure
from django_pgjobs.definition.registry import registry
from django_pgjobs.registering import local_pool
from django_pgjobs.store import finalising
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.worker.executor import cleanup, lifecycle, orphan, outbox
from django_pgjobs.worker.executor.interrupts import Door
from django_pgjobs.worker.executor.main import Executor
from django_pgjobs.worker.executor.outbox import FRAME_CHARS
from django_pgjobs.worker.executor.prepare import with_payload
from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.board import Board
from django_pgjobs.worker.shared.channel_messages import (
    Bye,
    Decided,
    Drain,
    Notify,
    RunsReleased,
    StopRun,
    Successes,
    TrustUntil,
)
from django_pgjobs.worker.shared.decision_codec import pack_decision, unpack_decision
from django_pgjobs.worker.shared.run_groups import SentRun, groups_of
from tests.plugins.fix_db import patience, wait_until
from tests.unit.job_functions import one_argument
from tests.unit.worker_fakes import run_of, sent_run

PAST, FUTURE = -1.0, 1e12


class End:
    """An executor's end that takes frames up to a size, and keeps them."""

    def __init__(self, most: int = 32 * 1024 * 1024) -> None:
        self.sent: list[Any] = []
        self.most = most
        self.high: list[int] = []
        self.board: Board | None = None

    def send(self, message: Any) -> None:
        if len(channel.pack(message)) > self.most:
            raise channel.TooLong("a frame of many bytes is longer than allowed")
        self.sent.append(message)
        if self.board is not None:
            self.high.append(self.board.high("sync"))


@pytest.fixture
def end() -> End:
    return End()


@pytest.fixture
def working(end: End) -> Iterator[Executor]:
    """An executor with two threads and two places on its loop; none of its threads runs."""
    board = Board.create(2, 2)
    end.board = board
    yield Executor(cast(channel.ExecutorEnd, end), board, 2, 2, "default")
    board.close()


def sent(run: int, start_by: float = FUTURE, **facts: Any) -> SentRun:
    return sent_run(run, start_by, name="executor.unknown", **facts)


def buffer(working: Executor, *entries: tuple[float, int], name: str = "sync") -> None:
    working.buffers.waiting[name].extend(sent(run, start_by) for start_by, run in entries)


def perform(working: Executor, run: SentRun) -> decide.Decision:
    return working.threads.run(run, Door())


def outcomes(end: End) -> dict[int, decide.Decision]:
    done = [outcome for message in end.sent if isinstance(message, Decided) for outcome in message.items]
    return {run: unpack_decision(packed) for run, _, *packed in done}


# What was sent too long ago


def test_what_is_late_goes_back_before_anything_else_starts(working: Executor, end: End) -> None:
    """Had a later one started first, its number on the board would count the late ones as started too."""
    buffer(working, (PAST, 1), (PAST, 2), (FUTURE, 3))
    assert working.buffers.next(0, rouse=False).run == 3
    assert end.sent == [RunsReleased([1, 2], "late")]
    assert end.high == [0]
    assert working.buffers.board.running().keys() == {3}


def test_what_is_late_on_the_loop_goes_back_too(working: Executor, end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    async def serve_one(run: SentRun) -> None:
        ran.append(run.run)
        working.buffers.started.pop(run.run)

    monkeypatch.setattr(working.loop, "serve_one", serve_one)
    buffer(working, (PAST, 1), (FUTURE, 2), (PAST, 3), name="async")

    async def pump() -> None:
        working.loop.loop = asyncio.get_running_loop()
        working.loop.pump()
        await asyncio.gather(*working.loop.tasks)

    asyncio.run(pump())
    assert ran == [2]
    assert end.sent == [RunsReleased([1], "late"), RunsReleased([3], "late")]


# Outcomes that are longer than a frame


def test_a_result_that_is_longer_than_a_frame_ends_its_job_and_no_other(working: Executor, end: End) -> None:
    """The limits of settings allow it. Its thread must not die of it, nor its job be held for ever."""
    end.most = 5000
    working.outbox.items.extend(
        [[1, 0.1, "succeeded", "1"], [2, 0.1, "succeeded", "x" * 6000], [3, 0.1, "succeeded", "3"]]
    )
    working.outbox.flush()
    decisions = outcomes(end)
    assert (decisions[1], decisions[3]) == (decide.Succeeded("1"), decide.Succeeded("3"))
    assert isinstance(decisions[2], decide.Abandoned)
    assert decisions[2].failure is not None
    assert decisions[2].failure.kind.endswith("UnstorableResult")
    assert not working.outbox.items


@pytest.mark.parametrize("strict", [False, True], ids=["by default", "strict"])
def test_a_result_that_is_longer_than_a_frame_is_dropped_unless_its_job_is_strict(
    working: Executor, end: End, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    end.most = 5000
    monkeypatch.setattr(outbox, "FRAME_CHARS", 5000)
    with registry.isolated():
        job(name="shop.pay", strict_results=strict)(one_argument)
        for run, text in ((1, "y" * 100), (2, "x" * 6000)):
            working.outbox.put(run, 0.1, decide.Succeeded(text), "shop.pay")
    working.outbox.flush()
    decisions = outcomes(end)
    assert decisions[1] == decide.Succeeded("y" * 100)
    if strict:
        assert isinstance(decisions[2], decide.Abandoned)
    else:
        assert isinstance(decisions[2], decide.Succeeded)
        assert "too long to reach the worker" in json.loads(decisions[2].result or "")["$unstored"]
    assert not working.outbox.droppable


def test_a_failure_that_is_longer_than_a_frame_loses_its_traceback_and_is_retried(working: Executor, end: End) -> None:
    end.most = 5000
    failure = Failure("ValueError", "no", (), "x" * 6000)
    working.outbox.items.append([1, 0.1, *pack_decision(decide.Retried(5.0, failure, "failed"))])
    working.outbox.flush()
    assert outcomes(end) == {1: decide.Retried(5.0, Failure("ValueError", "no"), "failed")}


def test_a_frame_is_filled_by_failures_as_by_results(working: Executor, end: End) -> None:
    failure = ["E", "no", [["E", "no"]], "x" * FRAME_CHARS]
    working.outbox.items.extend([[1, 0.1, "retried", 1.0, failure, "failed"], [2, 0.1, "succeeded", None]])
    working.outbox.flush()
    assert [[run for run, *_ in message.items] for message in end.sent if isinstance(message, Decided)] == [[1], [2]]
    assert not working.outbox.waits


# Payloads that do not travel


@pytest.fixture
def tidy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "refresh", lambda: None)
    monkeypatch.setattr(cleanup, "tidy", lambda job: None)


@pytest.mark.parametrize("error", [OperationalError("gone"), InterfaceError("closed")])
def test_a_payload_that_cannot_be_read_now_costs_no_attempt(
    working: Executor,
    tidy: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """Nothing of the job has run; with one attempt it would be abandoned without having been started.

    Nor is it a fault of ours, of which an ERROR would tell.
    """

    def read(db: Any, job_id: int, claim_id: str, *, partly: bool) -> str:
        raise error

    monkeypatch.setattr(finalising, "read_payload", read)
    decision = perform(working, sent(1, payload=None))
    assert isinstance(decision, decide.Snoozed)
    assert decision.seconds > 0
    assert isinstance(perform(working, sent(1, ending="abandoned", payload=None)), decide.Retried)
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_payload_is_read_under_the_fence(working: Executor, tidy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalising, "read_payload", lambda db, job_id, claim_id, partly: None)
    assert isinstance(perform(working, sent(1, payload=None)), decide.Released)
    monkeypatch.setattr(finalising, "read_payload", lambda db, job_id, claim_id, partly: f'"{job_id} {claim_id}"')
    whole = with_payload(sent(2, payload=None).job, "default")
    assert whole == sent(2, payload='"20 claim-20"').job
    assert isinstance(perform(working, sent(2, payload=None)), decide.Parked)  # a name nobody knows


# Neighbours on the loop


def test_a_task_that_a_neighbour_cancelled_before_its_first_step_goes_back(working: Executor, end: End) -> None:
    """Nothing of it has run; its place on the loop and its run would be lost for ever."""
    buffer(working, (FUTURE, 1), name="async")

    async def pump_and_cancel() -> None:
        working.loop.loop = asyncio.get_running_loop()
        working.loop.pump()
        [task] = working.loop.tasks
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(pump_and_cancel())
    assert isinstance(outcomes(end)[1], decide.Released)
    assert (sorted(working.loop.free_slots), working.buffers.started) == ([2, 3], {})
    assert working.buffers.board.running() == {}


def test_a_task_that_ends_without_an_outcome_fails_its_attempt_and_says_so(
    working: Executor, end: End, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of our own costs the attempt, and neither a slot nor the job."""
    buffer(working, (FUTURE, 1), name="async")

    async def fails(run: SentRun) -> decide.Decision:
        raise RuntimeError("ours")

    monkeypatch.setattr(working.loop, "_decide", fails)

    async def pump() -> None:
        working.loop.loop = asyncio.get_running_loop()
        working.loop.pump()
        await asyncio.gather(*working.loop.tasks, return_exceptions=True)

    asyncio.run(pump())
    assert isinstance(outcomes(end)[1], decide.Retried)
    assert "task ended without an outcome slot=3 job=10" in caplog.text
    assert (sorted(working.loop.free_slots), working.loop.doors) == ([2, 3], {})


def test_what_a_job_of_the_loop_comes_to_is_reported_as_it_is(working: Executor, end: End) -> None:
    """A name that nobody knows is parked, by the loop as by a thread."""
    buffer(working, (FUTURE, 1), name="async")

    async def pump() -> None:
        working.loop.loop = asyncio.get_running_loop()
        working.loop.pump()
        await asyncio.gather(*working.loop.tasks)

    asyncio.run(pump())
    assert isinstance(outcomes(end)[1], decide.Parked)


def test_each_job_of_the_loop_has_a_place_of_its_own(
    working: Executor, end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The board shows who has started; on one place the second would hide the first."""
    working.outbox.timer_armed = True
    buffer(working, (FUTURE, 1), (FUTURE, 2), (FUTURE, 3), name="async")
    seen: list[tuple[int, set[int]]] = []

    async def decide_(run: SentRun) -> decide.Decision:
        seen.append((run.slot, set(working.buffers.board.running())))
        return decide.Succeeded(str(run.run))

    monkeypatch.setattr(working.loop, "_decide", decide_)

    async def pump() -> None:
        working.loop.loop = asyncio.get_running_loop()
        working.loop.pump()
        assert (working.loop.free_slots, working.buffers.active) == ([], 2)
        while working.loop.tasks:
            await asyncio.gather(*working.loop.tasks)

    asyncio.run(pump())
    working.outbox.flush()
    assert sorted(slot for slot, _ in seen[:2]) == [2, 3]
    assert seen[0][1] == {1, 2}
    succeeded = [run for message in end.sent if isinstance(message, Successes) for run in message.runs]
    assert sorted(succeeded) == [1, 2, 3]
    assert (sorted(working.loop.free_slots), working.loop.doors) == ([2, 3], {})


def test_a_connection_that_cannot_be_closed_does_not_change_what_the_job_came_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn:
        alias = "default"

        def close(self) -> None:
            raise OperationalError("no")

    monkeypatch.setattr(connections, "all", lambda initialized_only: [Stubborn()])
    cleanup.close_all()
    assert "cannot be closed" in caplog.text


# Starts and ends


def test_an_end_is_told_with_how_long_it_took_and_its_slot_is_free(
    working: Executor, end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short jobs are told of together while more wait, as long as there is a timer that sends them."""
    now = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(working.buffers, "leave", lambda: pytest.fail("nobody has said that it shall"))
    working.outbox.timer_armed = True
    buffer(working, (FUTURE, 1), (FUTURE, 2), (FUTURE, 3))
    for run, took in ((1, 0.0005), (2, 5.0)):
        started = working.buffers.next(0, rouse=False)
        started.started = now[0]
        now[0] += took
        assert working.buffers.finish(started, decide.Succeeded(None)) == pytest.approx(took)
        assert working.buffers.board.running() == {}
        assert (working.buffers.active, run in working.buffers.started) == (0, False)
        assert bool(end.sent) is (run == 2), "the long one is told at once"
    [message] = end.sent
    assert isinstance(message, Successes)
    assert (message.runs, [round(each, -2) for each in message.micros]) == ([1, 2], [500, 5_000_000])


def test_who_ends_the_last_job_of_an_executor_that_drains_leaves(
    working: Executor, end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(working.buffers, "leave", lambda: left.append(working.buffers.active))
    buffer(working, *[(FUTURE, run) for run in (1, 2, 3, 4)])
    running = [working.buffers.next(slot, rouse=False) for slot in (0, 1)]
    working.buffers.finish(running[0], decide.Succeeded(None))
    running[0] = working.buffers.next(0, rouse=False)
    working._obey(Drain())
    assert end.sent[-1] == RunsReleased([4], "drain")
    for started in running:
        assert left == []
        working.buffers.finish(started, decide.Succeeded(None))
    assert left == [0]


def test_an_executor_that_leaves_sends_what_is_left_says_so_and_ends(
    working: Executor, end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing arrives behind a BYE. The process ends without the interpreter's own shutdown."""

    class Ended(Exception):
        pass

    def end_process(status: int) -> NoReturn:
        raise Ended(status)

    steps: list[str] = []
    monkeypatch.setattr(os, "_exit", end_process)
    monkeypatch.setattr(lifecycle, "end_after", lambda seconds: None)
    monkeypatch.setattr(lifecycle, "last_steps", lambda reason, seconds: steps.append(reason))
    monkeypatch.setattr(working.sender, "close", lambda seconds: steps.append("told"))
    working.outbox.put(1, 0.1, decide.Succeeded("1"), "shop.pay")
    with pytest.raises(Ended) as status:
        working._obey(Drain())
    assert status.value.args == (0,)
    assert [type(message) for message in end.sent] == [Successes, Bye]
    assert steps == ["told", lifecycle.DRAINED]


def test_an_executor_waits_for_jobs_that_bypassed_the_queue_before_it_says_bye(
    working: Executor, end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else knows of them: they have no row."""
    waited: list[int] = []

    class Pool:
        running = 2

        def leave(self) -> None:
            waited.append(len(end.sent))

    monkeypatch.setattr(local_pool, "of_this_process", Pool())
    working._wait_for_bypassed()
    monkeypatch.setattr(Pool, "running", 0)
    working._wait_for_bypassed()
    assert waited == [0]


def test_of_the_time_to_leave_receivers_and_callbacks_get_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receivers that hang must leave some of it to the callbacks, and these to the streams."""
    waits: list[tuple[str, float]] = []
    monkeypatch.setattr(clock, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(lifecycle, "end_after", lambda seconds: waits.append(("end", seconds)))
    monkeypatch.setattr(lifecycle, "call_within", lambda seconds, what, call: waits.append((what, round(seconds, 6))))
    lifecycle.last_steps(lifecycle.DRAINED, 10.0)
    assert waits == [("end", 10.0), ("receivers of executor_stopping", 3.0), ("exit callbacks", 8.0)]


def test_what_is_to_be_told_is_handed_to_the_teller(working: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[Any] = []
    monkeypatch.setattr(working.sender, "notify", lambda number, items: handed.append((number, items)))
    working._obey(Notify(7, [("finished", {"job_id": 1})]))
    assert handed == [(7, [("finished", {"job_id": 1})])]


def test_a_job_hears_who_asks_it_to_stop_and_why(working: Executor) -> None:
    """``context.cancel_requested``: a job that is only asked stops by itself. One that was lost hears so, too."""
    buffer(working, (FUTURE, 1), (FUTURE, 2), (FUTURE, 3))
    controls = [working.buffers.next(slot, rouse=False) for slot in (0, 1, 0)]
    working._obey(StopRun(1, "flag", "cancelled", "anna", "too late"))
    working._obey(StopRun(2, "flag", "lost", "", "it was taken from this worker"))
    working._obey(StopRun(99, "flag", "cancelled", "", "of a run that has ended"))
    assert [(each.requested, each.by, each.reason) for each in controls] == [
        (True, "anna", "too late"), (True, "", "it was taken from this worker"), (False, "", ""),
    ]  # fmt: skip


def test_a_release_is_announced_to_the_job_that_it_is_about(working: Executor) -> None:
    """``context.stopping``: it has a second until it is interrupted."""
    buffer(working, (FUTURE, 1), (FUTURE, 2))
    first, second = [working.buffers.next(slot, rouse=False) for slot in (0, 1)]
    working._obey(StopRun(1, "flag", "released", "", "it was taken from this worker"))
    assert (first.stopping.why, second.stopping.why, first.requested) == ("release", "", False)
    assert 0 < (first.stopping.remaining() or 0.0) <= 1


def test_what_arrives_wakes_an_idle_thread_and_that_one_the_next(working: Executor) -> None:
    started: list[int] = []

    def serve(slot: int) -> None:
        started.append(working.buffers.next(slot, rouse=True).run)

    for slot in (0, 1):
        threading.Thread(target=serve, args=(slot,), daemon=True).start()
    wait_until(lambda: len(working.buffers.idle) == 2, 5, "both threads wait")
    assert not working.buffers.add(FUTURE, groups_of([run_of(10, number=1), run_of(20, number=2)]))
    wait_until(lambda: sorted(started) == [1, 2], 5, "both jobs have started")
    assert not working.buffers.idle


def test_before_and_after_each_job_its_threads_connections_are_seen_to(
    working: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the job could not be started; a thread that has no connection yet has none to look at."""
    seen: list[str] = []
    monkeypatch.setattr(cleanup, "refresh", lambda: seen.append("refresh"))
    monkeypatch.setattr(cleanup, "tidy", lambda job: seen.append(f"tidy {job.id}"))
    door = Door()
    for connections_ in cast(Any, ([], [object()])):
        door.connections = connections_
        assert isinstance(working.threads.run(sent(1), door), decide.Parked)
    assert seen == ["tidy 10", "refresh", "tidy 10"]


# Trust, and the supervisor's end


def test_what_runs_and_what_starts_later_learns_until_when_its_lease_is_trusted(
    working: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working.threads, "revive", lambda: None)  # they would take what is to be taken here
    buffer(working, (FUTURE, 1), (FUTURE, 2))
    working.buffers.next(0, rouse=False)
    working._obey(TrustUntil(42.0))
    working.buffers.next(1, rouse=False)
    assert [working.buffers.started[run].trusted_until for run in (1, 2)] == [42.0, 42.0]


def test_a_parent_that_lives_is_no_dead_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may have closed the channel; what we hold is then still the supervisor's."""
    monkeypatch.setattr(orphan, "PARENT_SECONDS", 0.02)
    assert not orphan.supervisor_has_ended(os.getppid())
    assert orphan.supervisor_has_ended(os.getppid() + 1)


def test_giving_back_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may answer at the other end; the lease brings the jobs back then."""
    never = threading.Event()

    def connect(*_: Any, **__: Any) -> Any:
        never.wait(30)
        raise OperationalError("no answer")

    monkeypatch.setattr(orphan, "RELEASE_SECONDS", 0.05)
    monkeypatch.setattr(orphan, "WorkerConnection", connect)
    began = time.monotonic()
    orphan.release_unstarted([sent(1).job], ["default"], "pgjobs test")
    orphan.release_unstarted([], ["default"], "pgjobs test")
    assert time.monotonic() - began < patience(5)
    never.set()


def test_jobs_of_several_homes_are_given_back_each_to_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home whose server does not answer keeps none of the others waiting."""
    never, released = threading.Event(), dict[str, list[int]]()

    def release(jobs: list[ClaimedJob], using: str, schema: str, application_name: str) -> None:
        if using == "silent":
            never.wait(30)
        released[using] = [job.id for job in jobs]

    monkeypatch.setattr(orphan, "RELEASE_SECONDS", 0.5)
    monkeypatch.setattr(orphan, "_release", release)
    one, two, three, four = (sent(number).job for number in (1, 2, 3, 4))
    own = [one._replace(database="silent"), two._replace(database="eu"), three._replace(database="eu"), four]
    orphan.release_unstarted(own, ["default", "eu", "silent"], "pgjobs test")
    assert released == {"eu": [20, 30], "default": [40]}
    never.set()


def test_a_server_that_is_away_gives_nothing_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OperationalError("away")

    monkeypatch.setattr(orphan, "WorkerConnection", refuse)
    orphan.release_unstarted([sent(1).job, sent(2).job], ["default"], "pgjobs test")
    assert "jobs cannot be released jobs=2: away" in caplog.text
