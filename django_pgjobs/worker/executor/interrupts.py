"""In the executor: stopping a job that runs, by an exception in its thread and by cancelling its queries.

One thread at a time interrupts, mostly the control thread, and only while the *door* of the job's thread is open:
while the job's own code runs, not ours around it. No lock could do this: an exception inside ``with lock`` may leave
it held. Instead each side writes first and then reads what the other has written:

* the control thread: ``told.interrupt``, ``setting``, then it looks whether the door is open for this job;
* the job's thread: ``open``, then it looks at ``told.interrupt``, when it opens and when it closes the door.

So one of the two always sees the other. An exception that comes while the door is being closed is swallowed, or
taken back before it has come: what the job came to is known by then. Queries are cancelled beside it, since no
exception reaches a thread that waits for the server; whatever the thread had connected is thrown away afterwards,
so a late cancel meets no other job's query.

An interrupt is *held back* while the job's thread is where Python code takes locks that other threads want too
(``safe_points``): a thread of its own looks again every few milliseconds. It comes after ``HOLD_SECONDS`` where the
thread only waits in such code, and never while it takes a lock, which would then be held for ever. One that stands
where a condition's lock is taken, as a thread does that hammers a queue, is interrupted there, and the lock is released
behind it. From Python 3.13 on a thread that moves raises its interrupt itself, where it sees that it may (``raising``);
another raises it in one that stands still for ``STANDING_LOOKS``. What is left of the risk goes with the process: an
executor in which a thread was interrupted is recycled.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

from django_pgjobs.exceptions import CancelRequested, DeadlinePassed, JobInterrupted, WorkerStopping
from django_pgjobs.execution.attempt import Told
from django_pgjobs.logs import release_logging, safe_logger
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.worker.executor import cleanup
from django_pgjobs.worker.executor.raising import Monitor, Request, monitor
from django_pgjobs.worker.executor.safe_points import Entering, Place, entering, place_at, place_of, watchable
from django_pgjobs.worker.shared.ladders import CANCELLED, LOST, RELEASED, TIMEOUT

log = safe_logger("django_pgjobs")

HOLD_SECONDS = 0.15
"""How long an interrupt is held back while the thread is somewhere in machinery that others use too."""

LONG_HOLD_SECONDS = 60.0
"""After how long, while it takes a lock, that is told and looked at less often. It is never struck there."""

STANDING_LOOKS = 25
"""After how many looks that found a thread at the same instruction it is taken for one that waits in C."""

LOOK_SECONDS = 0.002
SELDOM_SECONDS = 0.05
MEND_SECONDS = 0.01
TURN_SECONDS = 0.02
"""How long who looks may keep the interpreter until it has raised: the thread it has looked at must not go on."""

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

    def __init__(self, struck: Callable[[float], None] = lambda seconds: None) -> None:
        self.ident = threading.get_ident()
        self.connections = cleanup.mine()
        self.told = Told()
        self.open: Told | None = None
        self.setting = False
        self.struck = struck
        self.held: Told | None = None
        self.entered: list[Entering] = []
        self.request: Request | None = None
        self.striking = threading.Lock()  # never taken by the job's thread

    # In the control thread

    def interrupt(self, told: Told, kind: type[JobInterrupted]) -> None:
        """Raise ``kind`` in the job that ``told`` is of, now or when its own code begins; nothing if it has ended.

        Returns at once. It is held back while it could harm other threads; ``struck`` hears of it, with the seconds.
        """
        with self.striking:
            told.interrupt = kind
            if self.held is told or self._strike(told, 0.0):
                return
            self.held = told
        try:
            threading.Thread(target=self._hold, args=(told,), name="pgjobs-interrupt", daemon=True).start()
        except RuntimeError as error:
            log.error("interrupt cannot be held back: %s", error)
            if not self._let_go(told, HOLD_SECONDS):
                self.held = None

    def _hold(self, told: Told) -> None:
        began = time.monotonic()
        pause = LOOK_SECONDS
        while not self._let_go(told, held_seconds := time.monotonic() - began):
            if pause < SELDOM_SECONDS and held_seconds > LONG_HOLD_SECONDS:
                log.warning("interrupt is held back for long, the job takes locks all the time slot=%d", told.slot)
                pause = SELDOM_SECONDS
            time.sleep(pause)
        if (watching := monitor()) is not None:
            watching.rest()
        while self.entered:
            taken = self.entered.pop()
            while taken.lasts:
                time.sleep(MEND_SECONDS)
            taken.mend()

    def _let_go(self, told: Told, held_seconds: float) -> bool:
        with self.striking:
            if self.held is not told:
                return True  # of a job since then
            if not self._strike(told, held_seconds):
                return False
            self.held = None
            return True

    def _strike(self, told: Told, held_seconds: float) -> bool:
        """Raise in the job unless it has ended; return False where it is to be held back."""
        if (watching := monitor()) is not None:
            return self._ask(watching, told, held_seconds)
        with _in_long_turns:
            # Those that wait for the interpreter ask for it after the new time only, once they have had it.
            time.sleep(LOOK_SECONDS / 10)
            return self._look_and_strike(told, held_seconds)

    def _look_and_strike(self, told: Told, held_seconds: float) -> bool:
        kind = told.interrupt
        self.setting = True
        try:
            if self.open is not told or kind is None:
                return True
            place = place_of(self.ident, _CALL)
            taken = entering(self.ident) if place is Place.TAKING and held_seconds else None
            if taken is not None:
                self.entered.append(taken)
            elif place is Place.TAKING or (place is Place.BUSY and held_seconds < HOLD_SECONDS):
                return False
            self._raise(told, kind)
        finally:
            self.setting = False
        self.struck(held_seconds)
        return True

    def _raise(self, told: Told, kind: type[JobInterrupted]) -> None:
        _set_exception(self.ident, kind)
        told.struck = True
        cancel_queries(cleanup.active(self.connections))  # after: a query that has begun before it is cancelled

    # From Python 3.13 on

    def _ask(self, watching: Monitor, told: Told, held_seconds: float) -> bool:
        """Have the thread raise it where it may, or raise it in the thread if that stands still.

        Return whether it has been raised or the job has ended. Until then look again: the thread calls other functions.
        """
        request, kind = self.request, told.interrupt
        if request is not None and request.raised is not None:
            self.request = None
            self.struck(held_seconds)
            if request.told is told and request.raised is kind:
                return True
            request = None  # it was the job before, or another reason has come since
        if self.open is not told or kind is None:
            self._withdraw()
            return True
        if request is None or request.told is not told:
            consider = partial(self._consider, told, time.monotonic())
            request = self.request = Request(told, self.ident, consider, _set_exception)
            watching.ask(request)
        frame = sys._current_frames().get(self.ident)
        watching.watch(watchable(frame, _CALL))
        if request.looks_at(frame) < STANDING_LOOKS or self._is_delicate(frame, held_seconds):
            return False
        self.setting = True
        try:
            if self.open is told and request.take():
                self.request = None
                self._raise(told, kind)
                self.struck(held_seconds)
                return True
        finally:
            self.setting = False
        return False

    def _withdraw(self) -> None:
        if self.request is not None:
            self.request.take()
            self.request = None

    @staticmethod
    def _is_delicate(frame: FrameType | None, held_seconds: float, *, released: bool = False) -> bool:
        place = place_at(frame, _CALL, released=released)
        return place is Place.TAKING or (place is Place.BUSY and held_seconds < HOLD_SECONDS)

    # In the job's thread

    def _consider(self, told: Told, since: float, frame: FrameType, released: bool) -> type[JobInterrupted] | None:
        """Return what is to be raised in this frame, where this thread is; None if it must not be."""
        if self.open is not told or self._is_delicate(frame, time.monotonic() - since, released=released):
            return None
        told.struck = True
        cancel_queries(cleanup.active(self.connections))
        return told.interrupt

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
        if raised is not None or told.struck:
            release_logging()
        if told.struck:
            cleanup.discard_all()
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


_CALL = Door.call.__code__


class _LongTurns:
    """While a thread is within, none takes the interpreter away from another before ``TURN_SECONDS``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.within = 0
        self.usual = 0.0

    def __enter__(self) -> None:
        with self.lock:
            self.within += 1
            if self.within == 1:
                self.usual = sys.getswitchinterval()
                sys.setswitchinterval(max(self.usual, TURN_SECONDS))

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.within -= 1
            if not self.within:
                sys.setswitchinterval(self.usual)


_in_long_turns = _LongTurns()


class TaskDoor:
    """One task's on the event loop. Everything here happens in the loop's thread, so nothing comes in between."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.task = asyncio.current_task()
        self.connections = cleanup.of_this_job()
        self.is_open = False

    def interrupt(self, kind: type[JobInterrupted]) -> None:
        """Cancel the task, now or when the job's own code begins."""
        self.told.interrupt = kind
        if self.is_open and self.task is not None:
            self.told.struck = True
            self.task.cancel()
            cancel_queries(cleanup.active(self.connections))

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
            log.warning("query of a job cannot be cancelled: %s", one_line(error))


def _set_exception(ident: int, kind: type[JobInterrupted] | None) -> None:
    """Let ``kind`` be raised in a thread between two of its instructions; None takes it back."""
    pending = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), pending)
