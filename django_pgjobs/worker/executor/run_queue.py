"""In the executor: jobs from the buffer to the board to their outcome. Any thread may call.

Popping from a buffer *is* the start of a job: pop, slot on the board, then ``high``, then user code, all but the last
under the buffer's lock, so a job is either released or started, never both. An outcome is queued before the slot is
cleared.

Some libraries raise exceptions in a job's thread from outside, and may do so while it runs this code. CPython lets one
in after a call, at the start of a function and at the jump back of a loop. State that must change together is therefore
changed in lines without calls, items are removed after they were passed on, and the only locks are those of C, which
``with`` takes and keeps in one. No loop stands within such a ``with``: since Python 3.13 an exception at its jump back
leaves the lock held. A thread that got one here is replaced, and its successor calls ``take_over``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from queue import SimpleQueue

from django_pgjobs import clock
from django_pgjobs.decisions import Decision
from django_pgjobs.worker.executor.line_sender import LineSender
from django_pgjobs.worker.executor.outbox import Outbox
from django_pgjobs.worker.shared.board import Board
from django_pgjobs.worker.shared.channel import ExecutorEnd
from django_pgjobs.worker.shared.channel_messages import RunsReleased
from django_pgjobs.worker.shared.run_groups import SentRun, sent_runs

SHORT_SECONDS = 0.001


class Buffers:
    """Jobs that were sent and have not started, first in, first out; ``sync`` for threads, ``async`` for the loop.

    The thread that ends the last job of a draining executor calls ``leave``.
    """

    def __init__(self, end: ExecutorEnd, board: Board, outbox: Outbox, leave: Callable[[], None]) -> None:
        self.end = end
        self.board = board
        self.outbox = outbox
        self.leave = leave
        self.lock = threading.Lock()
        self.bells: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(board.threads)]
        self.idle: dict[int, None] = {}
        """The slots of threads that wait for their bell, the longest first; a rung one is out."""
        self.late: list[int] = []
        self.draining = False
        self.waiting: dict[str, deque[SentRun]] = {"sync": deque(), "async": deque()}
        self.started: dict[int, SentRun] = {}
        self.lines = LineSender(end, lambda: list(self.started.values()))
        self.trusted_until: dict[str, float] = {}
        """Until when leases are trusted, by the home of the jobs."""

    @property
    def active(self) -> int:
        """Number of jobs that run here."""
        return len(self.started)

    # By the control thread

    def add(self, start_by: float, groups: Sequence[Sequence[object]]) -> bool:
        """Add jobs and wake a thread for them; return whether some are for the loop."""
        in_threads: list[SentRun] = []
        on_loop: list[SentRun] = []
        for group in groups:
            runs, is_async = sent_runs(group, start_by)
            (on_loop if is_async else in_threads).extend(runs)
        with self.lock:
            self.waiting["async"].extend(on_loop)
            if in_threads:
                self.waiting["sync"].extend(in_threads)
                self._ring(1)
        return bool(on_loop)

    def release(self, runs: set[int]) -> list[int]:
        """Remove and return those of ``runs`` that have not started."""
        with self.lock:
            return self._remove(runs)

    def _remove(self, runs: set[int]) -> list[int]:
        released: list[int] = []
        for name, waiting in self.waiting.items():
            released += [run.run for run in waiting if run.run in runs]
            self.waiting[name] = deque(run for run in waiting if run.run not in runs)
        return released

    def trust(self, until: float, database: str = "") -> None:
        """Trust the leases of all running jobs of this home until then."""
        self.trusted_until[database] = until
        for run in list(self.started.values()):
            if run.job.database == database:
                run.trusted_until = until

    def drain(self) -> tuple[list[int], int]:
        """Start nothing more; return the runs that have not started, and how many are running."""
        released, running = self.empty()
        return [run.run for run in released], running

    def empty(self) -> tuple[list[SentRun], int]:
        """Do the same, but return the runs themselves, not their numbers."""
        with self.lock:
            self.draining = True
            return self._clear(), self.active

    def _clear(self) -> list[SentRun]:
        removed = [run for waiting in self.waiting.values() for run in waiting]
        for waiting in self.waiting.values():
            waiting.clear()
        return removed

    def rouse(self) -> None:
        """Wake threads for jobs that have waited for a while: the thread that was woken first has a long job."""
        with self.lock:
            self._ring(len(self.waiting["sync"]))

    def _ring(self, count: int) -> None:
        for slot in list(self.idle)[:count]:
            self.bells[slot].put(None)  # first: rung once too often, a thread just checks once more
            self.idle.pop(slot, None)

    # Called by the threads that run jobs

    def next(self, slot: int, *, rouse: bool) -> SentRun:
        """Wait for the next job and start it. With ``rouse`` wake another thread for the one after it.

        Short jobs are done fastest by one thread; more of them would only wait for each other's interpreter lock.
        """
        while True:
            with self.lock:
                popped = self._pop("sync", slot)
                if popped:
                    if rouse and self.idle and self.waiting["sync"]:
                        self._ring(1)
                elif not self.late:
                    self.idle[slot] = None
            if popped:
                return popped
            if self.late:
                self.release_late()
            else:
                self.bells[slot].get()

    def take_over(self, slot: int) -> list[SentRun]:
        """Return the runs that the previous thread of ``slot`` left unfinished, and send what it left unsent."""
        self.idle.pop(slot, None)
        left = [run for run in list(self.started.values()) if run.slot == slot]
        if not left:
            self.board.clear(slot)
        self.outbox.flush()
        self._leave_if_done()
        return left

    def next_async(self, slot: int) -> SentRun | None:
        """Start the next job of the loop, None when there is none."""
        while True:
            with self.lock:
                popped = self._pop("async", slot)
            if popped or not self.late:
                return popped
            self.release_late()

    def _pop(self, name: str, slot: int) -> SentRun | None:
        """Start the next job of a buffer on ``slot``, under the lock; jobs sent too long ago are released instead.

        Release them before another job starts: its higher number on the board would make them count as started.
        """
        waiting = self.waiting[name]
        if not waiting:
            return None
        now_ns = clock.monotonic_ns()
        now = now_ns / 1e9
        while waiting and now > waiting[0].start_by:
            self.late.append(waiting[0].run)
            del waiting[0]
        if self.late:
            return None
        run = waiting[0]
        run.slot, run.started = slot, now
        run.trusted_until = self.trusted_until.get(run.job.database, inf)
        self.started[run.run] = run  # no call from here ...
        del waiting[0]  # ... to here
        self.board.start(slot, run.run, now_ns, name)
        return run

    def release_late(self) -> None:
        """Release jobs that came too late; perhaps twice, which does no harm."""
        late = list(self.late)
        self.end.send(RunsReleased(late, "late"))
        with self.lock:
            self._remove_late(late)

    def _remove_late(self, late: list[int]) -> None:
        for run in late:
            if run in self.late:
                self.late.remove(run)

    def finish(self, run: SentRun, decision: Decision) -> float:
        """Queue the outcome of a job, clear its slot, send the queue if due; return how many seconds the job took."""
        now = clock.monotonic()
        seconds = now - run.started
        if run.lines is not None:
            self.lines.close(run)
        self.outbox.put(run.run, seconds, decision, run.job.name)
        self.started.pop(run.run, None)
        self.board.clear(run.slot)
        waiting = self.waiting
        if seconds > SHORT_SECONDS or not (waiting["sync"] or waiting["async"]) or self.outbox.is_due(now):
            self.outbox.flush()
        if self.draining:
            self._leave_if_done()
        return seconds

    def _leave_if_done(self) -> None:
        with self.lock:
            leaving = self.draining and not self.started
        if leaving:
            self.leave()
