"""Executor processes: started, told apart by pid, killed with their group, reaped.

Rules: started from the main thread, as copies of the template (see ``template``) or, without one, by the worker's own
entry point, never by a ``fork`` of this process (that would inherit sockets and locks); READY within a deadline; only
pids we know are reaped; the exit status proves a death, the end of the stream is only a hint, since job code may have
forked and kept the socket; no child inherits another's ends; each leads its own process group and dies with it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter
from uuid import UUID

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.worker.executor.template import GO
from django_pgjobs.worker.shared.board import Board
from django_pgjobs.worker.shared.channel import SupervisorEnd
from django_pgjobs.worker.shared.channel_messages import ReleaseRuns
from django_pgjobs.worker.shared.runs import RELEASING, SENT, HeldRun
from django_pgjobs.worker.supervisor.template import ExecutorTemplate, Forked, TemplateLost

STARTING, READY, DRAINING, DEAD = "starting", "ready", "draining", "dead"
TERMINATING, KILLED = "terminating", "killed"

DEPTH_SECONDS = 0.02
DEEPEST = 1000
FIRST_GUESS_SECONDS = 0.02
PAYLOAD_BYTES = 1024 * 1024
ANSWER_SECONDS = 0.5
FORK_SECONDS = 5.0
"""Time limit of a fork by the template, while the main thread waits; with short leases a part of one."""

_RUN, _IS_ASYNC, _SIZE = attrgetter("run"), attrgetter("is_async"), attrgetter("size")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe for every executor of a worker."""

    entry: tuple[str, ...]
    options: tuple[str, ...]
    threads: int
    async_slots: int
    database: str
    name: str
    worker: UUID
    environment: Mapping[str, str] | None = None
    """Variables that executors get besides the worker's own."""

    template: ExecutorTemplate | None = None
    """Forks them; without it, or if it is gone, they are started as new programs."""


@dataclass(slots=True, eq=False)
class ExecutorProcess:
    """One executor process as its supervisor sees it. ``leaving`` says why a successor replaces it.

    ``exclusive``: suspects run in it, apart until ``alone_until``; ``reserved``: they will, as soon as it is empty.
    """

    number: int
    process: subprocess.Popen[bytes] | Forked
    end: SupervisorEnd
    board: Board
    threads: int
    async_slots: int
    application_name: str
    started_at: float
    pidfd: int | None
    state: str = STARTING
    runs: dict[int, HeldRun] = field(default_factory=dict)
    outstanding: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    payload_bytes: int = 0
    mean_seconds: float = FIRST_GUESS_SECONDS
    exclusive: bool = False
    reserved: bool = False
    alone_until: float = 0.0
    done: int = 0
    busy: int = 0
    ready_at: float = 0.0
    measured_at: float = 0.0
    own_bytes: int = 0
    """The memory that it held of its own when ``MemoryGuard`` last looked at it, at ``own_at``."""
    own_at: float = 0.0
    own_done: int = 0
    over: str = ""
    """Why it was killed for its memory, with several jobs in it."""
    drained: bool = False
    leaving: str = ""
    interrupted: int = 0
    listens: frozenset[str] = frozenset()
    culprits: dict[int, str] = field(default_factory=dict)
    boot_error: str = ""
    database_away: bool = False
    asked_at: float | None = None
    deaf_since: float | None = None
    hung_since: float | None = None
    idle_since: float | None = None
    said_bye: bool = False
    reached: frozenset[str] = frozenset({""})
    """The homes whose jobs it may get, as the jobs name them."""

    sees: dict[str, list[object]] = field(default_factory=dict)
    """The database that it has found at each of several aliases."""

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its process group."""
        return self.process.pid

    @property
    def may_notify(self) -> bool:
        """True if it can receive events of durable writes, and wants some."""
        return bool(self.listens) and self.state == READY

    def room(self, *, is_async: bool) -> int:
        """Return how many more jobs to send: its free slots, and some 20 ms of further work, bounded in bytes."""
        closed = self.exclusive or self.reserved
        if self.state != READY or closed or self.payload_bytes > PAYLOAD_BYTES or self.mute():
            return 0
        if is_async:
            return self.async_slots - self.outstanding[True]
        return self.threads + self.prefetch() - self.outstanding[False]

    def mute(self) -> bool:
        """Return whether it does not answer: a job holds the interpreter, and anything sent now would wait for it."""
        return self.asked_at is not None and clock.monotonic() > self.asked_at + ANSWER_SECONDS

    def prefetch(self) -> int:
        """Jobs to keep in its buffer: as many as its threads do in ``DEPTH_SECONDS``, none after long jobs."""
        return min(DEEPEST, int(DEPTH_SECONDS * self.threads / max(self.mean_seconds, 1e-6)))

    def idle_threads(self) -> int:
        """Threads without a job sent for them."""
        return max(0, self.threads - self.outstanding[False]) if self.room(is_async=False) > 0 else 0

    def add(self, *runs: HeldRun) -> None:
        """Record runs that were sent."""
        self.runs.update(zip(map(_RUN, runs), runs, strict=True))
        self._count(runs, 1)

    def remove(self, number: int) -> HeldRun | None:
        """Take off a run that ended or came back; None if it is unknown here (any more)."""
        run = self.runs.pop(number, None)
        if self.culprits and self.state != KILLED:
            # If the executor is being killed, the others must still count as killed for this run.
            self.culprits.pop(number, None)
        if run is not None:
            self.outstanding[run.is_async] -= 1
            self.payload_bytes -= run.size
            if not self.runs:
                self.exclusive = False
        return run

    def remove_many(self, numbers: list[int]) -> list[HeldRun | None]:
        """Do the same for several, at less cost for each; in their order."""
        if self.culprits:
            return [self.remove(number) for number in numbers]
        found = list(map(self.runs.pop, numbers, repeat(None)))
        runs = [run for run in found if run is not None]
        self._count(runs, -1)
        if runs and not self.runs:
            self.exclusive = False
        return found

    def _count(self, runs: Sequence[HeldRun], sign: int) -> None:
        on_loop = sum(map(_IS_ASYNC, runs))
        self.outstanding[True] += sign * on_loop
        self.outstanding[False] += sign * (len(runs) - on_loop)
        self.payload_bytes += sign * sum(map(_SIZE, runs))

    def learn(self, seconds: float, count: int) -> None:
        """Learn from ``count`` jobs that have ended in threads and took ``seconds`` in all.

        Jobs on the loop take no thread: their length says nothing about how many jobs to send for threads.
        """
        if not count:
            return
        self.done += count
        weight = min(1.0, 0.1 * count)
        self.mean_seconds += weight * (seconds / count - self.mean_seconds)

    def learn_from_running(self, running: dict[int, int], now: float) -> None:
        """Learn that jobs take at least as long as every thread has been busy: fetch none in advance then."""
        runs = self.runs
        if len(running) >= self.threads:
            busy = [since for number, since in running.items() if number in runs and not runs[number].is_async]
            if len(busy) >= self.threads:
                self.mean_seconds = max(self.mean_seconds, now - max(busy) / 1e9)

    def release_unstarted(self, runs: list[HeldRun]) -> None:
        """Ask it to release those of ``runs`` that it has not started."""
        if runs:
            for run in runs:
                run.state = RELEASING
            self.asked_at = self.asked_at or clock.monotonic()
            self.end.send(ReleaseRuns([run.run for run in runs]))

    def terminate(self) -> None:
        """Send SIGTERM to its whole group, including programs that any of its jobs started.

        So from here on a job may fail because of this signal.
        """
        self.drained = self.state == DRAINING
        self.state = TERMINATING
        for run in self.runs.values():
            run.collateral = True
        self.release_unstarted([run for run in self.runs.values() if run.state == SENT])
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to it and to its whole group."""
        self.state = KILLED
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """Signal its group, and the process itself, which a job may have moved to another group."""
        _signal_group(self.pid, number)
        with suppress(ProcessLookupError, PermissionError):
            if self.pidfd is not None and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(self.pidfd, number)
            else:
                os.kill(self.pid, number)

    def exit_status(self, ended: Callable[[], None] = lambda: None) -> int | None:
        """Return how it ended as ``Popen.returncode`` does, None while it lives; takes its group along, then reaps.

        ``ended`` is called before it is reaped: until then no other process gets its pid. Python has no ``os.waitid``
        on macOS before 3.13; there it is reaped first, and for an instant its pid may be another's already.
        """
        if not hasattr(os, "waitid"):
            status = self.process.poll()
            if status is not None:
                ended()
                _signal_group(self.pid, signal.SIGKILL)
            return status
        try:
            gone = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            ended()  # reaped by other code
            return self.process.poll()
        if gone is None:
            return None
        ended()
        _signal_group(self.pid, signal.SIGKILL)
        return self.process.wait()

    def close(self) -> None:
        """Close its socket, board and descriptor."""
        self.end.close()
        self.board.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def spawn(recipe: Recipe, number: int) -> ExecutorProcess:
    """Start an executor. Call from the main thread only."""
    ours, theirs = socket.socketpair()
    board = Board.create(recipe.threads, recipe.async_slots)
    name = recipe.name.encode("ascii", "replace").decode()
    application_name = f"pgjobs {recipe.worker.hex[:16]}-{number} {name}"[:63]
    arguments = {
        "threads": recipe.threads,
        "async_slots": recipe.async_slots,
        "database": recipe.database,
        "application_name": application_name,
    }
    descriptors = (theirs.fileno(), board.fd)
    try:
        process = _fork(recipe.template, ours, arguments, descriptors) or _start(recipe, arguments, descriptors)
    except OSError:
        ours.close()
        board.close()
        raise
    finally:
        theirs.close()
    return ExecutorProcess(
        number=number,
        process=process,
        end=SupervisorEnd(ours),
        board=board,
        threads=recipe.threads,
        async_slots=recipe.async_slots,
        application_name=application_name,
        started_at=clock.monotonic(),
        pidfd=_pidfd(process.pid),
    )


def _fork(
    template: ExecutorTemplate | None,
    ours: socket.socket,
    arguments: Mapping[str, object],
    descriptors: tuple[int, int],
) -> Forked | None:
    """Have the template fork an executor; None if there is none."""
    if template is None:
        return None
    try:
        forked = template.fork(arguments, descriptors, min(FORK_SECONDS, get_conf().lease_seconds / 4))
    except TemplateLost:
        return None
    with suppress(OSError):  # it has ended already
        ours.send(GO)
    return forked


def _start(recipe: Recipe, arguments: Mapping[str, object], descriptors: tuple[int, int]) -> subprocess.Popen[bytes]:
    """Start an executor as a new program, which imports the project."""
    channel, board = descriptors
    given = {"channel": channel, "board": board, **arguments}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return subprocess.Popen(
        [*recipe.entry, "pgjobs", *recipe.options, "executor", *options],
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        process_group=0,
        env=None if recipe.environment is None else {**os.environ, **recipe.environment},
    )


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable at the end; None if the kernel or its guard does not know the call."""
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
