"""In the executor: stopping a job that runs, by an exception in its thread and by cancelling its queries.

Only the control thread interrupts, and only while the *door* of the job's thread is open: while the job's own code
runs, not ours around it. No lock could do this: an exception inside ``with lock`` may leave it held. Instead each
side writes first and then reads what the other has written:

* the control thread: ``told.interrupt``, ``setting``, then it looks whether the door is open for this job;
* the job's thread: ``open``, then it looks at ``told.interrupt``, when it opens and when it closes the door.

So one of the two always sees the other. An exception that comes while the door is being closed is swallowed, or
taken back before it has come: what the job came to is known by then. Queries are cancelled beside it, since no
exception reaches a thread that waits for the server; whatever the thread had connected is thrown away afterwards,
so a late cancel meets no other job's query.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from django_pgjobs.attempt import Told
from django_pgjobs.exceptions import CancelRequested, DeadlinePassed, JobInterrupted, WorkerStopping
from django_pgjobs.failures import OUR_FILES
from django_pgjobs.logs import safe_logger
from django_pgjobs.worker import hygiene
from django_pgjobs.worker.ladders import CANCELLED, LOST, RELEASED, TIMEOUT

log = safe_logger("django_pgjobs")

CANCEL_SECONDS = 2.0
"""What a query's cancel may take: it needs a connection of its own."""

KINDS: dict[str, type[JobInterrupted]] = {
    TIMEOUT: DeadlinePassed,
    CANCELLED: CancelRequested,
    RELEASED: WorkerStopping,
    LOST: WorkerStopping,
}

OUR_FILES.add(__file__)


class Door:
    """One job thread's; made in that thread. ``told`` is of the job that it runs."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.connections = hygiene.mine()
        self.told = Told()
        self.open: Told | None = None
        self.setting = False

    # In the control thread

    def interrupt(self, told: Told, kind: type[JobInterrupted]) -> None:
        """Raise ``kind`` in the job that ``told`` is of, now or when its own code begins; nothing if it has ended."""
        told.interrupt = kind
        self.setting = True
        try:
            if self.open is not told:
                return
            told.struck = True
            _set_exception(self.ident, kind)
            queries = hygiene.active(self.connections)  # after: a query that has begun before it is cancelled
        finally:
            self.setting = False
        cancel_queries(queries)

    # In the job's thread

    def call(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the job's own code with the door open."""
        told = self.told
        value: Any = None
        raised: BaseException | None = None
        returned = False
        try:
            try:
                self.open = told
                if told.interrupt is not None:
                    self._meet(told)
                value = body(*args, **kwargs)
                returned = True
            except BaseException as error:
                raised = error
            self.open = None  # first, then look: as ``_shut`` does for those that are interrupted
            if told.interrupt is not None:
                self._close(told)
        except JobInterrupted as late:
            # It hit our own lines. Before anything was known of the job it is what the job came to.
            self._close(told)
            raised = raised or late
        if told.struck:
            release_logging()
            hygiene.discard_all()
        if returned or raised is None:
            return value
        try:
            raise raised
        finally:
            raised = None  # else it would hold this frame, and this frame it

    async def acall(self, body: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Any:
        """Await a coroutine on a loop of its own in this thread: no place for an exception out of nowhere."""
        return await body(*args, **kwargs)

    def _meet(self, told: Told) -> None:
        """Raise an interrupt that came before the door was open; one that came after is on its way by itself."""
        while self.setting:
            time.sleep(0)
        if told.interrupt is not None and not told.struck:
            raise told.interrupt

    def _close(self, told: Told) -> None:
        for _ in range(3):  # every cause interrupts once
            try:
                self._shut(told)
            except JobInterrupted:
                continue
            return

    def _shut(self, told: Told) -> None:
        """Close the door, and take an exception back that has not come yet."""
        self.open = None
        if told.interrupt is None:
            return
        while self.setting:
            time.sleep(0)
        if told.struck:
            _set_exception(self.ident, None)


class TaskDoor:
    """One task's on the event loop. Everything here happens in the loop's thread, so nothing comes in between."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.task = asyncio.current_task()
        self.connections = hygiene.of_this_job()
        self.is_open = False

    def interrupt(self, kind: type[JobInterrupted]) -> None:
        """Cancel the task, now or when the job's own code begins."""
        self.told.interrupt = kind
        if self.is_open and self.task is not None:
            self.told.struck = True
            self.task.cancel()
            cancel_queries(hygiene.active(self.connections))

    def call(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call what runs in a thread beside the loop; it cannot be interrupted there."""
        return body(*args, **kwargs)

    async def acall(self, body: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Any:
        """Await the job's own code with the door open."""
        if self.told.interrupt is not None:
            raise self.told.interrupt
        self.is_open = True
        try:
            return await body(*args, **kwargs)
        except asyncio.CancelledError as error:
            if self.told.interrupt is None:
                raise  # the job's own
            raise self.told.interrupt from error
        finally:
            self.is_open = False
            if self.told.struck and self.task is not None:
                self.task.uncancel()


def release_logging() -> None:
    """Let go of locks of logging that an exception has left held in this thread, which is not logging now.

    ``logging`` takes them by a call, not by ``with``: between that call and its ``try`` an exception keeps the lock,
    and every thread of this process, the control thread too, would wait for it for ever.
    """
    handlers = [ref() for ref in list(logging._handlerList)]  # type: ignore[attr-defined]
    for lock in [logging._lock, *(handler.lock for handler in handlers if handler is not None)]:  # type: ignore[attr-defined]
        while lock is not None and lock._is_owned():
            lock.release()


def cancel_queries(queries: list[Any]) -> None:
    """Cancel what these connections are doing; returns at once, a server that is away holds up nobody."""
    if not queries:
        return
    try:
        threading.Thread(target=_cancel, args=(queries,), name="pgjobs-cancel", daemon=True).start()
    except RuntimeError as error:
        log.error("query of a job cannot be cancelled: %s", error)  # the ladder goes on


def _cancel(queries: list[Any]) -> None:
    for connection in queries:
        try:
            connection.cancel_safe(timeout=CANCEL_SECONDS)
        except Exception as error:
            log.warning("query of a job cannot be cancelled: %s", " ".join(str(error).split()))


def _set_exception(ident: int, kind: type[JobInterrupted] | None) -> None:
    """Let ``kind`` be raised in a thread between two of its instructions; None takes it back."""
    pending = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), pending)
