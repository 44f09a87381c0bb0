"""The local workers of this process: threads for calls that bypass the queue, up to a limit.

Layer 0: knows no job. Each call gets a thread of its own, which ends with the call. This way forks inherit nothing: a
forked process begins with all its slots free. Nothing waits for a slot. The threads are daemons: the interpreter's exit
waits a limited time for running calls, and loses those that take longer.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

from django_pgjobs.logs import log


class LocalPool:
    """Runs at most ``limit`` calls at once; each call passes the limit, since settings may change."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every call; for a forked child, whose parent runs them."""
        self._idle = threading.Condition()
        self._running = 0
        self._exit_seconds = 0.0
        self._waits_at_exit = False

    @property
    def running(self) -> int:
        """Number of calls that run now."""
        return self._running

    def submit(self, call: Callable[[], None], *, limit: int, exit_seconds: float) -> bool:
        """Run ``call`` in a new thread and return True; return False and do nothing if ``limit`` calls run already.

        ``exit_seconds``: how long the interpreter's exit waits for running calls. Never blocks.
        """
        with self._idle:
            if self._running >= limit:
                return False
            self._running += 1
            self._exit_seconds = exit_seconds
        try:
            threading.Thread(target=self._run, args=(call,), name="pgjobs-bypass", daemon=True).start()
        except RuntimeError as error:
            self._leave()
            log.error("local worker cannot be started: %s", error)
            return False
        self._wait_at_exit()
        return True

    def wait(self, timeout: float) -> bool:
        """Block until nothing runs, at most ``timeout`` seconds; return whether nothing runs."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._running, timeout)

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException:
            log.exception("local worker failed")
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._idle:
            self._running -= 1
            self._idle.notify_all()

    def _wait_at_exit(self) -> None:
        if not self._waits_at_exit:
            self._waits_at_exit = True
            atexit.register(self._leave_process, os.getpid())

    def leave(self) -> None:
        """Wait for running calls and log how many are lost; for a process that ends without ``atexit``.

        Blocks for the ``exit_seconds`` of the latest call at most.
        """
        if not self.wait(self._exit_seconds):
            log.error("process exits, jobs that bypassed the queue are lost running=%d", self._running)

    def _leave_process(self, pid: int) -> None:
        # A forked child inherits the registration, not the threads.
        if os.getpid() == pid:
            self.leave()


of_this_process = LocalPool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=of_this_process.reset)
