"""Where in its code a thread is: whether an exception that comes out of nowhere there could harm other threads.

Locks that Python code takes (the import system's, ``threading.Condition``, ``Semaphore``, ``queue.Queue``, those of
``logging``) are held for an instant before the ``with`` or ``try`` begins that releases them. An exception in that
instant leaves them held for ever, and with them every thread that wants them. So an interrupt looks first.

Reading the frames of a thread says where it is *now*: the caller must raise at once, before the thread goes on. Since
Python 3.13 that is not exact. A thread that had to let go of the interpreter finds an exception, raised meanwhile, one
call later than where it stood. So there a thread that moves raises its interrupt itself (``raising``), an import is not
interrupted in its midst, and a thread that takes a lock not by another.
"""

from __future__ import annotations

import asyncio.base_events
import concurrent.futures._base
import concurrent.futures.thread
import contextlib
import importlib
import importlib.util
import inspect
import logging
import multiprocessing.synchronize
import queue
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from enum import IntEnum
from types import CodeType, FrameType
from typing import Any

import asgiref.local

from django_pgjobs.serialization.failures import OUR_FILES

OUR_FILES.add(__file__)


class Place(IntEnum):
    """How delicate it is where a thread is."""

    OPEN = 0
    """The job's own code, or something that holds no lock of Python's."""

    BUSY = 1
    """Within machinery that others use too, at a moment at which it can bear an exception."""

    TAKING = 2
    """Where a lock is taken or let go, as far as is known."""


def _file(function: Callable[..., Any]) -> str:
    return function.__code__.co_filename


_IMPORTS = frozenset(
    {"<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", _file(importlib.util.find_spec)}
)

_MACHINERY = _IMPORTS | frozenset(
    _file(function)
    for function in (
        logging.Logger.handle,
        queue.Queue.put,
        threading.Condition.wait,
        concurrent.futures._base.Future.result,
        concurrent.futures.thread.ThreadPoolExecutor.submit,
        multiprocessing.synchronize.SemLock.__enter__,
    )
)

_LOCKING = (
    _MACHINERY
    | {_file(contextlib.ExitStack.__exit__), _file(weakref.finalize.__call__), _file(tempfile.gettempdir)}
    | {_file(asgiref.local.Local.__getattr__), _file(asyncio.base_events.BaseEventLoop.call_soon_threadsafe)}
)

EXACT = sys.version_info < (3, 13)
"""Whether an exception comes where the thread stands: since 3.13 CPython reads its flags before it waits."""

_IMPORT_LOCKS = frozenset(
    {"acquire", "release", "__enter__", "__exit__", "_get_module_lock", "_lock_unlock_module", "cb"}
)
"""The functions of the import system that take locks or let them go."""


MODULE_LOCK: CodeType = importlib._bootstrap._ModuleLock.acquire.__code__  # type: ignore[attr-defined]
"""Where a thread waits until another has imported a module: in vain while others import it again and again."""


def _lines_with(function: Callable[..., Any] | None, words: str) -> tuple[CodeType, frozenset[int]] | None:
    if function is None:
        return None
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):  # without its source nothing of it is known to be safe
        return None
    return function.__code__, frozenset(first + n for n, line in enumerate(lines) if words in line)


_WAITS: dict[CodeType, frozenset[int]] = dict(
    filter(
        None,
        (
            _lines_with(threading.Condition.wait, "waiter.acquire("),
            _lines_with(getattr(threading.Thread, "_wait_for_tstate_lock", None), "lock.acquire("),
            _lines_with(threading.Thread.join, "self._handle.join("),
            _lines_with(logging.StreamHandler.emit, "stream.write("),
            _lines_with(logging.StreamHandler.flush, "self.stream.flush("),
        ),
    )
)
"""The lines on which threads wait for long, in a call inside a ``try`` that makes good for an exception right there."""


_ENTERS = _lines_with(threading.Condition.__enter__, "self._lock.__enter__()") if EXACT else None


class Entering:
    """A thread in ``Condition.__enter__``: it waits for the lock, or has it and has not come back with it.

    Threads that hammer a queue stand nearly always there. An exception comes as soon as they have the lock, and would
    leave it held: here, for good. But that can be seen, and a plain lock can be released by any thread.
    """

    def __init__(self, ident: int, frame: FrameType, lock: Any) -> None:
        self.ident = ident
        self.frame = frame
        self.at = frame.f_lasti
        self.lock = lock

    @property
    def lasts(self) -> bool:
        """Whether the thread is still there."""
        frame: FrameType | None = sys._current_frames().get(self.ident)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None

    def mend(self) -> None:
        """Release the lock if the exception came there, where the thread had it; once that does not last any more."""
        if self.frame.f_lasti == self.at:  # it has not come to its return
            self.lock.release()


def entering(ident: int) -> Entering | None:
    """Return what can be mended where thread ``ident`` is, None if it is anywhere else."""
    frame = sys._current_frames().get(ident)
    if frame is None or _ENTERS is None or frame.f_code is not _ENTERS[0] or frame.f_lineno not in _ENTERS[1]:
        return None
    lock = frame.f_locals["self"]._lock
    return Entering(ident, frame, lock) if type(lock) is _PLAIN else None


_PLAIN = type(threading.Lock())


def place_of(ident: int, within: CodeType) -> Place:
    """Return how delicate it is where thread ``ident`` is; only frames inside one of ``within`` count."""
    return place_at(sys._current_frames().get(ident), within)


def place_at(frame: FrameType | None, within: CodeType, *, released: bool = False) -> Place:
    """Return how delicate it is in a frame; ``released``: its thread comes from releasing a lock this very moment."""
    if frame is None:
        return Place.OPEN
    # There it has woken up and has no lock yet: it is about to look whether it may have the module's.
    found = Place.BUSY if released and frame.f_code is MODULE_LOCK else _innermost(frame)
    outer: FrameType | None = frame
    while outer is not None and outer.f_code is not within:
        if found is Place.OPEN and outer.f_code.co_filename in _MACHINERY:
            found = Place.BUSY
        outer = outer.f_back
    return found if outer is not None else Place.OPEN


def watchable(frame: FrameType | None, within: CodeType) -> Iterator[FrameType]:
    """Yield the frames inside ``within`` in whose code a thread can see that it may be interrupted; none of ours."""
    while frame is not None and frame.f_code is not within:
        file = frame.f_code.co_filename
        if (file not in _LOCKING and file not in OUR_FILES) or frame.f_code is MODULE_LOCK:
            yield frame
        frame = frame.f_back


def _innermost(frame: FrameType) -> Place:
    code = frame.f_code
    if code.co_filename in _IMPORTS:
        return Place.BUSY if EXACT and code.co_name not in _IMPORT_LOCKS else Place.TAKING
    if code.co_filename in _LOCKING:
        return Place.BUSY if frame.f_lineno in _WAITS.get(code, ()) else Place.TAKING
    return Place.OPEN
