"""In the executor: the threads that run jobs, one job at a time each."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from importlib import import_module

from django.db import Error

from django_pgjobs.decisions import Decision
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import Interrupt
from django_pgjobs.execution import attempt
from django_pgjobs.execution.fresh_context import fresh_context
from django_pgjobs.execution.prepared import Guard, Prepared, RunControl
from django_pgjobs.logs import log, release_logging, speaks_of
from django_pgjobs.serialization.failures import kind_of
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.worker.executor import cleanup, entering
from django_pgjobs.worker.executor.interrupts import Door
from django_pgjobs.worker.executor.prepare import ShownGuard, failed_outside, homes_of, reporter, with_payload
from django_pgjobs.worker.executor.run_queue import SHORT_SECONDS, Buffers
from django_pgjobs.worker.shared import process
from django_pgjobs.worker.shared.channel_messages import Interrupted, Learned
from django_pgjobs.worker.shared.run_groups import SentRun

THREAD_SECONDS = 0.1
"""The pause before another try to start a thread."""


class JobThreads:
    """``count`` threads, on the first slots of the board. ``databases``: see ``homes_of``."""

    def __init__(self, buffers: Buffers, count: int, databases: str) -> None:
        self.buffers = buffers
        self.count = count
        self.homes = homes_of(databases)
        self.reporter_of = partial(reporter, buffers.end)
        self.reported = set(registry.fingerprints())
        self.forks = process.forks
        self.doors: list[Door | None] = [None] * count
        self.owners: list[threading.Thread | None] = [None] * count
        self.errors: list[BaseException | None] = [None] * count
        self.taking = threading.Lock()
        self.started = False

    def start(self) -> None:
        """Start them all."""
        self.started = True
        for slot in range(self.count):
            self._start_one(slot)

    def revive(self) -> None:
        """Start threads for slots whose thread has ended without a successor. Called periodically."""
        for slot, owner in enumerate(self.owners if self.started else ()):
            if owner is None or not owner.is_alive():
                self._start_one(slot)

    def _start_one(self, slot: int) -> None:
        """Start a thread for ``slot``, retrying until it starts: without a thread the slot would be lost."""
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
        """Run jobs on ``slot`` until one is interrupted; then another thread replaces this one.

        The same happens after an exception from outside, which may arrive in our own lines: some time-limit libraries
        raise one in a thread without knowing what it does by now. The exception may leave a shared lock held, so the
        executor is recycled too.
        """
        me = threading.current_thread()
        try:
            if self._take(slot, me):
                self._end_left(slot)
                self._serve(slot)
        except BaseException as error:
            self.errors[slot] = error
            log.error("job thread ended, replaced slot=%d: %s", slot, kind_of(error))
            self._report_interrupt(0.0, kind_of(error))
        finally:
            if self.owners[slot] is me:
                try:
                    _leave_nothing_behind()
                finally:
                    self.owners[slot] = None
                    self._start_one(slot)

    def _take(self, slot: int, me: threading.Thread) -> bool:
        """Make this thread the owner of ``slot``; False if another is, since two may have been started for it."""
        with self.taking:
            owner = self.owners[slot]
            if owner is not None and owner.is_alive():
                return False
            self.owners[slot] = me
            return True

    def _end_left(self, slot: int) -> None:
        """Report an outcome for the previous thread's job if that thread ended without one."""
        for run in self.buffers.take_over(slot):
            error = self.errors[slot] or RuntimeError("Its thread ended without an outcome.")
            decision = run.decision = run.decision or failed_outside(run.job, error)
            self.buffers.finish(run, decision)
        self.errors[slot] = None

    def _serve(self, slot: int) -> None:
        door = self.doors[slot] = Door(self._report_interrupt)
        seconds = SHORT_SECONDS
        while not door.control.interrupted:
            run = door.control = self.buffers.next(slot, rouse=seconds >= SHORT_SECONDS)
            seconds = self.buffers.finish(run, fresh_context().run(self.run, run, door))

    def _report_found(self, name: str) -> None:
        """Say what job was found, before its end is sent. A thread that comes in the meantime says it again: no
        harm."""
        if (definition := registry.find(name)) is None:
            return
        # Another thread may be in the middle of the module, with the job declared and its callbacks not: wait for it.
        if (module := definition.func.__module__) in sys.modules:
            with suppress(Exception):
                import_module(module)
        with suppress(OSError):
            self.buffers.end.send(Learned(name, sorted(definition._traits())))
        self.reported.add(name)

    def _report_interrupt(self, held_seconds: float, kind: str = "") -> None:
        # A supervisor that is gone is the control thread's business.
        with suppress(OSError):
            self.buffers.end.send(Interrupted(round(held_seconds, 6), kind))

    def interrupt(self, control: RunControl, kind: type[Interrupt]) -> None:
        """Stop a job that has started on one of these threads; called in the control thread."""
        door = self.doors[control.slot]
        if door is not None:
            door.interrupt(control, kind)

    def run(self, run: SentRun, door: Door) -> Decision:
        """Run one job that has started; record and return the decision. Raises nothing of its own."""
        job, home = run.job, self.homes[run.job.database]
        prepared: Prepared | Decision | None = None
        if job.database:
            speaks_of.set(job.database)
        try:
            if door.connections:
                cleanup.refresh()
            if home.tenancy is not None:
                entering.lead(home.tenancy)
            if job.payload is None:
                whole = with_payload(job, home.database)
                if not isinstance(whole, ClaimedJob):
                    run.decision = whole
                    return whole
                job = whole
            guard: Guard = door
            if job.extras is not None and job.soft_limit is not None:
                guard = ShownGuard(door, self.buffers.board, run.slot)
                door.limit_softly()
            prepared = attempt.prepare(
                job,
                self.reporter_of,
                run,
                guard,
                home.recall,
                home.history,
                home.transaction,
                home.memories,
            )
            if job.name not in self.reported:
                self._report_found(job.name)
            if isinstance(prepared, Prepared):
                if prepared.definition._log_level or self.buffers.lines.default:
                    self.buffers.lines.begin(prepared)
                decision = attempt.run_here(prepared)
            else:
                decision = prepared
        except BaseException as error:
            known = prepared.decision if isinstance(prepared, Prepared) else None
            decision = known or failed_outside(job, error)
            if not isinstance(error, Error):  # of a query of ours
                run.interrupted = True
                self._report_interrupt(0.0, kind_of(error))
        finally:
            if process.forks != self.forks:  # ``getpid`` would be a system call for each job
                os._exit(0)
            if door.soft is not None:
                door.end_soft_limit()
            cleanup.tidy(job)
        run.decision = decision
        return decision


def _leave_nothing_behind() -> None:
    for _ in range(3):  # another exception may come here, too
        try:
            release_logging()
            cleanup.discard_all()
        except BaseException as error:
            log.warning("job thread got another exception as it ended: %s", kind_of(error))
        else:
            return
