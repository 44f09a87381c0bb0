"""In the executor: the threads that run jobs, one job at a time each."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from functools import partial

from django_pgjobs import attempt, store
from django_pgjobs.attempt import Item, Told
from django_pgjobs.decisions import Decision
from django_pgjobs.exceptions import JobInterrupted
from django_pgjobs.worker import hygiene
from django_pgjobs.worker.buffers import SHORT_SECONDS, Buffers
from django_pgjobs.worker.interrupting import Door
from django_pgjobs.worker.preparing import failed_outside, reporter, with_payload

log = logging.getLogger("django_pgjobs")

THREAD_SECONDS = 0.1
"""After how long a thread that could not be started is tried again."""


class JobThreads:
    """``count`` threads, on the first slots of the board."""

    def __init__(self, buffers: Buffers, count: int, database: str) -> None:
        self.buffers = buffers
        self.count = count
        self.database = database
        self.recall = partial(store.find_result, store.on(database))
        self.pid = os.getpid()
        self.doors: list[Door | None] = [None] * count

    def start(self) -> None:
        """Start them all."""
        for slot in range(self.count):
            self._start_one(slot)

    def _start_one(self, slot: int) -> None:
        """Start a thread for ``slot``, as soon as one can be started: without it the slot would be lost."""
        refused = False
        while True:
            try:
                threading.Thread(target=self.serve, args=(slot,), name=f"pgjobs-job-{slot}", daemon=True).start()
            except RuntimeError as error:
                if not refused:
                    log.error("job thread cannot be started, tried again slot=%d: %s", slot, error)
                refused = True
                time.sleep(THREAD_SECONDS)
            else:
                if refused:
                    log.warning("job thread is started after all slot=%d", slot)
                return

    def serve(self, slot: int) -> None:
        """Run jobs on ``slot``, until one is interrupted: another thread takes the place of this one then."""
        door = self.doors[slot] = Door()
        seconds = SHORT_SECONDS
        while not door.told.struck:
            item, told = self.buffers.next(slot, rouse=seconds >= SHORT_SECONDS)
            door.told = told
            decision = contextvars.Context().run(self.run, item, told, door)
            seconds = self.buffers.finish(slot, item, decision, told.started)
        hygiene.discard_all()
        self._start_one(slot)

    def interrupt(self, told: Told, kind: type[JobInterrupted]) -> None:
        """Stop a job that has started on one of these threads; called in the control thread."""
        door = self.doors[told.slot]
        if door is not None:
            door.interrupt(told, kind)

    def run(self, item: Item, told: Told, door: Door) -> Decision:
        """Run one job that has started and return what it came to. Raises nothing."""
        try:
            if door.connections:
                hygiene.refresh()
            whole = item if item.payload is not None else with_payload(item, self.database)
            if not isinstance(whole, Item):
                return whole
            prepared = attempt.prepare(whole, reporter(self.buffers.end, item.run), told, door, self.recall)
            if not isinstance(prepared, attempt.Prepared):
                return prepared
            return attempt.run_here(prepared)
        except BaseException as error:
            return failed_outside(item, error)
        finally:
            if os.getpid() != self.pid:
                os._exit(0)
            if door.connections or hygiene.closing_caches():
                hygiene.tidy(f"name={item.name} job={item.id}")
