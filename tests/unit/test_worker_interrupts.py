"""An interrupt reaches the job's own code or nobody: whenever it comes, there is one outcome and no stray exception."""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
import random
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from django_pgjobs.exceptions import CancelRequested, DeadlinePassed, JobInterrupted, SoftDeadlinePassed
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.worker.executor import cleanup, interrupts, safe_points
from django_pgjobs.worker.executor.interrupts import Door, raise_ignored_again
from django_pgjobs.worker.executor.safe_points import Safety
from django_pgjobs.worker.executor.task_door import TaskDoor
from tests.plugins.fix_db import patience, wait_until
from tests.unit.job_room import Room, interrupt, spin

ROUNDS = 6000


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """Hypothesis has a callback for garbage collections: it would swallow an interrupt that arrives there."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("swallows", [False, True])
def test_thousands_of_interrupts_around_a_jobs_end_lose_no_outcome_and_none_escapes(room: Room, swallows: bool) -> None:
    """R8 trap 3: before the start, in the job, in its last line, while the door closes, behind it."""
    seen: Counter[str] = Counter()
    chance = random.Random(7)

    def body(_: Any) -> str:
        try:
            spin(0.00005)
        except CancelRequested:
            if not swallows:
                raise
        return "done"

    for _ in range(ROUNDS):
        control = room.start(body)
        spin(chance.uniform(0, 0.00025))
        interrupt(room, control)
        how, value = room.outcome()
        assert (how, value) == ("returned", "done") or type(value) is CancelRequested, (how, value)
        seen[how] += 1
    assert room.escaped == []
    assert seen["returned"] > ROUNDS / 100, seen
    assert swallows or seen["raised"] > ROUNDS / 100, seen
    # No interrupt is left for the next job of this thread.
    room.start(lambda _: spin(0.02))
    assert room.outcome() == ("returned", None)


def test_an_interrupt_of_a_job_that_has_ended_meets_nobody(room: Room) -> None:
    """The door is open for one job only."""
    first = room.start(lambda _: "first")
    assert room.outcome() == ("returned", "first")
    started = threading.Event()

    def second(_: Any) -> str:
        started.set()
        spin(0.2)
        return "second"

    room.start(second)
    assert started.wait(patience(5))
    interrupt(room, first)
    assert room.outcome() == ("returned", "second")
    assert not first.interrupted


def test_an_interrupt_that_comes_before_the_start_is_kept(room: Room) -> None:
    control = RunControl()
    control.interrupt = DeadlinePassed
    ran: list[int] = []
    room.work.put((control, ran.append))
    how, error = room.outcome()
    assert (how, type(error), ran) == ("raised", DeadlinePassed, [])


def test_a_second_reason_interrupts_once_more(room: Room) -> None:
    """A cancel was swallowed, later the deadline passes."""
    heard: list[str] = []

    def body(_: Any) -> None:
        for _ in range(2):
            try:
                spin(10)
            except JobInterrupted as error:
                heard.append(type(error).__name__)

    control = room.start(body)
    kinds: list[type[JobInterrupted]] = [CancelRequested, DeadlinePassed]
    for kind in kinds:
        wait_until(lambda: room.door is not None and room.door.open is control, 5, "it runs")
        spin(0.01)
        interrupt(room, control, kind)
        wait_until(partial(heard.__contains__, kind.__name__), 5, "it was heard")
    assert room.outcome() == ("returned", None)
    assert heard == ["CancelRequested", "DeadlinePassed"]


@pytest.mark.parametrize("interrupted", [True, False])
def test_an_interrupt_that_has_not_come_when_the_job_ends_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """Otherwise it would reach the next job, or the code that reports this one."""
    taken: list[tuple[int, object]] = []
    monkeypatch.setattr(interrupts, "set_exception", lambda ident, kind: taken.append((ident, kind)))
    monkeypatch.setattr(cleanup, "discard_all", lambda: None)
    door, control = Door(), RunControl()
    door.control = control

    def body() -> int:
        control.interrupt, control.interrupted = DeadlinePassed, interrupted
        return 7

    assert door.call(body) == 7
    assert taken == ([(threading.get_ident(), None)] if interrupted else [])
    assert door.open is None


def test_what_a_job_raises_is_raised_as_it_is(room: Room) -> None:
    error = ValueError("no")

    def body(_: Any) -> None:
        raise error

    room.start(body)
    assert room.outcome() == ("raised", error)
    assert error.__context__ is None


def test_connections_are_thrown_away_before_anything_else_runs(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """§4 cleanup: a late cancel of a query must meet no other job's, nor a receiver's."""
    thrown: list[int] = []
    monkeypatch.setattr(cleanup, "discard_all", lambda: thrown.append(threading.get_ident()))
    room.start(lambda _: None)
    room.outcome()
    assert thrown == []
    control = room.start(lambda _: spin(10))
    wait_until(lambda: room.door is not None and room.door.open is control, 5, "it runs")
    interrupt(room, control)
    assert room.outcome()[0] == "raised"
    assert room.door is not None
    assert thrown == [room.door.ident]


def test_a_lock_of_logging_that_the_interrupted_job_still_holds_is_let_go(room: Room) -> None:
    """Otherwise the next thread that logs in this process, first the control thread, would wait for ever."""
    handler = logging.StreamHandler()
    assert handler.lock is not None

    def body(_: Any) -> None:
        handler.acquire()
        handler.acquire()
        spin(10)

    control = room.start(body)
    wait_until(lambda: room.door is not None and room.door.open is control, 5, "it runs")
    spin(0.01)
    interrupt(room, control)
    assert room.outcome()[0] == "raised"
    assert handler.lock.acquire(timeout=patience(5))
    handler.lock.release()


@pytest.mark.skipif(not safe_points.EXACT, reason="from Python 3.13 on the thread raises it itself")
@pytest.mark.parametrize("comes", [True, False])
def test_a_lock_that_is_taken_as_the_interrupt_comes_is_let_go(room: Room, comes: bool) -> None:
    """The mutex of a queue is released, whether the interrupted thread got it or was still waiting for it."""
    shared: queue.Queue[int] = queue.Queue()
    assert room.door is not None
    door = room.door

    def one() -> None:
        shared.mutex.acquire()
        control = room.start(lambda _: shared.put(1))
        wait_until(lambda: safe_points.entering(door.ident) is not None, 5, "it waits for the mutex")
        if comes:
            interrupt(room, control)
            wait_until(lambda: control.interrupted, 5, "it was interrupted there")
        shared.mutex.release()
        assert room.outcome()[0] == ("raised" if comes else "returned")
        assert shared.mutex.acquire(timeout=patience(5))
        shared.mutex.release()
        wait_until(lambda: not door.entered and door.held is None, 5, "no lock is left to mend")

    for _ in range(50):
        one()
    shared.put(2)
    assert shared.qsize() == (1 if comes else 51)


@pytest.mark.skipif(not safe_points.EXACT, reason="from Python 3.13 on the thread raises it itself")
def test_an_interrupt_that_is_taken_back_there_lets_nothing_go(room: Room) -> None:
    """A thread that has returned with the lock is not mended: another thread may hold the lock by then."""
    condition = threading.Condition(threading.Lock())
    condition.acquire()
    control = room.start(lambda _: condition.__enter__())
    assert room.door is not None
    door = room.door
    wait_until(lambda: safe_points.entering(door.ident) is not None, 5, "it waits for the lock")
    taken = safe_points.entering(door.ident)
    assert taken is not None
    assert (taken.lock, taken.lasts) == (condition._lock, True)  # type: ignore[attr-defined]
    condition.release()
    assert room.outcome()[0] == "returned"
    wait_until(lambda: taken.lasts is False, 5, "it has left")
    taken.mend()
    assert not control.interrupted
    assert not condition.acquire(blocking=False), "it still holds the lock"


def test_a_thread_that_takes_a_lock_is_not_interrupted_however_long_it_does(room: Room) -> None:
    """It would find the lock, and leave it held for ever; a ladder goes on, and a cancel by kill reaches it."""
    condition = threading.Condition()
    condition.acquire()
    control = room.start(lambda _: condition.__enter__())
    assert room.door is not None
    door = room.door
    wait_until(
        lambda: safe_points.safety_of(door.ident, Door.call.__code__) is Safety.TAKING, 5, "it waits for the lock"
    )
    control.interrupt = CancelRequested
    assert not door._try_interrupt(control, 1e9)
    assert not control.interrupted
    control.interrupt = None
    assert door._try_interrupt(control, 0.0), "there is no interrupt any more"
    condition.release()
    assert room.outcome() == ("returned", True)


class Waits:
    """A connection that waits for the server; only its cancelling matters here."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.answered = threading.Event()

    def cancel_safe(self, *, timeout: float) -> None:
        self.cancelled.set()
        self.answered.wait(patience(30))  # the network
        raise OSError("no route to host")


def test_queries_are_cancelled_beside_it_without_waiting_for_the_network(
    room: Room, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Trap 2: no exception reaches a thread that waits for the server; the control thread must not wait either."""
    waits = Waits()
    monkeypatch.setattr(cleanup, "active", lambda wrappers: [waits])
    control = room.start(lambda _: spin(10))
    wait_until(lambda: room.door is not None and room.door.open is control, 5, "it runs")
    interrupt(room, control)
    assert waits.cancelled.wait(patience(5))
    assert not caplog.text
    waits.answered.set()
    wait_until(lambda: "query of a job cannot be cancelled: no route to host" in caplog.text, 5, "it was logged")


# On the loop


@pytest.mark.parametrize("kinds", [(CancelRequested, SoftDeadlinePassed), (SoftDeadlinePassed, CancelRequested)])
def test_a_cancel_and_a_soft_limit_in_one_turn_of_the_loop_cancel(kinds: tuple[Any, Any]) -> None:
    """Job code that blocks the loop lets both come at once; the cancel must not get lost behind the soft limit."""

    async def works(_: Any) -> str:
        try:
            await asyncio.sleep(30)
        except SoftDeadlinePassed:
            return "told"
        return ""

    async def main() -> None:
        door = TaskDoor(RunControl(), softly=True)
        loop = asyncio.get_running_loop()
        for kind in kinds:
            loop.call_soon(door.interrupt, kind)
        await door.acall(works, None)

    with pytest.raises(CancelRequested):
        asyncio.run(main())


def test_hundreds_of_interrupts_around_a_tasks_end_lose_no_outcome() -> None:
    """Async: the same promise, by the loop's own thread."""
    seen: Counter[str] = Counter()

    async def body(_: Any) -> str:
        for _ in range(3):
            await asyncio.sleep(0)
        return "done"

    async def job(control: RunControl, doors: list[TaskDoor]) -> tuple[str, Any]:
        door = TaskDoor(control)
        doors.append(door)
        await asyncio.sleep(0)
        try:
            outcome: tuple[str, Any] = ("returned", await door.acall(body, None))
        except BaseException as error:
            outcome = ("raised", error)
        for _ in range(3):
            await asyncio.sleep(0)  # ours: closing connections
        return outcome

    async def one(turns: int) -> None:
        doors: list[TaskDoor] = []
        task = asyncio.create_task(job(RunControl(), doors))
        for _ in range(turns):
            await asyncio.sleep(0)
        if doors and not task.done():
            doors[0].interrupt(DeadlinePassed)
        how, value = await task
        assert (how, value) == ("returned", "done") or type(value) is DeadlinePassed, (how, value)
        seen[how] += 1
        assert task.cancelling() == 0

    async def all_of_them() -> None:
        for number in range(1200):
            await one(number % 12)

    asyncio.run(all_of_them())
    assert min(seen["returned"], seen["raised"]) > 200, seen


def test_a_jobs_own_cancelled_error_is_its_own() -> None:
    async def leaves(_: Any) -> None:
        raise asyncio.CancelledError("mine")

    async def job() -> None:
        await TaskDoor(RunControl()).acall(leaves, None)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(job())


class Finalised:
    def __del__(self) -> None:
        _works()


def _works() -> None:
    for _ in range(100):
        len("")


def _in_del() -> None:
    Finalised()


def _in_a_weak_callback() -> None:
    of = type("Of", (), {})()
    weakref.finalize(of, _works)


def _in_a_generator_thrown_away() -> None:
    def generator() -> Iterator[None]:
        try:
            yield
        finally:
            _works()

    next(generator())


@pytest.mark.parametrize("finalises", [_in_del, _in_a_weak_callback, _in_a_generator_thrown_away])
def test_an_interrupt_that_a_finaliser_loses_is_raised_again(
    room: Room, monkeypatch: pytest.MonkeyPatch, finalises: Callable[[], None]
) -> None:
    """C25: CPython reports what is raised there, and goes on; the job would run on for ever."""
    monkeypatch.setattr("sys.unraisablehook", sys.unraisablehook)  # restored after it
    raise_ignored_again()

    def body(_: Any) -> None:
        while True:
            finalises()
            for _ in range(100):
                len("")

    for _ in range(20):
        control = room.start(body)
        spin(0.003)
        interrupt(room, control)
        assert type(room.outcome()[1]) is CancelRequested
    assert room.escaped == []
