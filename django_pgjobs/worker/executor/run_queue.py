"""In the executor: jobs from the buffer to the board to their outcome. Any thread may call.

Popping from a buffer *is* the start of a job: pop, slot on the board, then ``high``, then user code, all but the
last under the buffer's lock, so a job is either handed back or started, never both. An outcome is queued before the
slot is cleared.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from django_pgjobs import clock
from django_pgjobs.decisions import Decision
from django_pgjobs.execution.attempt import Item, Told
from django_pgjobs.worker.executor.outbox import Outbox
from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.board import Board

SHORT_SECONDS = 0.001

Entry = tuple[float, Item]
"""When it must have started, and what to run."""


class Buffers:
    """What was sent and has not started, first in, first out; ``sync`` for threads, ``async`` for the loop.

    ``leave`` is called by whoever ends the last job of an executor that drains.
    """

    def __init__(self, end: channel.ExecutorEnd, board: Board, outbox: Outbox, leave: Callable[[], None]) -> None:
        self.end = end
        self.board = board
        self.outbox = outbox
        self.leave = leave
        self.lock = threading.Lock()
        self.ready = threading.Condition(self.lock)
        self.idle = 0
        self.active = 0
        self.draining = False
        self.items: dict[str, deque[Entry]] = {"sync": deque(), "async": deque()}
        self.told: dict[int, Told] = {}
        self.trusted_until = float("inf")

    # By the control thread

    def add(self, start_by: float, items: Sequence[Sequence[Any]]) -> bool:
        """Take jobs in and wake a thread for them; return whether some are for the loop."""
        made = list(map(Item._make, items))
        on_loop = [(start_by, item) for item in made if item.is_async]
        with self.lock:
            self.items["async"] += on_loop
            if len(on_loop) < len(made):
                self.items["sync"] += [(start_by, item) for item in made if not item.is_async]
                self.ready.notify()
        return bool(on_loop)

    def take_back(self, runs: set[int]) -> list[int]:
        """Remove and return those of ``runs`` that have not started."""
        given: list[int] = []
        with self.lock:
            for name, items in self.items.items():
                given += [item.run for _, item in items if item.run in runs]
                self.items[name] = deque(entry for entry in items if entry[1].run not in runs)
        return given

    def trust(self, until: float) -> None:
        """The leases of all that runs here are trusted until then."""
        self.trusted_until = until
        for told in list(self.told.values()):
            told.trusted_until = until

    def drain(self) -> tuple[list[int], int]:
        """Start nothing more: return what has not started, and how many are running."""
        given, running = self.empty()
        return [item.run for item in given], running

    def empty(self) -> tuple[list[Item], int]:
        """The same, with all that is known of them."""
        with self.lock:
            self.draining = True
            given = [item for items in self.items.values() for _, item in items]
            for items in self.items.values():
                items.clear()
            return given, self.active

    def rouse(self) -> None:
        """Wake threads for what has waited here for a while: the thread that was woken for it has a long job."""
        with self.lock:
            self.ready.notify(min(len(self.items["sync"]), self.idle))

    # By whoever runs jobs

    def next(self, slot: int, *, rouse: bool) -> tuple[Item, Told]:
        """Wait for the next job and start it. With ``rouse`` wake another thread for the one after it.

        Short jobs are done fastest by one thread; more of them would only wait for each other's interpreter lock.
        """
        late: list[int] = []
        with self.lock:
            while True:
                popped = self._pop("sync", slot, late)
                if popped or late:
                    break
                self.idle += 1
                try:
                    self.ready.wait()
                finally:
                    self.idle -= 1
            if rouse and self.idle and self.items["sync"]:
                self.ready.notify()
        if late:
            self.end.send([channel.BACK, late, "late"])
        return popped or self.next(slot, rouse=rouse)

    def next_async(self, slot: int) -> tuple[Item, Told] | None:
        """Start the next job of the loop, None when there is none."""
        while True:
            late: list[int] = []
            with self.lock:
                popped = self._pop("async", slot, late)
            if not late:
                return popped
            self.end.send([channel.BACK, late, "late"])

    def _pop(self, name: str, slot: int, late: list[int]) -> tuple[Item, Told] | None:
        """Start the next job of a buffer on ``slot``, under the lock; what was sent too long ago goes back.

        It goes back before another starts: behind that one's number on the board it would count as started too.
        """
        items = self.items[name]
        if not items:
            return None
        now_ns = clock.monotonic_ns()
        now = now_ns / 1e9
        while items and now > items[0][0]:
            late.append(items.popleft()[1].run)
        if late:
            return None
        item = items.popleft()[1]
        run = item.run
        told = self.told[run] = Told(slot, self.trusted_until, now)
        if item.cancelled:
            told.requested = True
        self.active += 1
        self.board.start(slot, run, now_ns, name)
        return item, told

    def finish(self, slot: int, item: Item, decision: Decision, started: float) -> float:
        """Queue the outcome of a job, clear its slot, send what is queued when it is time; return how long it took."""
        now = clock.monotonic()
        seconds = now - started
        self.outbox.put(item.run, seconds, decision)
        self.told.pop(item.run, None)
        self.board.clear(slot)
        items = self.items
        with self.lock:
            self.active -= 1
            left = items["sync"] or items["async"]
            leaving = self.draining and not self.active
        if not left or seconds > SHORT_SECONDS or self.outbox.is_due(now):
            self.outbox.flush()
        if leaving:
            self.leave()
        return seconds
