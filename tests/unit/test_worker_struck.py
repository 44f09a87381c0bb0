"""Exceptions from outside reach a job thread anywhere: before, in and after a job, and while it waits for one.

Libraries for time limits raise them by the number of a thread, without knowing what it does by now. Here they come at
random moments, from a seed that is printed, into the threads of a real executor with a real channel and board.
"""

from __future__ import annotations

import ctypes
import gc
import random
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from coverage import Coverage

from django_pgjobs import job
from django_pgjobs.exceptions import DeadlinePassed
from django_pgjobs.worker.executor.main import Executor
from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.board import Board
from django_pgjobs.worker.shared.channel_messages import Decided, Drain, RunJobs, Successes, TrustUntil
from django_pgjobs.worker.shared.run_groups import groups_of
from tests.plugins.fix_db import wait_until
from tests.unit.worker_fakes import run_of

THREADS = 3
ROUNDS = 1500
FUTURE = 1e12


class Stray(BaseException):
    """An exception that ``except Exception`` does not catch."""


KINDS: tuple[type[BaseException], ...] = (
    Stray,
    SystemExit,
    KeyboardInterrupt,
    ValueError,
    TimeoutError,
    DeadlinePassed,
)


@job(name="struck.returns", max_attempts=1)
def returns() -> int:
    return 7


@job(name="struck.fails", max_attempts=1)
def fails() -> None:
    raise ValueError("an ordinary failure")


class Left(BaseException):
    """The executor would end its process here."""


class Working(Executor):
    """An executor in this process: instead of ending the process it records that."""

    has_left = False

    def _bye(self) -> NoReturn:
        self.outbox.flush()
        self.has_left = True
        raise Left

    _orphaned = _bye


class Room:
    """A supervisor's end of a channel, and the executor at the other one."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.end = channel.SupervisorEnd(ours)
        self.board = Board.create(THREADS, 1)
        self.executor = Working(channel.ExecutorEnd(theirs), self.board, THREADS, 1, "default")
        self.sent = 0
        self.outcomes: dict[int, list[Any]] = defaultdict(list)
        self.control = threading.Thread(target=self._control, daemon=True)
        self.executor.threads.start()
        self.control.start()

    def _control(self) -> None:
        try:
            self.executor._control()
        except Left:
            return

    def run(self, name: str) -> int:
        self.sent += 1
        run = run_of(self.sent, number=self.sent, name=name, max_attempts=1, timeout_seconds=None)
        self.end.send(RunJobs(FUTURE, groups_of([run])))
        return self.sent

    def hear(self) -> None:
        """Take in what has been sent."""
        for message in self.end.receive():
            match message:
                case Successes():
                    for run, result in zip(message.runs, message.results, strict=True):
                        self.outcomes[run].append(["succeeded", result])
                case Decided():
                    for run, _, *packed in message.items:
                        self.outcomes[run].append(packed)

    def all_have_ended(self) -> bool:
        self.hear()
        return len(self.outcomes) == self.sent

    def wait_for_all(self) -> None:
        until = time.monotonic() + 0.01
        while not self.all_have_ended() and time.monotonic() < until:
            pass
        if not self.all_have_ended():
            self.trust()
            wait_until(self.all_have_ended, 20, "each run has an outcome")

    def is_at_rest(self) -> bool:
        return self.all_have_ended() and not self.executor.buffers.started and not self.board.running()

    def trust(self) -> None:
        """Send the periodic messages of a supervisor."""
        self.end.send(TrustUntil(FUTURE))


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # otherwise threads take turns of 5 ms, and races never happen
    gc.disable()  # Hypothesis has a callback for collections, which would swallow the exception
    yield room
    gc.enable()
    sys.setswitchinterval(before)
    room.end.close()
    room.control.join(10)


def strike(thread: threading.Thread | None, kind: type[BaseException]) -> None:
    if thread is not None and thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))


# A strike may leave a lock of Python's own held for good, which harms the process that runs the tests: by itself only.
@pytest.mark.slow
# Coverage's tracer takes a lock in every thread, and whoever is struck there keeps it for ever.
@pytest.mark.skipif(Coverage.current() is not None, reason="coverage holds a lock of its own in each thread")
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # of threads that get it at their end
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_thousands_of_exceptions_from_outside_cost_no_outcome_and_no_slot(room: Room) -> None:
    """Each run is reported, repeated reports agree, each slot goes on, and the executor can leave."""
    seed = random.SystemRandom().randrange(10**9)
    print(f"seed={seed}")  # noqa: T201 (shown when it fails)
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        for _ in range(chance.randrange(1, 8)):
            room.run(chance.choice(["struck.returns", "struck.fails"]))
        until = time.perf_counter() + chance.uniform(0, 0.001)
        while time.perf_counter() < until:
            pass
        # One at a time: a second one, while the thread cleans up after the first, may keep it from that.
        strike(chance.choice(room.executor.threads.owners), chance.choice(KINDS))
        room.wait_for_all()
    contradictory = {run: told for run, told in room.outcomes.items() if len({each[0] for each in told}) > 1}
    assert contradictory == {}
    room.trust()
    wait_until(room.is_at_rest, 20, "nothing is held for running")
    # An exception that waits for an idle thread comes with its next job: that is charged, and these are not counted.
    for _ in range(THREADS * 5):
        room.run("struck.returns")
        wait_until(room.is_at_rest, 20, "each thread has met what was meant for it")
    last = [room.run("struck.returns") for _ in range(50)]
    wait_until(room.is_at_rest, 20, "they have run")
    assert [room.outcomes[run] for run in last] == [[["succeeded", "7"]]] * 50
    assert all(owner is not None and owner.is_alive() for owner in room.executor.threads.owners)
    room.end.send(Drain())
    wait_until(lambda: room.executor.has_left, 20, "it leaves when asked")
