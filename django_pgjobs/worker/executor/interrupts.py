"""In the executor: stop a running job, by raising an exception in its thread and cancelling its queries.

One thread at a time interrupts, usually the control thread, and only while the *door* of the job's thread is open:
while the job's own code runs, not ours around it. A lock cannot guard this, because an exception inside ``with lock``
may leave the lock held. Instead each side writes first, then reads what the other has written:

* the control thread writes ``control.interrupt`` and ``setting``, then checks that the door is open for this job;
* the job's thread writes ``open``, then reads ``control.interrupt``, both when it opens and when it closes the door.

One of the two thus always sees the other. An exception that arrives while the door is closing is swallowed, or
withdrawn before it arrives: the job's result is known by then. Queries are cancelled as well, since an exception
cannot reach a thread that waits for the server. The thread discards its connections afterwards, so that a late cancel
request cannot hit the query of another job.

An interrupt is *held back* while the job's thread is in Python code that takes locks which other threads also need
(``safe_points``): a separate thread checks again every few milliseconds. If the job's thread only waits in such code,
the interrupt is raised after ``HOLD_SECONDS``. While the thread takes a lock the interrupt is never raised, or the lock
would stay held forever. The exception is ``Condition.__enter__``, where a thread that hammers a queue nearly always is:
there the interrupt is raised, and the lock released afterwards. From Python 3.13 on, a thread that moves raises its
interrupt itself, at a point that it finds safe (``raising``); another thread raises it in one that stands still for
``STANDING_CHECKS``. The remaining risk ends with the process: the supervisor recycles an executor in which a thread was
interrupted.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from django_pgjobs.exceptions import (
    INTERRUPTS,
    CancelRequested,
    DeadlinePassed,
    Interrupt,
    MemoryExceeded,
    SoftDeadlinePassed,
    WorkerStopping,
)
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.logs import log, release_logging
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.worker.executor import cleanup
from django_pgjobs.worker.executor.cancelling import cancel_queries
from django_pgjobs.worker.executor.raising import Monitor, Request, in_long_turns, monitor, set_exception
from django_pgjobs.worker.executor.safe_points import (
    Entering,
    Safety,
    entering,
    is_on_stack,
    safety_at,
    safety_of,
    watchable,
)
from django_pgjobs.worker.executor.soft_limits import SoftLimit, is_in_driver
from django_pgjobs.worker.shared.ladders import CANCELLED, LOST, MEMORY, RELEASED, SOFT, TIMEOUT

HOLD_SECONDS = 0.15
"""Time that an interrupt is held back while the thread is in code that other threads share."""

LONG_HOLD_SECONDS = 60.0
"""After how long in code that takes locks a warning is logged and checks become rare. No interrupt is raised there."""

STANDING_CHECKS = 25
"""After how many checks at the same instruction a thread is assumed to wait in C."""

CHECK_SECONDS = 0.002
SLOW_CHECK_SECONDS = 0.05
MEND_SECONDS = 0.01

KINDS: dict[str, type[Interrupt]] = {
    TIMEOUT: DeadlinePassed, MEMORY: MemoryExceeded, CANCELLED: CancelRequested, SOFT: SoftDeadlinePassed,
    RELEASED: WorkerStopping, LOST: WorkerStopping,
}  # fmt: skip

OUR_FILES.add(__file__)


class Door:
    """The door of one job thread, made in that thread. ``control`` belongs to the job that the thread runs."""

    def __init__(self, report: Callable[[float], None] = lambda seconds: None) -> None:
        self.ident = threading.get_ident()
        self.connections = cleanup.mine()
        self.control = RunControl()
        self.open: RunControl | None = None
        self.keeps_connections = False
        self.setting = False
        self.report = report
        self.held: RunControl | None = None
        self.entered: list[Entering] = []
        self.request: Request | None = None
        self.soft: SoftLimit | None = None
        self.interrupting = threading.Lock()  # never taken by the job's thread
        _here.door = self

    # In the control thread

    def interrupt(self, control: RunControl, kind: type[Interrupt] | None = None) -> None:
        """Raise ``kind`` in the job of ``control``, now or when its own code begins; do nothing if the job has ended.

        Without ``kind`` raise once more what it was interrupted with. Returns at once. The interrupt is held back while
        it could harm other threads; ``report`` is called with the seconds that it was held back.
        """
        with self.interrupting:
            control.interrupt = kind or control.interrupt
            if (soft := self._soft(control)) is not None:
                soft.arm()
            if self.held is control or self._try_interrupt(control, 0.0):
                return
            self.held = control
        try:
            threading.Thread(target=self._hold, args=(control,), name="pgjobs-interrupt", daemon=True).start()
        except RuntimeError as error:
            log.error("interrupt cannot be held back: %s", error)
            if not self._raise_held(control, HOLD_SECONDS):
                self.held = None

    def _hold(self, control: RunControl) -> None:
        began = time.monotonic()
        pause = CHECK_SECONDS
        while not self._raise_held(control, held_seconds := time.monotonic() - began):
            if pause < SLOW_CHECK_SECONDS and held_seconds > LONG_HOLD_SECONDS:
                what = "waits for a database" if control.interrupt is SoftDeadlinePassed else "takes locks all the time"
                log.warning("interrupt is held back for long, the job %s slot=%d", what, control.slot)
                pause = SLOW_CHECK_SECONDS
            time.sleep(pause)
        if (watching := monitor()) is not None:
            watching.rest()
        while self.entered:
            taken = self.entered.pop()
            while taken.lasts:
                time.sleep(MEND_SECONDS)
            taken.mend()

    def _raise_held(self, control: RunControl, held_seconds: float) -> bool:
        with self.interrupting:
            if self.held is not control:
                return True  # the thread runs another job by now
            if not self._try_interrupt(control, held_seconds):
                return False
            self.held = None
            return True

    def _try_interrupt(self, control: RunControl, held_seconds: float) -> bool:
        """Raise in the job unless it has ended; return False if the interrupt must be held back."""
        if (soft := self._soft(control)) is not None:
            if soft.raised:
                self._withdraw()
                self.report(held_seconds)
                return True
            if self.open is control:
                soft.hasten(self.ident)
        if (watching := monitor()) is not None:
            return self._ask(watching, control, held_seconds)
        with in_long_turns:
            # Waiting threads adopt the new switch interval only after they have held the interpreter once.
            time.sleep(CHECK_SECONDS / 10)
            return self._check_and_interrupt(control, held_seconds)

    def _check_and_interrupt(self, control: RunControl, held_seconds: float) -> bool:
        kind = control.interrupt
        self.setting = True
        try:
            if self.open is not control or kind is None:
                return True
            if kind is SoftDeadlinePassed and is_in_driver(sys._current_frames().get(self.ident), _CALL):
                return False
            safety = safety_of(self.ident, _CALL)
            taken = entering(self.ident) if safety is Safety.TAKING and held_seconds else None
            if taken is not None:
                self.entered.append(taken)
            elif safety is Safety.TAKING or (safety is Safety.BUSY and held_seconds < HOLD_SECONDS):
                return False
            if (soft := self._soft(control)) is None or soft.take():
                self._raise(control, kind)
        finally:
            self.setting = False
        self.report(held_seconds)
        return True

    def _soft(self, control: RunControl) -> SoftLimit | None:
        """Return the soft limit of ``control`` if that is what it is interrupted with."""
        if (soft := self.soft) is None or soft.control is not control or control.interrupt is not SoftDeadlinePassed:
            return None
        return soft

    def _raise(self, control: RunControl, kind: type[Interrupt]) -> None:
        set_exception(self.ident, kind)
        control.interrupted = True
        self._cancel_queries(kind)  # afterwards, or a query begun in between would continue

    def _cancel_queries(self, kind: type[Interrupt] | None) -> None:
        if kind is not SoftDeadlinePassed:  # the job continues, and waits for none now
            cancel_queries(cleanup.active(self.connections))

    # From Python 3.13 on

    def _ask(self, watching: Monitor, control: RunControl, held_seconds: float) -> bool:
        """Have the thread raise the interrupt at a safe point, or raise it from here if the thread stands still.

        Return whether it has been raised or the job has ended. Until then call again: the thread may enter other
        functions, which must be watched too.
        """
        request, kind = self.request, control.interrupt
        if request is not None and request.raised is not None:
            self.request = None
            self.report(held_seconds)
            if request.control is control and request.raised is kind and not request.ignored:
                return True
            request = None  # it interrupted the previous job, or the reason has changed since
        elif request is not None and self.soft is not None and self.soft.raised and request.right is self.soft.right:
            self._withdraw()
            request = None
        if self.open is not control or kind is None:
            self._withdraw()
            return True
        if request is None or request.control is not control:
            consider = partial(self._consider, control, time.monotonic())
            soft = self._soft(control)
            request = self.request = Request(control, self.ident, consider, None if soft is None else soft.right)
            watching.ask(request)
        frame = sys._current_frames().get(self.ident)
        watching.watch(watchable(frame, _CALL), request.one_line)
        if request.seen_at(frame) < STANDING_CHECKS or self._is_delicate(frame, held_seconds, kind):
            return False
        self.setting = True
        try:
            if self.open is control and request.take():
                self.request = None
                self._raise(control, kind)
                self.report(held_seconds)
                return True
        finally:
            self.setting = False
        return False

    def _withdraw(self) -> None:
        if self.request is not None:
            self.request.take()
            self.request.close()
            self.request = None

    @staticmethod
    def _is_delicate(
        frame: FrameType | None, held_seconds: float, kind: type[Interrupt] | None, *, released: bool = False
    ) -> bool:
        if kind is SoftDeadlinePassed and is_in_driver(frame, _CALL):
            return True
        safety = safety_at(frame, _CALL, released=released)
        return safety is Safety.TAKING or (safety is Safety.BUSY and held_seconds < HOLD_SECONDS)

    # In the job's thread

    def ignored(self, kind: type[BaseException]) -> bool:
        """Raise the job's interrupt once more if ``kind`` is it and the job continues; return whether it is.

        The caller is the hook to which CPython reports what it ignores. The interrupt comes after it has returned.
        """
        control = self.open
        if control is None or control.interrupt is not kind:
            return False
        if self.request is not None:
            self.request.ignored = True
        # Not a ``Thread``: its start takes a lock of Python's, which this thread may have in an outer frame.
        _thread.start_new_thread(self._interrupt_again, (control, sys._getframe(1)))
        return True

    def _interrupt_again(self, control: RunControl, hook: FrameType) -> None:
        while is_on_stack(self.ident, hook):  # CPython would ignore the interrupt there, too
            time.sleep(CHECK_SECONDS)
        self.interrupt(control)

    def _consider(self, control: RunControl, since: float, frame: FrameType, released: bool) -> type[Interrupt] | None:
        """Return the exception to raise in this thread's current frame; None if raising is not safe there."""
        kind = control.interrupt
        if self.open is not control or self._is_delicate(frame, time.monotonic() - since, kind, released=released):
            return None
        control.interrupted = True
        self._cancel_queries(kind)
        return kind

    def limit_softly(self) -> None:
        """Prepare this thread's connections for a soft limit of its job, until ``end_soft_limit``."""
        control = self.control
        self.soft = SoftLimit(control, self.connections, lambda: self.open is control, _CALL)

    def end_soft_limit(self) -> None:
        """Leave nothing of a soft limit on the connections."""
        if self.soft is not None:
            self.soft.end()
            self.soft = None

    def call(self, body: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """Call the job's own code with the door open."""
        control = self.control
        value: object = None
        raised: BaseException | None = None
        returned = False
        try:
            try:
                self.open = control
                if control.interrupt is not None:
                    self._meet(control)
                value = body(*args, **kwargs)
                returned = True
            except BaseException as error:
                raised = error
            self.open = None  # write first, then read, as ``_shut`` does
            if control.interrupt is not None:
                self._close(control)
        except INTERRUPTS as late:
            # It hit our own lines. If the job has no result yet, the interrupt is its result.
            self._close(control)
            raised = raised or late
        if raised is not None or control.interrupted:
            release_logging()
        if control.interrupted and not self.keeps_connections:
            cleanup.discard_all()
        if returned or raised is None:
            return value
        try:
            raise raised
        finally:
            raised = None  # break the reference cycle between the exception and this frame

    async def acall(self, body: Callable[..., Awaitable[object]], /, *args: object, **kwargs: object) -> object:
        """Await a coroutine on a loop of its own in this thread, where an exception from outside would do harm."""
        return await body(*args, **kwargs)

    def reach(self, connect: Callable[[], object]) -> None:
        """Call ``connect`` with the door open."""
        self.call(connect)

    @contextmanager
    def keeping_connections(self) -> Iterator[None]:
        """Discard the connections of an interrupted job at the end of this block only: its transaction needs one."""
        self.keeps_connections = True
        try:
            yield
        finally:
            self.keeps_connections = False
            if self.control.interrupted:
                cleanup.discard_all()

    def _meet(self, control: RunControl) -> None:
        """Raise an interrupt that came before the door was open; a later one is already on its way."""
        while self.setting:
            time.sleep(0)
        if control.interrupt is not None and not control.interrupted:
            raise control.interrupt

    def _close(self, control: RunControl) -> None:
        for _ in range(4):  # every cause interrupts once
            try:
                self._shut(control)
            except INTERRUPTS:
                continue
            return

    def _shut(self, control: RunControl) -> None:
        """Close the door and withdraw an exception that has not arrived yet."""
        self.open = None
        if control.interrupt is None:
            return
        while self.setting:
            time.sleep(0)
        if control.interrupted:
            set_exception(self.ident, None)


_CALL = Door.call.__code__
_here = threading.local()


def raise_ignored_again() -> None:
    """From now on raise an interrupt again that CPython ignores, in this process. Call it once.

    CPython reports what is raised in ``__del__``, in a callback of ``weakref`` or in a generator that is thrown away,
    and continues: the job would never hear of it.
    """
    report = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        door: Door | None = getattr(_here, "door", None)
        if door is None or not door.ignored(unraisable.exc_type):
            report(unraisable)

    sys.unraisablehook = hook
