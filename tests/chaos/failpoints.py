"""Fail points: named places in a worker where a test has it die, freeze, fail or wait.

The product has no hooks. The tests' own app (``tests.chaos``, installed by ``tests.chaos.settings`` alone) wraps
functions of the worker when ``PGJOBS_TEST_FAILPOINTS`` names points:

    env=armed(claimed={"do": "kill"}, body={"do": "freeze", "after": 3})

``do``: *kill* (SIGKILL to the process that has come here), *kill_parent*, *kill_both*, *freeze* (SIGSTOP), *term*,
*exit*, *raise* (RuntimeError), *trouble* (psycopg.OperationalError), *wait* (until the test opens the gate
``failpoint-NAME`` on its stage). ``after``: the how-many-th time in a process (1). ``times``: in how many processes
or turns in all (1). Each strike is noted in the journal as ``failpoint``.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import psycopg

from django_pgjobs.worker.executor.run_queue import Buffers
from django_pgjobs.worker.shared.channel_messages import Decided, Successes
from tests.chaos import journal
from tests.e2e import stage

VARIABLE = "PGJOBS_TEST_FAILPOINTS"

SUPERVISOR, EXECUTOR = "supervisor", "executor"
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Place:
    """Where a point is: in which process, around which function, and when it counts as reached."""

    process: str
    module: str
    path: str
    when: str
    reached: Callable[[tuple[Any, ...], Any], bool] = lambda args, result: True


def _of_kind(kind: str) -> Callable[[tuple[Any, ...], Any], bool]:
    return lambda args, result: str(args[1]) == kind


def _is_outcome(args: tuple[Any, ...], result: Any) -> bool:
    return isinstance(args[-1], Decided | Successes)


def _behind_a_job(args: tuple[Any, ...], result: Any) -> bool:
    """A thread that takes over a slot clears it, too, the first one before any job: that is not meant."""
    return sys._getframe(2).f_code is Buffers.finish.__code__


def _store(room: str) -> str:
    return f"django_pgjobs.store.{room}"


def _worker(room: str) -> str:
    return f"django_pgjobs.worker.{room}"


PLACES: dict[str, Place] = {
    # claim committed, not sent
    "claiming": Place(SUPERVISOR, _store("claiming"), "claim_lines", BEFORE),
    "claimed": Place(SUPERVISOR, _store("claiming"), "claim_lines", AFTER, lambda args, claimed: bool(claimed.jobs)),
    "adopted": Place(SUPERVISOR, _worker("supervisor.held_jobs"), "HeldJobs.adopt", AFTER),
    # sent, unstarted
    "sent": Place(SUPERVISOR, _worker("supervisor.executor_process"), "ExecutorProcess.add", AFTER),
    "received": Place(EXECUTOR, _worker("executor.run_queue"), "Buffers.add", BEFORE),
    "buffered": Place(EXECUTOR, _worker("executor.run_queue"), "Buffers.add", AFTER),
    # user code
    "started": Place(EXECUTOR, _worker("shared.board"), "Board.start", AFTER),
    "body": Place(EXECUTOR, "django_pgjobs.execution.attempt", "run_here", BEFORE),
    "async_body": Place(EXECUTOR, "django_pgjobs.execution.attempt", "arun", BEFORE),
    # an atomic job's body is done, its end not written or not committed
    "closing": Place(EXECUTOR, _store("atomic"), "end_atomic", BEFORE),
    "committing": Place(EXECUTOR, _store("atomic"), "end_atomic", AFTER),
    "stepping": Place(EXECUTOR, _store("atomic"), "next_step_atomic", BEFORE),
    "stepped": Place(EXECUTOR, _store("atomic"), "next_step_atomic", AFTER),
    # user code done, DONE not sent
    "finished": Place(EXECUTOR, _worker("executor.outbox"), "Outbox.put", BEFORE),
    "queued": Place(EXECUTOR, _worker("shared.board"), "Board.clear", AFTER, _behind_a_job),
    "sending": Place(EXECUTOR, _worker("shared.channel"), "ExecutorEnd.send", BEFORE, _is_outcome),
    # DONE received, flush lost
    "done": Place(SUPERVISOR, _worker("supervisor.executor_pool"), "ExecutorPool._on_message", AFTER, _is_outcome),
    "flushing": Place(SUPERVISOR, "django_pgjobs.ends.kinds", "write", BEFORE),
    "flushed": Place(SUPERVISOR, "django_pgjobs.ends.kinds", "write", AFTER),
    # a job is suspended: its statement is written, or committed
    "suspending": Place(SUPERVISOR, _store("memos"), "suspend_jobs", BEFORE),
    "suspended": Place(SUPERVISOR, _store("memos"), "suspend_jobs", AFTER, lambda args, jobs: bool(jobs)),
    "deleting": Place(SUPERVISOR, _store("finalising"), "delete_claims", BEFORE),
    # mark_ending written, callback unfinished
    "marking": Place(SUPERVISOR, "django_pgjobs.ends.kinds", "write", BEFORE, _of_kind("mark")),
    "marked": Place(SUPERVISOR, "django_pgjobs.ends.kinds", "write", AFTER, _of_kind("mark")),
    "callback": Place(EXECUTOR, "django_pgjobs.execution.attempt", "_callback", BEFORE),
    "called_back": Place(EXECUTOR, "django_pgjobs.execution.attempt", "_callback", AFTER),
    # supervisor anywhere
    "renewing": Place(SUPERVISOR, _store("keeping"), "renew_claims", BEFORE),
    "renewed": Place(SUPERVISOR, _store("keeping"), "renew_claims", AFTER),
    "rescuing": Place(SUPERVISOR, _store("keeping"), "rescue_jobs", BEFORE),
    "rescued": Place(SUPERVISOR, _store("keeping"), "rescue_jobs", AFTER, lambda args, jobs: bool(jobs)),
    "firing": Place(SUPERVISOR, _store("firing"), "fire_cron", BEFORE),
    "fired": Place(SUPERVISOR, _store("firing"), "fire_cron", AFTER, lambda args, fired: fired is not None),
    "settling": Place(SUPERVISOR, _worker("supervisor.held_jobs"), "HeldJobs.settle", BEFORE),
    "spawned": Place(SUPERVISOR, _worker("supervisor.executor_pool"), "ExecutorPool.spawn", AFTER),
    "releasing": Place(SUPERVISOR, _store("finalising"), "release_jobs", BEFORE),
    "released": Place(SUPERVISOR, _store("finalising"), "release_jobs", AFTER, lambda args, jobs: bool(jobs)),
}


LETHAL = frozenset({"kill", "kill_both", "exit"})

_dying = threading.Lock()


@dataclass
class Point:
    """One armed point."""

    name: str
    do: str
    after: int = 1
    times: int = 1
    seen: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reach(self) -> None:
        """Strike if this is the time."""
        # A process dies of one point: another thread's, whose turn is taken and not told, would never strike again.
        with _dying if self.do in LETHAL else nullcontext():
            self._reach()

    def _reach(self) -> None:
        with self.lock:
            self.seen += 1
            due = self.seen >= self.after and self._take_a_turn()
        if due:
            journal.here().note("failpoint", name=self.name, do=self.do, parent=os.getppid())
            ACTS[self.do](self.name)

    def _take_a_turn(self) -> bool:
        """Take one of ``times``, shared by all processes of the test."""
        for turn in range(self.times):
            try:
                os.close(os.open(stage.here().path / f"failpoint-{self.name}-{turn}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return True
        return False


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _kill_both(name: str) -> None:
    _kill(os.getppid())
    _kill(os.getpid())


def _raise(name: str) -> None:
    raise RuntimeError(f"fail point {name}")


def _trouble(name: str) -> None:
    raise psycopg.OperationalError(f"fail point {name}")


def _kill_parent(name: str) -> None:
    _kill(os.getppid())
    time.sleep(60)  # whoever is orphaned here must not get on with it first


_armed = False

ACTS: dict[str, Callable[[str], None]] = {
    "kill": lambda name: _kill(os.getpid()),
    "kill_parent": _kill_parent,
    "kill_both": _kill_both,
    "freeze": lambda name: os.kill(os.getpid(), signal.SIGSTOP),
    "term": lambda name: os.kill(os.getpid(), signal.SIGTERM),
    "exit": lambda name: os._exit(7),
    "raise": _raise,
    "trouble": _trouble,
    "wait": lambda name: stage.here().wait(f"failpoint-{name}"),
}


def armed(**points: Mapping[str, object]) -> dict[str, str]:
    """Return the environment that arms these points in a worker."""
    unknown = set(points) - set(PLACES)
    assert not unknown, f"no such fail point: {unknown}"
    return {VARIABLE: json.dumps(points)}


def arm(text: str) -> None:
    """Wrap what the points named in ``text`` are around: those of executors in these and in what forks them."""
    if "executor" in sys.argv:
        _arm(text, EXECUTOR)
    else:
        _arm(text, SUPERVISOR)
        os.register_at_fork(after_in_child=lambda: _arm_once(text))


def _arm_once(text: str) -> None:
    """In the worker's first fork, its template, whose forks get it so."""
    global _armed
    if not _armed:
        _armed = True
        _arm(text, EXECUTOR)


def _arm(text: str, here: str) -> None:
    for name, facts in json.loads(text or "{}").items():
        if PLACES[name].process == here:
            _wrap(PLACES[name], Point(name, **facts))


def _wrap(place: Place, point: Point) -> None:
    owner: Any = importlib.import_module(place.module)
    *outer, last = place.path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    setattr(owner, last, _wrapped(getattr(owner, last), place, point))


def _wrapped(function: Callable[..., Any], place: Place, point: Point) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if place.when == BEFORE and place.reached(args, None):
            point.reach()
        result = function(*args, **kwargs)
        if place.when == AFTER and place.reached(args, result):
            point.reach()
        return result

    return wrapper
