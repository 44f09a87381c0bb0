"""In the executor: the calls into project code at start and exit, each with a time limit, in a separate thread.

A process that exits in good order calls what the interpreter's own exit would call: first receivers of
``executor_stopping``, then the callbacks of ``atexit``, which flush reports, traces and metrics. An executor cannot use
the interpreter's own exit, since that waits without end for threads that jobs have left. If anything still hangs,
a lock or a handler of ``logging``, a timer outside Python prints all stacks and ends the process.
"""

from __future__ import annotations

import atexit
import faulthandler
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.execution import events
from django_pgjobs.execution.fresh_context import fresh_context
from django_pgjobs.logs import Facts, facts, log
from django_pgjobs.worker.executor import cleanup
from django_pgjobs.worker.shared import process

STARTED_SECONDS = 10.0
"""Time limit of receivers of ``executor_started``; then the executor is ready without them."""

EXIT_SECONDS = 10.0
"""Maximum time of an executor from its BYE to its end."""

NOTIFY_SECONDS = 5.0
"""Time limit of the receivers of durable writes before that."""

ORPHANED_SECONDS = 3.0
"""Total time limit of an executor without its supervisor; half a second later the watchdog ends it."""

RECEIVERS_SHARE, CALLBACKS_SHARE = 0.3, 0.8
"""The shares of the time after which to stop waiting for receivers, then for callbacks. Streams get the rest."""

DRAINED, ORPHANED = "drained", "orphaned"


def before_bye_seconds() -> float:
    """Return how long an executor that has nothing left to run may take until it says BYE."""
    return NOTIFY_SECONDS + get_conf().bypass_exit_seconds + EXIT_SECONDS


def say_started(database: str, threads: int, async_slots: int) -> None:
    """Send ``executor_started``. Raises nothing; returns after ``STARTED_SECONDS`` no matter what receivers do."""
    call = partial(events.executor_started, database, threads, async_slots)
    seconds = min(STARTED_SECONDS, get_conf().ready_seconds / 4)
    call_within(seconds, "receivers of executor_started", call)


def say_stopping(reason: str, seconds: float = EXIT_SECONDS * RECEIVERS_SHARE) -> None:
    """Send ``executor_stopping``. Raises nothing; returns after ``seconds`` no matter what receivers do."""
    call_within(seconds, "receivers of executor_stopping", partial(events.executor_stopping, reason))


def end_after(seconds: float) -> None:
    """Print all stacks and end this process after so many seconds, even if a thread holds the interpreter."""
    with suppress(AttributeError, OSError, RuntimeError, ValueError):  # without a usable stderr
        faulthandler.dump_traceback_later(max(seconds, 0.1), exit=True)


def last_steps(reason: str, seconds: float) -> None:
    """Send ``executor_stopping``, run the ``atexit`` callbacks and flush streams, within ``seconds`` altogether."""
    end_after(seconds)
    began = clock.monotonic()
    say_stopping(reason, seconds * RECEIVERS_SHARE)
    left = began + seconds * CALLBACKS_SHARE - clock.monotonic()
    call_within(left, "exit callbacks", atexit._run_exitfuncs)  # closes logging too
    process.flush_streams()


def call_within(seconds: float, what: str, call: Callable[[], None]) -> None:
    """Call in a separate thread and wait at most so long for its end. Raises nothing."""
    ended = threading.Event()

    def run() -> None:
        try:
            fresh_context().run(call)
        except BaseException:
            log.exception("%s failed", what)
        finally:
            cleanup.close_all()
            ended.set()

    thread = threading.Thread(target=run, name="pgjobs-leave", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        run()  # no thread can be started: if this hangs, the timer or our supervisor ends it
    if not ended.wait(max(seconds, 0.0)):
        log.error("%s take too long, executor continues without seconds=%.1f %s", what, seconds, _where(thread))


def _where(thread: threading.Thread) -> Facts:
    """Return where a thread is; called while it hangs."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return facts("")
    return facts("at=%s in=%s", f"{frame.f_code.co_filename}:{frame.f_lineno}", frame.f_code.co_qualname)
