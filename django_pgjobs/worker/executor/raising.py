"""Ways to raise an exception in another thread. From Python 3.13 on, that thread raises it where it finds that safe.

An exception that one thread sets for another (``PyThreadState_SetAsyncExc``) arrives one check after the point where
the other thread stood. Before 3.13 that is the point that was looked at, if the other does not move in between
(``in_long_turns``). From 3.13 on it may skip the ``with`` around a loop at its jump back, and leave the lock held. So
``sys.monitoring`` (PEP 669) calls us in the job's own thread: where a function starts, after a call into C, and at the
head of a loop. An exception from such a callback is raised right there, inside every open ``with`` and ``try``.

Only the code on the stack of a requested thread is monitored, and only while a request is open: other threads that run
the same code pay for one call and one dictionary lookup at each of these points.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from types import CodeType, FrameType
from typing import Any

from django_pgjobs.exceptions import Interrupt
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.worker.executor.safe_points import EXACT, MODULE_LOCK

OUR_FILES.add(__file__)

_monitoring: Any = getattr(sys, "monitoring", None)

Consider = Callable[[FrameType, bool], type[Interrupt] | None]

NAME = "django-pgjobs"
OPTIONAL_TOOLS = (3, 4, 5, 2, 1, 0)
"""Ids of monitoring tools, by preference. Debuggers, coverage, profilers and optimizers claim 0, 1, 2 and 5."""


TURN_SECONDS = 0.02
"""The switch interval from a check to the exception: the thread that was checked must not move on in between."""


class LongTurns:
    """While a thread is inside, the interpreter's switch interval is at least ``TURN_SECONDS``."""

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


in_long_turns = LongTurns()
"""For ``with``. The switch interval belongs to the process, so all threads share this one."""


def set_exception(ident: int, kind: type[Interrupt] | None) -> None:
    """Have ``kind`` raised in a thread between two of its instructions; None withdraws it."""
    pending = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), pending)


class Request:
    """A request that a thread raise an interrupt in the job of ``control``; ``raised`` is what the thread has raised.

    The thread calls ``consider`` with its current frame and with whether it has just released a lock. ``consider``
    returns the exception to raise there, or None. Only the thread that pops the element of ``right`` may raise.
    """

    def __init__(self, control: RunControl, ident: int, consider: Consider, right: list[None] | None = None) -> None:
        self.control = control
        self.ident = ident
        self.consider = consider
        self.raised: type[Interrupt] | None = None
        self.ignored = False  # raised where CPython reports exceptions and continues
        self.jumped: tuple[CodeType, int] | None = None
        self.one_line: CodeType | None = None  # where the thread jumps back and no line begins
        self._frame: FrameType | None = None
        self._at = -1
        self._seen = 0
        self.right = [None] if right is None else right

    def seen_at(self, frame: FrameType | None) -> int:
        """Return how many checks in a row, this one included, have seen the thread at this instruction of this call."""
        at = -1 if frame is None else frame.f_lasti
        if frame is not self._frame or at != self._at:
            self._frame, self._at, self._seen = frame, at, 0
        self._seen += 1
        return self._seen

    def take(self) -> bool:
        """Take the right to raise; return False if another thread has taken it."""
        try:
            self.right.pop()
        except IndexError:
            return False
        self.close()
        return True

    def close(self) -> None:
        """Have the thread meet it no more."""
        if _requests.get(self.ident) is self:
            _requests.pop(self.ident, None)
        self._frame = None

    def meet(self, frame: FrameType, released: bool = False) -> type[Interrupt] | None:
        """Return the exception to raise in this frame, or None. Called in the requested thread."""
        kind = self.consider(frame, released)
        if kind is None or not self.take():
            return None
        self.raised = kind
        return kind


_requests: dict[int, Request] = {}
"""Open requests by thread id, at most one each."""


class Monitor:
    """The callbacks of one monitoring tool, and the code objects that it monitors."""

    def __init__(self, tool: int) -> None:
        self.tool = tool
        self.watched: dict[int, tuple[CodeType, int]] = {}  # by identity: equal code need not be the same
        self.changing = threading.Lock()
        events = _monitoring.events
        self.everywhere = events.PY_START | events.PY_RESUME | events.CALL | events.JUMP | events.LINE
        self.in_one_line = self.everywhere | events.INSTRUCTION
        self.in_module_lock = events.CALL
        for event, callback in (
            (events.PY_START, _at_start),
            (events.PY_RESUME, _at_start),
            (events.C_RETURN, _behind_call),
            (events.JUMP, _at_jump),
            (events.LINE, _at_line),
            (events.INSTRUCTION, _at_instruction),
        ):
            _monitoring.register_callback(tool, event, callback)

    def ask(self, request: Request) -> None:
        """Open a request; ``watch`` sets the code in which the thread can meet it."""
        _requests[request.ident] = request

    def watch(self, frames: Iterator[FrameType], one_line: CodeType | None = None) -> None:
        """Monitor the code of these frames: every thread that runs it checks for a request.

        In ``one_line`` it does at every instruction: the head of a loop on a single line raises no other event.
        """
        codes = {id(frame.f_code): frame.f_code for frame in frames}
        if one_line is not None:
            codes[id(one_line)] = one_line
        with self.changing:
            for key, code in codes.items():
                if code is MODULE_LOCK:
                    events = self.in_module_lock
                else:
                    events = self.in_one_line if code is one_line else self.everywhere
                known = self.watched.get(key, (code, 0))[1]
                if events & ~known:
                    self.watched[key] = code, events | known
                    _monitoring.set_local_events(self.tool, code, events | known)

    def rest(self) -> None:
        """Stop monitoring if no request is open."""
        with self.changing:
            while self.watched and not _requests:
                code, _ = self.watched.popitem()[1]
                _monitoring.set_local_events(self.tool, code, 0)


@cache
def monitor() -> Monitor | None:
    """Return the process's monitor; None before Python 3.13, where it is not needed, or if all tool ids are taken."""
    if EXACT:
        return None
    for tool in OPTIONAL_TOOLS:
        with suppress(ValueError):  # another tool has it
            _monitoring.use_tool_id(tool, NAME)
            return Monitor(tool)
    return None


# The callbacks run in any thread that runs monitored code. The caller of their frame is the monitored one.


def _at_start(code: CodeType, offset: int) -> None:
    request = _requests.get(threading.get_ident())
    if request is not None and (kind := request.meet(sys._getframe(1))) is not None:
        raise kind


def _behind_call(code: CodeType, offset: int, function: object, first: object) -> None:
    request = _requests.get(threading.get_ident())
    if request is None:
        return
    name = getattr(function, "__name__", "")
    if name == "acquire":
        return  # the ``try`` that releases the lock begins only now
    released = code is MODULE_LOCK and name == "release"
    if (kind := request.meet(sys._getframe(1), released)) is not None:
        raise kind


def _at_jump(code: CodeType, offset: int, destination: int) -> None:
    request = _requests.get(threading.get_ident())
    if request is None or destination > offset:
        return
    if request.jumped is not None and request.jumped[0] is code:
        request.one_line = code  # no line has begun since the jump before
    request.jumped = code, destination  # CPython would look up handlers of an exception raised here wrongly


def _at_line(code: CodeType, line: int) -> None:
    request = _requests.get(threading.get_ident())
    if request is None or request.jumped is None:
        return
    # Only at the head of a loop: the first instruction of a line that ends a ``with`` is already outside it.
    jumped, request.jumped = request.jumped, None
    frame = sys._getframe(1)
    if jumped == (code, frame.f_lasti) and (kind := request.meet(frame)) is not None:
        raise kind


def _at_instruction(code: CodeType, offset: int) -> None:
    request = _requests.get(threading.get_ident())
    if request is None or request.jumped is None or request.jumped[0] is not code or request.jumped[1] != offset:
        return
    request.jumped = None
    if (kind := request.meet(sys._getframe(1))) is not None:
        raise kind
