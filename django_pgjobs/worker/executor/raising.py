"""From Python 3.13 on: a job's thread raises its interrupt itself, at a point where it sees that it may.

An exception that one thread sets for another (``PyThreadState_SetAsyncExc``) comes one check later there than where the
other stood. At a loop's jump back it even passes by the ``with`` around the loop, whose lock then stays held. So
``sys.monitoring`` (PEP 669) calls us in the job's own thread: where a function starts, behind a call into C, at the
head of a loop. What such a callback raises is raised right there, within each ``with`` and ``try`` that is open.

It does so for the code on the stack of a thread that is asked, and only while one is asked: others that run the same
code pay for a look into a dictionary.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any

from django_pgjobs.exceptions import JobInterrupted
from django_pgjobs.execution.attempt import Told
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.worker.executor.safe_points import EXACT, MODULE_LOCK

OUR_FILES.add(__file__)

_monitoring: Any = getattr(sys, "monitoring", None)

Consider = Callable[[FrameType, bool], type[JobInterrupted] | None]

NAME = "django-pgjobs"
OPTIONAL_TOOLS = (3, 4, 5, 2, 1, 0)
"""Numbers of monitoring tools; debuggers, coverage and profilers have 0, 1, 2 and 5 where they run."""


class Request:
    """One interrupt that a thread is asked to raise in the job ``told`` is of; ``raised`` says what it has raised.

    ``consider`` is called in that thread with the frame where it is, and whether it has just released a lock. It
    returns what to raise there, or None. ``set_exception`` raises it a little later: in loops that are a single line.
    """

    def __init__(
        self, told: Told, ident: int, consider: Consider, set_exception: Callable[[int, type[JobInterrupted]], None]
    ) -> None:
        self.told = told
        self.ident = ident
        self.consider = consider
        self.set_exception = set_exception
        self.raised: type[JobInterrupted] | None = None
        self.jumped: tuple[CodeType, int] | None = None
        self._frame: FrameType | None = None
        self._at = -1
        self._looks = 0
        self._right = [None]  # to raise it: whoever takes it out does, and nobody else

    def looks_at(self, frame: FrameType | None) -> int:
        """Return how many times in a row the thread has been seen at this instruction of this call, now included."""
        at = -1 if frame is None else frame.f_lasti
        if frame is not self._frame or at != self._at:
            self._frame, self._at, self._looks = frame, at, 0
        self._looks += 1
        return self._looks

    def take(self) -> bool:
        """Return whether nobody has taken it before; whoever does raises it, or lets it be."""
        try:
            self._right.pop()
        except IndexError:
            return False
        if _requests.get(self.ident) is self:
            _requests.pop(self.ident, None)
        self._frame = None
        return True

    def meet(self, frame: FrameType, released: bool = False) -> type[JobInterrupted] | None:
        """In the thread: return what is to be raised here."""
        kind = self.consider(frame, released)
        if kind is None or not self.take():
            return None
        self.raised = kind
        return kind


_requests: dict[int, Request] = {}
"""By the thread, one at a time."""


class Monitor:
    """The callbacks of one monitoring tool, and the code that they are called for."""

    def __init__(self, tool: int) -> None:
        self.tool = tool
        self.watched: set[CodeType] = set()
        self.changing = threading.Lock()
        events = _monitoring.events
        self.everywhere = events.PY_START | events.PY_RESUME | events.CALL | events.JUMP | events.LINE
        self.in_module_lock = events.CALL
        for event, callback in (
            (events.PY_START, _at_start),
            (events.PY_RESUME, _at_start),
            (events.C_RETURN, _behind_call),
            (events.JUMP, _at_jump),
            (events.LINE, _at_line),
        ):
            _monitoring.register_callback(tool, event, callback)

    def ask(self, request: Request) -> None:
        """Let the thread raise it; ``watch`` says where."""
        _requests[request.ident] = request

    def watch(self, frames: Iterator[FrameType]) -> None:
        """Have the threads that run the code of these frames look whether they are asked."""
        codes = {frame.f_code for frame in frames}
        with self.changing:
            for code in codes - self.watched:
                self.watched.add(code)
                events = self.in_module_lock if code is MODULE_LOCK else self.everywhere
                _monitoring.set_local_events(self.tool, code, events)

    def rest(self) -> None:
        """Watch nothing while nobody is asked."""
        with self.changing:
            while self.watched and not _requests:
                _monitoring.set_local_events(self.tool, self.watched.pop(), 0)


@cache
def monitor() -> Monitor | None:
    """Return the process's monitor; None where exceptions come where they are meant to, or all numbers are taken."""
    if EXACT:
        return None
    for tool in OPTIONAL_TOOLS:
        if _monitoring.get_tool(tool) is None:
            _monitoring.use_tool_id(tool, NAME)
            return Monitor(tool)
    return None


# The callbacks: in any thread that runs watched code. Their frame is called by the one that is watched.


def _at_start(code: CodeType, offset: int) -> None:
    request = _requests.get(threading.get_ident())
    if request is not None and (kind := request.meet(sys._getframe(1))) is not None:
        raise kind


def _behind_call(code: CodeType, offset: int, function: Any, first: Any) -> None:
    request = _requests.get(threading.get_ident())
    if request is None:
        return
    released = code is MODULE_LOCK and getattr(function, "__name__", "") == "release"
    if (kind := request.meet(sys._getframe(1), released)) is not None:
        raise kind


def _at_jump(code: CodeType, offset: int, destination: int) -> None:
    request = _requests.get(threading.get_ident())
    if request is None or destination > offset:
        return
    if request.jumped != (code, destination):
        request.jumped = code, destination  # CPython looks for the handlers of what is raised here in the wrong place
    elif (kind := request.meet(sys._getframe(1))) is not None:
        request.set_exception(request.ident, kind)


def _at_line(code: CodeType, line: int) -> None:
    request = _requests.get(threading.get_ident())
    if request is None or request.jumped is None:
        return
    # Only at the head of a loop: at its first instruction a line that ends a ``with`` is not within it any more.
    jumped, request.jumped = request.jumped, None
    frame = sys._getframe(1)
    if jumped == (code, frame.f_lasti) and (kind := request.meet(frame)) is not None:
        raise kind
