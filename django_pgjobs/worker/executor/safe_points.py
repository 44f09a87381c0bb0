"""Looks at where a thread is in its code: whether an exception from outside could harm other threads there.

Locks that Python code takes (the import system's, ``threading.Condition``, ``Semaphore``, ``queue.Queue``, those of
``logging``) are held for an instant before the ``with`` or ``try`` that releases them begins. An exception in that
instant leaves the lock held forever, and blocks every thread that needs it. Check before you interrupt.

The frames of a thread show where it is *now*: the caller must raise at once, before the thread moves on. Since Python
3.13 that is not exact. A thread that had to release the interpreter meets an exception raised in the meantime one call
later than where it stood. From 3.13 on a thread that moves therefore raises its interrupt itself (``raising``), nothing
interrupts an import halfway, and no thread interrupts another that is taking a lock.
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

import asgiref.local

from django_pgjobs.serialization.failures import OUR_FILES

OUR_FILES.add(__file__)


class Safety(IntEnum):
    """Degree to which an exception is safe where a thread stands."""

    OPEN = 0
    """The job's own code, or other code that holds no lock of Python's."""

    BUSY = 1
    """Inside code that other threads share, at a point where an exception does no harm."""

    TAKING = 2
    """Code that may be taking or releasing a lock."""


def _file(function: Callable[..., object]) -> str:
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
"""True if an exception arrives where the thread stands: since 3.13 CPython reads its flags before it waits."""

_IMPORT_LOCKS = frozenset(
    {"acquire", "release", "__enter__", "__exit__", "_get_module_lock", "_lock_unlock_module", "cb"}
)
"""The functions of the import system that take or release locks."""


MODULE_LOCK: CodeType = importlib._bootstrap._ModuleLock.acquire.__code__  # type: ignore[attr-defined]
"""Code in which a thread waits for another's import of a module: without end if others keep importing it."""


def _lines_with(function: Callable[..., object] | None, words: str) -> tuple[CodeType, frozenset[int]] | None:
    if function is None:
        return None
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):  # without its source no line is known to be safe
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
"""The lines on which threads wait long, in a call inside a ``try`` that handles an exception there correctly."""


_ENTERS = _lines_with(threading.Condition.__enter__, "self._lock.__enter__()") if EXACT else None


def is_on_stack(ident: int, call: FrameType) -> bool:
    """Return whether thread ``ident`` has not returned from this call yet."""
    frame: FrameType | None = sys._current_frames().get(ident)
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is not None


class Entering:
    """A thread in ``Condition.__enter__``: it waits for the lock, or has it and has not returned yet.

    Threads that hammer a queue are nearly always there. The exception arrives as soon as the thread has the lock, which
    would then stay held forever. But another thread can see that, and any thread can release a plain lock.
    """

    def __init__(self, ident: int, frame: FrameType, lock: threading.Lock) -> None:
        self.ident = ident
        self.frame = frame
        self.at = frame.f_lasti
        self.lock = lock

    @property
    def lasts(self) -> bool:
        """True if the thread is still there."""
        return is_on_stack(self.ident, self.frame)

    def mend(self) -> None:
        """Release the lock if the exception arrived while the thread had it. Call when ``lasts`` is False."""
        if self.frame.f_lasti == self.at:  # it has not reached its return
            self.lock.release()


def entering(ident: int) -> Entering | None:
    """Return thread ``ident`` as one in ``Condition.__enter__`` with a plain lock; None if it is anywhere else."""
    frame = sys._current_frames().get(ident)
    if frame is None or _ENTERS is None or frame.f_code is not _ENTERS[0] or frame.f_lineno not in _ENTERS[1]:
        return None
    lock = frame.f_locals["self"]._lock
    return Entering(ident, frame, lock) if type(lock) is _PLAIN else None


_PLAIN = type(threading.Lock())


def safety_of(ident: int, within: CodeType) -> Safety:
    """Return how safe an exception is in thread ``ident`` now; only frames inside one of ``within`` count."""
    return safety_at(sys._current_frames().get(ident), within)


def safety_at(frame: FrameType | None, within: CodeType, *, released: bool = False) -> Safety:
    """Return how safe an exception is in a frame; ``released``: its thread has released a lock at this very moment."""
    if frame is None:
        return Safety.OPEN
    # The thread has woken up and holds no lock yet: it is about to check whether it gets the module's.
    found = Safety.BUSY if released and frame.f_code is MODULE_LOCK else _innermost(frame)
    outer: FrameType | None = frame
    while outer is not None and outer.f_code is not within:
        if found is Safety.OPEN and outer.f_code.co_filename in _MACHINERY:
            found = Safety.BUSY
        outer = outer.f_back
    return found if outer is not None else Safety.OPEN


def watchable(frame: FrameType | None, within: CodeType) -> Iterator[FrameType]:
    """Yield the frames inside ``within`` whose code may be monitored for safe points; none of our own."""
    while frame is not None and frame.f_code is not within:
        file = frame.f_code.co_filename
        if (file not in _LOCKING and file not in OUR_FILES) or frame.f_code is MODULE_LOCK:
            yield frame
        frame = frame.f_back


def _innermost(frame: FrameType) -> Safety:
    code = frame.f_code
    if code.co_filename in _IMPORTS:
        return Safety.BUSY if EXACT and code.co_name not in _IMPORT_LOCKS else Safety.TAKING
    if code.co_filename in _LOCKING:
        return Safety.BUSY if frame.f_lineno in _WAITS.get(code, ()) else Safety.TAKING
    return Safety.OPEN
