"""In the executor: the threads beside the event loop in which ``async def`` jobs call what is synchronous, as the ORM.

A job gets a thread at its first such call and keeps it to its end, so all its queries go through one connection. Then
the thread is cleaned up, as one that runs jobs, and serves the next job: the one that was idle for the shortest time
is taken first, and one that stays idle ends, with its connections.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from django_pgjobs.execution.fresh_context import fresh_context
from django_pgjobs.logs import log
from django_pgjobs.worker.executor import cleanup, entering
from django_pgjobs.worker.shared import process

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

Value = TypeVar("Value")
Given = ParamSpec("Given")

SHORTEST_IDLE_SECONDS = 1.0
"""A thread may be idle for so long even where connections are closed after each job."""


class LoopThreads:
    """The threads beside one event loop: never more than jobs have run on it at once. Methods may be called anywhere.

    A thread ends once it has been idle for ``idle_seconds``.
    """

    def __init__(self, idle_seconds: float) -> None:
        self.idle_seconds = min(max(idle_seconds, SHORTEST_IDLE_SECONDS), threading.TIMEOUT_MAX)
        self.idle: list[LoopThread] = []
        self.lock = threading.Lock()

    def take(self) -> LoopThread:
        """Return a thread for one job. Raises ``RuntimeError`` if none can be started."""
        with self.lock:
            if self.idle:
                return self.idle.pop()
        return LoopThread(self)

    def put_back(self, thread: LoopThread) -> None:
        """Keep a thread whose job has ended for another job."""
        with self.lock:
            self.idle.append(thread)

    def retire(self, thread: LoopThread) -> bool:
        """Give an idle thread to no job any more; return False if one has it."""
        with self.lock:
            if thread not in self.idle:
                return False
            self.idle.remove(thread)
            return True


class LoopThread:
    """One thread, started at once, that makes the calls it is given one after another."""

    def __init__(self, threads: LoopThreads) -> None:
        self.threads = threads
        self.forks = process.forks
        self.calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.wake: SimpleQueue[None] = SimpleQueue()
        threading.Thread(target=self._serve, name="pgjobs-loop-calls", daemon=True).start()

    def submit(self, call: Callable[[], Value]) -> Future[Value]:
        """Have the thread call ``call`` when it has made all calls before; return at once."""
        future: Future[Value] = Future()
        self.calls.append((future, call))
        self.wake.put(None)
        return future

    def _serve(self) -> None:
        serving = True
        while serving:
            try:
                serving = self._serve_one()
            except BaseException as error:  # from outside: what a call raises is in its future
                log.exception("thread beside the event loop interrupted, continuing")
                if self.calls and (future := self.calls[0][0]).running():
                    future.set_exception(error)
        cleanup.close_all()

    def _serve_one(self) -> bool:
        """Make the next call, or wait for one; return False if none came for long and none will."""
        if not self.calls:
            try:
                self.wake.get(timeout=self.threads.idle_seconds)
            except Empty:
                return not self.threads.retire(self)
            return True
        future, call = self.calls[0]  # removed only afterwards: an exception from outside may come at any time
        if not future.done() and future.set_running_or_notify_cancel():
            try:
                future.set_result(self._made(call))
            except BaseException as error:
                future.set_exception(error)
                del future  # its exception has this frame, which would keep it
        self.calls.popleft()
        return True

    def _made(self, call: Callable[[], Value]) -> Value:
        try:
            return call()
        finally:
            if process.forks != self.forks:
                os._exit(0)  # forked by the job: it shares the sockets of the connections


class JobCalls(Executor):
    """Makes the synchronous calls of one job, in a thread of ``threads`` that it takes for the first.

    ``wrappers`` is the job's list of database wrappers: those that the thread has kept are added to it.
    ``tenancy``: the schema that they are led to.
    """

    def __init__(
        self, threads: LoopThreads, wrappers: list[BaseDatabaseWrapper], tenancy: entering.Tenancy | None = None
    ) -> None:
        self.threads = threads
        self.wrappers = wrappers
        self.tenancy = tenancy
        self.thread: LoopThread | None = None
        self.has_ended = False
        self.lock = threading.Lock()  # a thread that the job has started may call, too

    def submit(self, fn: Callable[Given, Value], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Value]:
        """Have the job's thread call ``fn``; return at once. Raises ``RuntimeError`` if there can be no thread."""
        with self.lock:
            if self.has_ended:
                raise RuntimeError("The job has ended.")
            if self.thread is None:
                self.thread = self.threads.take()
                self.thread.submit(partial(fresh_context().run, self._begin))
            return self.thread.submit(partial(fn, *args, **kwargs))

    def _begin(self) -> None:
        cleanup.refresh()
        if self.tenancy is not None:
            try:
                entering.lead(self.tenancy)
            except BaseException:
                cleanup.discard_all()  # else the job's calls would find the connection where it was
                raise
        self.wrappers += cleanup.mine()

    def end(self, clean_up: Callable[[], None]) -> Future[None] | None:
        """Accept no more calls; have the thread clean up after those under way, and then serve other jobs.

        Returns None if the job has made no call, and nothing is to be cleaned up.
        """
        with self.lock:
            self.has_ended = True
            if self.thread is None:
                return None
            return self.thread.submit(partial(fresh_context().run, self._end, self.thread, clean_up))

    def _end(self, thread: LoopThread, clean_up: Callable[[], None]) -> None:
        try:
            clean_up()
        finally:
            self.threads.put_back(thread)
