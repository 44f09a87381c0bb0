"""The process state that libraries used by jobs need: default signals in forked children, prompt streams.

A forked child inherits Python's signal handlers. With ours ``Process.terminate()`` would do nothing to it, so that
``with multiprocessing.Pool()`` would wait forever, and it would outlive the SIGTERM of the ladder.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_handled: set[int] = set()
"""Signals that have a handler of ours in this process."""

_mask = threading.local()


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a worker: SIGHUP, of a terminal that was closed, unless ``nohup`` has it ignored."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return tuple(numbers)


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[tuple[signal.Signals, ...]]:
    """Within the block ``handler`` gets the stop signals, which are yielded. Main thread only.

    SIGCHLD gets its default back where it was inherited as ignored: every child would seem to end with status 0.
    """
    numbers = stop_signals()
    before = {number: signal.signal(number, handler) for number in numbers}
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    new = set(numbers) - _handled
    _handled.update(new)
    try:
        yield numbers
    finally:
        _handled.difference_update(new)
        for number, previous in before.items():
            signal.signal(number, previous)


def patched_by() -> str:
    """Return the library, gevent for example, that has put something else in the place of threads; usually empty."""
    module: str = getattr(_thread.start_new_thread, "__module__", "_thread")
    return "" if module == "_thread" else module.partition(".")[0]


def fill_streams() -> None:
    """Open ``/dev/null`` in the place of closed standard streams: libraries would print into a socket of that number.

    A program that starts daemons may have closed them.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def print_at_once() -> None:
    """Write what is printed line by line, to files and pipes too: a killed process has no time to."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, closed, or replaced by something else
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def flush_streams() -> None:
    """Write what was printed without an end of line. Raises nothing; blocks while no process reads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


forks = 0
"""Number of forks by Python between this process and the program it was started as."""


# Between the fork and the default handlers a signal to the child would be lost: it waits for the end of the block.


def _before_fork() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _handled) if _handled else None


def _in_parent() -> None:
    if _mask.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _in_child() -> None:
    global forks
    forks += 1
    if _mask.before is None:
        return
    for number in _handled:
        signal.signal(number, signal.SIG_DFL)
    _handled.clear()
    signal.set_wakeup_fd(-1)  # else its signals would wake the process it was forked from
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
