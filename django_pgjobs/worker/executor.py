"""The executor: a child process that runs jobs in threads, and ``async def`` jobs on an event loop.

Its main thread is the control thread: it reads frames and never runs a job or a query. Popping from a buffer *is*
the start of a job: pop, slot on the board, then ``high``, then user code, all but the last under the buffer's lock,
so a job is either handed back or started, never both. An outcome is queued before the slot is cleared. The executor
grants no right and writes no end; when the supervisor is gone, so is it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import InterfaceError, OperationalError

from django_pgjobs import attempt, clock, events, store
from django_pgjobs import decisions as decide
from django_pgjobs.attempt import BODY, Item, Told
from django_pgjobs.conf import get_conf
from django_pgjobs.decisions import Decision
from django_pgjobs.exceptions import UnstorableResult
from django_pgjobs.registry import registry
from django_pgjobs.worker import channel, hygiene
from django_pgjobs.worker.board import Board
from django_pgjobs.worker.decided import pack_decision, unpack_decision
from django_pgjobs.worker.telling import Teller

log = logging.getLogger("django_pgjobs")

FLUSH_SECONDS = 0.003
SHORT_SECONDS = 0.001
PROGRESS_SECONDS = 1.0
TELL_SECONDS = 5.0
PAYLOAD_SECONDS = 5.0
FRAME_CHARS = 2 * 1024 * 1024


class Buffer:
    """Jobs that were sent and have not started, first in, first out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: deque[tuple[float, Item, bool]] = deque()


class Executor:
    """One executor process; ``run()`` is its life."""

    def __init__(self, end: channel.ExecutorEnd, board: Board, threads: int, async_slots: int, database: str) -> None:
        self.end = end
        self.board = board
        self.threads = threads
        self.async_slots = async_slots
        self.database = database
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.ready = threading.Condition(self.lock)
        self.idle = 0
        self.buffers = {"sync": Buffer("sync"), "async": Buffer("async")}
        self.told: dict[int, Told] = {}
        self.outbox: deque[list[Any]] = deque()
        self.outbox_since = 0.0
        self.timer_armed = False
        self.draining = False
        self.active = 0
        self.free_slots = list(range(threads, threads + async_slots))
        self.loop: asyncio.AbstractEventLoop | None = None
        self.teller = Teller()

    # The control thread

    def run(self, hello: dict[str, Any]) -> None:
        """Say READY, then serve until drained or orphaned."""
        os.register_at_fork(after_in_child=self.end.sock.close)
        # Handlers, not SIG_IGN: that would be inherited by the programs that jobs start.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for slot in range(self.threads):
            threading.Thread(target=self._serve, args=(slot,), name=f"pgjobs-job-{slot}", daemon=True).start()
        self.end.send([channel.READY, {**hello, "rss": rss_bytes(), "listens": events.anybody_listens()}])
        self._control()

    def _control(self) -> None:
        poll = select.poll()
        poll.register(self.end.sock, select.POLLIN)
        while True:
            self.timer_armed = bool(self.outbox) or self.timer_armed
            if not poll.poll(FLUSH_SECONDS * 1000 if self.timer_armed else None):
                self.timer_armed = bool(self.outbox or self.buffers["sync"].items)
                self._flush()
                self._rouse()
                continue
            messages = self.end.receive()
            if messages is None:
                self._orphaned()
            for message in messages:
                self._obey(message)

    def _obey(self, message: channel.Message) -> None:
        match message:
            case [channel.RUN, start_by, items]:
                self._buffer(start_by, items)
            case [channel.TAKE_BACK, runs]:
                self._take_back(set(runs))
            case [channel.STOP, run, by, reason]:
                told = self.told.get(run)
                if told is not None:
                    told.by, told.reason, told.requested = by, reason, True
            case [channel.STORED, items]:
                self.teller.tell(items)
            case [channel.DRAIN]:
                self._drain()

    def _rouse(self) -> None:
        """Wake threads for what has waited here for a while: the thread that was woken for it has a long job."""
        with self.lock:
            self.ready.notify(min(len(self.buffers["sync"].items), self.idle))

    def _buffer(self, start_by: float, items: list[list[Any]]) -> None:
        added = {"sync": 0, "async": 0}
        with self.lock:
            for values in items:
                is_async, cancelled, *fields = values
                name = "async" if is_async else "sync"
                self.buffers[name].items.append((start_by, Item(*fields), cancelled))
                added[name] += 1
            if added["sync"]:
                self.ready.notify()
        self.timer_armed = True
        if added["async"]:
            self._event_loop().call_soon_threadsafe(self._pump)

    def _take_back(self, runs: set[int]) -> None:
        given: list[int] = []
        with self.lock:
            for buffer in self.buffers.values():
                given += [item.run for _, item, _ in buffer.items if item.run in runs]
                buffer.items = deque(entry for entry in buffer.items if entry[1].run not in runs)
        # Answered even with nothing: else it is not to be told whether a job holds the interpreter.
        self.end.send([channel.BACK, given, "asked"])

    def _drain(self) -> None:
        with self.lock:
            self.draining = True
            given = [item.run for buffer in self.buffers.values() for _, item, _ in buffer.items]
            for buffer in self.buffers.values():
                buffer.items.clear()
            left = self.active
        if given:
            self.end.send([channel.BACK, given, "drain"])
        if not left:
            self._bye()

    def _bye(self) -> NoReturn:
        self._flush()
        self.teller.close(TELL_SECONDS)
        self.end.send([channel.BYE, rss_bytes()])
        logging.shutdown()
        os._exit(0)

    def _orphaned(self) -> NoReturn:
        # Nobody can record what is still running here; its lease runs out and the job is rescued.
        log.warning("supervisor is gone, executor stops pid=%d", self.pid)
        logging.shutdown()
        if os.getpgrp() == self.pid:
            os.killpg(self.pid, signal.SIGKILL)  # the programs that its jobs have started too
        os._exit(1)

    # Job threads

    def _serve(self, slot: int) -> None:
        seconds = SHORT_SECONDS
        while True:
            item, cancelled = self._next(slot, rouse=seconds >= SHORT_SECONDS)
            began = clock.monotonic()
            decision = contextvars.Context().run(self._run, item, cancelled)
            seconds = clock.monotonic() - began
            self._end(slot, item, decision, seconds)

    def _next(self, slot: int, *, rouse: bool) -> tuple[Item, bool]:
        """Start the next job. With ``rouse`` wake another thread for the one after it.

        Short jobs are done fastest by one thread; more of them would only wait for each other's interpreter lock.
        """
        late: list[int] = []
        with self.lock:
            while True:
                popped = self._pop("sync", slot, late)
                if popped or late:
                    break
                self.idle += 1
                self.ready.wait()
                self.idle -= 1
            if rouse and self.idle and self.buffers["sync"].items:
                self.ready.notify()
        if late:
            self.end.send([channel.BACK, late, "late"])
        return popped or self._next(slot, rouse=rouse)

    def _pop(self, name: str, slot: int, late: list[int]) -> tuple[Item, bool] | None:
        """Start the next job of a buffer on ``slot``, under the lock; what was sent too long ago goes back.

        It goes back before another starts: behind that one's number on the board it would count as started too.
        """
        items = self.buffers[name].items
        while items and clock.monotonic() > items[0][0]:
            late.append(items.popleft()[1].run)
        if late or not items:
            return None
        _, item, cancelled = items.popleft()
        self.told[item.run] = Told(cancelled)
        self.active += 1
        self.board.start(slot, item.run, clock.monotonic_ns(), name)
        return item, cancelled

    def _run(self, item: Item, cancelled: bool) -> Decision:
        try:
            hygiene.refresh()
            without = self._read_payload(item) if item.payload is None else None
            if without is not None:
                return without
            prepared = attempt.prepare(item, self._reporter(item.run), self.told[item.run])
            if not isinstance(prepared, attempt.Prepared):
                return prepared
            return attempt.run_here(prepared)
        except BaseException as error:
            log.exception("executor failed around job=%d", item.id)
            return decide.Retry(attempt_delay(item), attempt.failure_of(error))
        finally:
            if os.getpid() != self.pid:
                os._exit(0)
            hygiene.tidy(f"name={item.name} job={item.id}")

    def _read_payload(self, item: Item) -> Decision | None:
        """Read what is too big for the channel; return what the attempt comes to where it cannot be had."""
        try:
            item.payload = store.read_payload(store.on(self.database), item.id, item.claim_id)
        except (OperationalError, InterfaceError) as error:
            if item.kind != BODY:
                raise
            # Nothing of the job has run, so its attempt is not charged.
            log.warning(
                "payload cannot be read, again in %g s name=%s job=%d: %s",
                PAYLOAD_SECONDS, item.name, item.id, " ".join(str(error).split()),
            )  # fmt: skip
            return decide.Snooze(PAYLOAD_SECONDS)
        return decide.Release("the claim was lost before the payload was read") if item.payload is None else None

    def _end(self, slot: int, item: Item, decision: Decision, seconds: float) -> None:
        self.told.pop(item.run, None)
        if not self.outbox:
            self.outbox_since = clock.monotonic()
        self.outbox.append([item.run, round(seconds, 6), *pack_decision(decision)])
        self.board.clear(slot)
        with self.lock:
            self.active -= 1
            left = bool(self.buffers["sync"].items or self.buffers["async"].items)
            leaving = self.draining and not self.active
        overdue = clock.monotonic() - self.outbox_since > FLUSH_SECONDS
        if not left or seconds > SHORT_SECONDS or overdue or not self.timer_armed:
            self._flush()
        if leaving:
            self._bye()

    def _flush(self) -> None:
        if os.getpid() != self.pid:
            return
        while items := self._some_outcomes():
            self._send_done(items)

    def _send_done(self, items: list[list[Any]]) -> None:
        try:
            self.end.send([channel.DONE, items])
        except OSError:
            self._orphaned()
        except ValueError as error:
            # Longer than a frame. An outcome that is not told would hold its job, and its place here, for ever.
            if len(items) == 1:
                log.error("outcome of a job does not reach the worker as it is: %s", error)
            for item in items:
                self._send_done([item] if len(items) > 1 else [[*item[:2], *pack_decision(_shorter(item[2:], error))]])

    def _some_outcomes(self) -> list[list[Any]]:
        """Take what has been queued, as much as a frame shall hold. Several threads may take at once."""
        items: list[list[Any]] = []
        size = 0
        with suppress(IndexError):
            while size < FRAME_CHARS:
                items.append(self.outbox.popleft())
                size += _chars(items[-1])
        return items

    def _reporter(self, run: int) -> Callable[[float, float | None, str], None]:
        last = 0.0

        def report(n: float, total: float | None, message: str) -> None:
            nonlocal last
            now = clock.monotonic()
            if now - last >= PROGRESS_SECONDS or (total is not None and n >= total):
                last = now
                # A supervisor that is gone is the control thread's business, not the job's.
                with suppress(OSError):
                    self.end.send([channel.PROGRESS, run, {"n": n, "total": total, "message": message}])

        return report

    # The event loop

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            threading.Thread(target=self._serve_async, args=(self.loop,), name="pgjobs-loop", daemon=True).start()
        return self.loop

    def _serve_async(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
            except BaseException:
                log.exception("event loop interrupted, going on")

    def _pump(self) -> None:
        """Start as many asynchronous jobs as there are free slots; runs in the loop."""
        while self.free_slots:
            slot = self.free_slots[-1]
            late: list[int] = []
            with self.lock:
                popped = self._pop("async", slot, late)
            if late:
                self.end.send([channel.BACK, late, "late"])
                continue
            if popped is None:
                break
            self.free_slots.pop()
            loop = self._event_loop()
            task = loop.create_task(self._arun(slot, *popped), context=contextvars.Context())
            _tasks.add(task)
            task.add_done_callback(partial(self._left, slot, popped[0]))

    def _left(self, slot: int, item: Item, task: asyncio.Task[None]) -> None:
        """A task is done. Some other job may have cancelled it before its first step: then nothing of it has run."""
        _tasks.discard(task)
        if item.run in self.told:
            self.free_slots.append(slot)
            self._end(slot, item, decide.Release("its task was cancelled before it started"), 0.0)
            self._pump()

    async def _arun(self, slot: int, item: Item, cancelled: bool) -> None:
        began = clock.monotonic()
        decision = await self._adecide(item, cancelled)
        self.free_slots.append(slot)
        self._end(slot, item, decision, clock.monotonic() - began)
        self._pump()

    async def _adecide(self, item: Item, cancelled: bool) -> Decision:
        # One context per job: else all jobs of this process would share one thread for their queries.
        try:
            async with ThreadSensitiveContext() as own:
                try:
                    return await self._aattempt(item)
                finally:
                    if own in SyncToAsync.context_to_thread_executor:
                        await sync_to_async(hygiene.close_all)()
        except BaseException as error:
            log.exception("executor failed around job=%d", item.id)
            return decide.Retry(attempt_delay(item), attempt.failure_of(error))

    async def _aattempt(self, item: Item) -> Decision:
        without = await sync_to_async(self._read_payload)(item) if item.payload is None else None
        if without is not None:
            return without
        prepared = attempt.prepare(item, self._reporter(item.run), self.told[item.run])
        if not isinstance(prepared, attempt.Prepared):
            return prepared
        try:
            return await attempt.arun(prepared)
        finally:
            if os.getpid() != self.pid:
                os._exit(0)  # forked by the job: it shares the board and the loop's descriptors


_tasks: set[asyncio.Task[None]] = set()


def _chars(values: list[Any] | tuple[Any, ...]) -> int:
    total = 0
    for value in values:
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, list | tuple):
            total += _chars(value)
    return total


def _shorter(packed: list[Any], error: ValueError) -> Decision:
    """Return an outcome that is too long for a frame without what makes it so long."""
    decision = unpack_decision(packed)
    failure: decide.Failure | None = getattr(decision, "failure", None)
    if failure is not None and failure.traceback:
        return replace(decision, failure=replace(failure, traceback=""))  # type: ignore[arg-type]
    unstorable = UnstorableResult(f"What the job came to does not reach the worker: {error}")
    return decide.Abandon("unstorable", attempt.failure_of(unstorable))


def attempt_delay(item: Item) -> float:
    """Return the numeric backoff of a job whose attempt failed outside of its own code."""
    definition = registry.find(item.name)
    return definition.numeric_delay(item.attempt) if definition else get_conf().default_backoff.jittered(item.attempt)


def rss_bytes() -> int:
    """Return the most memory this process has used."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main(
    *, channel_fd: int, board_fd: int, threads: int, async_slots: int, database: str, application_name: str
) -> None:
    """Run an executor on inherited file descriptors: the hidden subcommand ``pgjobs executor``."""
    from django_pgjobs import __version__
    from django_pgjobs.worker.identity import identity_of

    for descriptor in (channel_fd, board_fd):
        os.set_inheritable(descriptor, False)
    end = channel.ExecutorEnd(socket.socket(fileno=channel_fd))
    hygiene.prepare_connections(application_name, get_conf().executor_conn_max_age_seconds)
    board = Board(board_fd, threads, async_slots)
    try:
        identity = identity_of(database)
    except Exception as error:
        away = isinstance(error, OperationalError)
        log.error("executor cannot reach its database alias=%s", database, exc_info=not away)
        words = " ".join(str(error).split())
        end.send([channel.BOOT_FAILED, f"it cannot reach database {database!r}: {words}", away])
        sys.exit(3)
    hello = {
        "protocol": channel.PROTOCOL,
        "version": __version__,
        "pid": os.getpid(),
        "identity": list(identity),
        "jobs": len(registry.definitions()),
    }
    Executor(end, board, threads, async_slots, database).run(hello)
