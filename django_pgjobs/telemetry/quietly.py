"""Calls of a tool that must change nothing: neither an error of the tool nor an outage reaches a job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from django_pgjobs.exceptions import INTERRUPTS
from django_pgjobs.logs import log
from django_pgjobs.signals import executor_stopping

FLUSH_SECONDS = {"drained": 1.2, "orphaned": 0.4}
"""Time that a tool may flush when its executor leaves. Two tools fit into the time that receivers have."""

_complained: set[str] = set()


@contextmanager
def quietly(tool: str) -> Iterator[None]:
    """Log an error of ``tool`` within the block, once in this process, and swallow it. Interrupts of a job pass."""
    try:
        yield
    except INTERRUPTS:
        raise
    except Exception:
        if tool not in _complained:
            _complained.add(tool)
            log.exception("%s failed, jobs continue without it", tool)


def flush_when_leaving(tool: str, flush: Callable[[], object]) -> None:
    """Call ``flush`` when this executor leaves, and wait for it at most ``FLUSH_SECONDS``. Repeatable."""
    executor_stopping.connect(
        partial(_flush, tool, flush), weak=False, dispatch_uid=f"django_pgjobs.telemetry.{tool}.flush"
    )


def _flush(tool: str, flush: Callable[[], object], *, reason: str, **_: object) -> None:
    done = threading.Event()

    def run() -> None:
        with quietly(tool):
            flush()
        done.set()

    # A thread of its own, since the tools' own bounds do not hold against every transport.
    threading.Thread(target=run, name=f"pgjobs-flush-{tool}", daemon=True).start()
    seconds = FLUSH_SECONDS.get(reason, min(FLUSH_SECONDS.values()))
    if not done.wait(seconds):
        log.warning("%s could not be flushed, executor leaves without seconds=%.1f", tool, seconds)
