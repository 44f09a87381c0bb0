"""In the executor: the loop that runs ``async def`` jobs, one task each, in one thread."""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.decisions import Decision
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import Interrupt
from django_pgjobs.execution import attempt
from django_pgjobs.execution.fresh_context import fresh_context
from django_pgjobs.execution.prepared import Guard, Prepared
from django_pgjobs.logs import log, speaks_of
from django_pgjobs.serialization.failures import kind_of
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.worker.executor import cleanup, entering, stacks
from django_pgjobs.worker.executor.loop_threads import JobCalls, LoopThreads
from django_pgjobs.worker.executor.prepare import (
    PAYLOAD_SECONDS,
    ShownGuard,
    failed_outside,
    homes_of,
    reporter,
    with_payload,
)
from django_pgjobs.worker.executor.run_queue import Buffers
from django_pgjobs.worker.executor.task_door import TaskDoor
from django_pgjobs.worker.shared import process
from django_pgjobs.worker.shared.run_groups import SentRun

MEND_SECONDS = 0.1


class EventLoop:
    """One loop with ``slots``, the last ones of the board; the first job starts its thread.

    ``databases``: see ``homes_of``.
    """

    def __init__(self, buffers: Buffers, slots: range, databases: str) -> None:
        self.buffers = buffers
        self.free_slots = list(slots)
        self.homes = homes_of(databases)
        self.reporter_of = partial(reporter, buffers.end)
        self.forks = process.forks
        self.threads = LoopThreads(get_conf().executor_conn_max_age_seconds)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.doors: dict[int, TaskDoor] = {}
        self.broken_selectors: list[object] = []

    def pump_soon(self) -> None:
        """Have the loop check its buffer; called in the control thread.

        If no thread can be started for it, its jobs are released after a while, uncharged, and sent again.
        """
        try:
            self.running().call_soon_threadsafe(self.pump)
        except RuntimeError as error:
            log.error("event loop cannot be started, its jobs are released later: %s", error)

    def running(self) -> asyncio.AbstractEventLoop:
        """Return the loop, started."""
        if self.loop is None:
            loop = asyncio.new_event_loop()
            try:
                self.thread = threading.Thread(target=self._serve, args=(loop,), name="pgjobs-loop", daemon=True)
                self.thread.start()
            except RuntimeError:
                loop.close()
                raise
            self.loop = loop
        return self.loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
            except OSError as error:  # of its selector: errors of callbacks go to the loop's exception handler
                log.error("event loop cannot wait, its selector is replaced: %s", error)
                time.sleep(MEND_SECONDS)
                self._mend(loop)
            except BaseException:
                log.exception("event loop interrupted, continuing")

    def _mend(self, loop: Any) -> None:
        """Have the loop wait on a new selector with the same files: a job has closed the old one's descriptor."""
        old = getattr(loop, "_selector", None)
        if old is None:
            return  # no loop of asyncio's own
        # Keep it: deleted, it would close its descriptor's number, which may belong to another file by now.
        self.broken_selectors.append(old)
        new = selectors.DefaultSelector()
        for key in list((old.get_map() or {}).values()):
            with suppress(OSError, ValueError):  # closed as well
                new.register(key.fileobj, key.events, key.data)
        loop._selector = new

    def pump(self) -> None:
        """Start as many jobs as there are free slots; runs in the loop."""
        while self.free_slots:
            slot = self.free_slots[-1]
            run = self.buffers.next_async(slot)
            if run is None:
                break
            self.free_slots.pop()
            # Not by loop.create_task(), which calls any task factory that a job has set.
            task = asyncio.Task(self.serve_one(run), loop=self.running(), context=fresh_context())
            self.tasks.add(task)
            task.add_done_callback(partial(self._left, run))

    def _left(self, run: SentRun, task: asyncio.Task[None]) -> None:
        """End a task's job if that has no outcome. If another job cancelled the task before its start, nothing ran."""
        self.tasks.discard(task)
        if run.run not in self.buffers.started:
            return
        if self.doors.pop(run.run, None) is None:
            self._finish(run, decide.Released("its task was cancelled before it started"))
        else:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            log.error("task ended without an outcome slot=%d job=%d", run.slot, run.job.id)
            self._finish(run, failed_outside(run.job, error or RuntimeError("its task ended without an outcome")))

    async def serve_one(self, run: SentRun) -> None:
        """Run one job that has started, to its queued outcome."""
        self.doors[run.run] = TaskDoor(run, softly=run.job.extras is not None and run.job.soft_limit is not None)
        decision = await self._decide(run)
        del self.doors[run.run]
        self._finish(run, decision)

    def _finish(self, run: SentRun, decision: Decision) -> None:
        loop = self.running()
        if loop.get_task_factory() is not None or loop.get_exception_handler() is not None:
            # For the next job: a factory that raises would keep middleware of the other colour from ever starting it.
            log.warning("job left a task factory or an exception handler on the event loop job=%d", run.job.id)
            loop.set_task_factory(None)
            loop.set_exception_handler(None)
        self.free_slots.append(run.slot)
        self.buffers.finish(run, decision)
        self.pump()

    def stack_of(self, run: int, limit: int) -> str:
        """Return the stack of a job that has started here; called in the control thread."""
        door = self.doors.get(run)
        if door is None or door.task is None or self.loop is None or self.thread is None:
            return ""
        return stacks.of_task(door.task, self.loop, self.thread, limit)

    def interrupt(self, run: int, kind: type[Interrupt]) -> None:
        """Stop a job that has started here; called in the control thread."""
        self.running().call_soon_threadsafe(self._interrupt, run, kind)

    def _interrupt(self, run: int, kind: type[Interrupt]) -> None:
        door, control = self.doors.get(run), self.buffers.started.get(run)
        if door is not None:
            door.interrupt(kind)
        elif control is not None:
            control.interrupt = kind  # its task has not run yet

    async def _decide(self, run: SentRun) -> Decision:
        decision: Decision | None = None
        # One context per job: otherwise all jobs of this process would share one thread for their queries.
        own = ThreadSensitiveContext()
        SyncToAsync.thread_sensitive_context.set(own)
        tenancy = self.homes[run.job.database].tenancy
        if tenancy is not None:
            entering.enter(tenancy)
        calls = JobCalls(self.threads, self.doors[run.run].connections, tenancy)
        SyncToAsync.context_to_thread_executor[own] = calls
        try:
            try:
                decision = await self._attempt(run)
            finally:
                # A task that the job leaves running gets its own thread.
                del SyncToAsync.context_to_thread_executor[own]
                await _clean_up(calls, cleanup.discard_all if run.interrupted else partial(cleanup.tidy, run.job))
        except BaseException as error:
            if decision is None:
                return failed_outside(run.job, error)
            log.warning("clean-up after a job failed, its outcome is kept job=%d: %s", run.job.id, kind_of(error))
        return decision

    async def _attempt(self, run: SentRun) -> Decision:
        job, home = run.job, self.homes[run.job.database]
        if job.database:
            speaks_of.set(job.database)
        if job.payload is None:
            whole = await self._with_payload(job)
            if not isinstance(whole, ClaimedJob):
                return whole
            job = whole
        if registry.find(job.name) is None:  # only this process lacks it: an import would stop the loop
            await sync_to_async(registry.resolved)(job.name)
        guard: Guard = self.doors[run.run]
        if job.extras is not None and job.soft_limit is not None:
            guard = ShownGuard(guard, self.buffers.board, run.slot)
        prepared = attempt.prepare(job, self.reporter_of, run, guard, home.recall, memories=home.memories)
        if not isinstance(prepared, Prepared):
            return prepared
        if prepared.definition._log_level or self.buffers.lines.default:
            self.buffers.lines.begin(prepared)
        try:
            return await attempt.arun(prepared)
        finally:
            if process.forks != self.forks:
                os._exit(0)  # forked by the job: it shares the board and the loop's descriptors

    async def _with_payload(self, job: ClaimedJob) -> ClaimedJob | Decision:
        try:
            return await sync_to_async(with_payload)(job, self.homes[job.database].database)
        except RuntimeError as error:
            # No thread can be started for the query. Nothing of the job has run, so its attempt is not charged.
            log.error("no thread to read a payload in, again in %g s job=%d: %s", PAYLOAD_SECONDS, job.id, error)
            return decide.Snoozed(PAYLOAD_SECONDS)


async def _clean_up(calls: JobCalls, clean_up: Callable[[], None]) -> None:
    """Call ``clean_up`` in the thread of the job's calls, however often the job has had its task cancelled."""
    if (ending := calls.end(clean_up)) is None:
        return
    cleaned = asyncio.wrap_future(ending)
    while not cleaned.done():
        try:
            await asyncio.shield(cleaned)  # cancelled itself, it would never put the thread back
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
    cleaned.result()
