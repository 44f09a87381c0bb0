"""In the executor: the stack of a job's thread, or the chain of its coroutines, without the values of its variables.

Read in the control thread while the job continues, so a line may be older than the one below it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from django_pgjobs.execution import durable
from django_pgjobs.serialization.failures import OUR_FILES, clean, shortened

INTERRUPTED = "Where it stood when it was to be interrupted (most recent call last):"
ASKED = "Where it is (most recent call last):"

MOST_FRAMES = 200
"""The number of calls to show: the first quarter of it, and the last ones."""

STEPS = (durable.DurableMemory.step.__code__, durable.DurableMemory._astepped.__code__)
"""Code of ours that runs a step; its own variable ``name`` says which."""


def of_thread(thread: threading.Thread | None, limit: int, title: str = ASKED) -> str:
    """Return the stack of a job's thread, from the job's own code on, about ``limit`` characters at most.

    Empty if the thread runs no job's code.
    """
    frame = None if thread is None or thread.ident is None else sys._current_frames().get(thread.ident)
    frames = list(_callers(frame))
    frames.reverse()
    return _text(frames, limit, title)


def of_task(task: asyncio.Task[object], loop: asyncio.AbstractEventLoop, thread: threading.Thread, limit: int) -> str:
    """Return the coroutines of a job, each awaited by the one above it; of one that runs now, its calls."""
    if asyncio.current_task(loop) is task:
        return of_thread(thread, limit)
    return _text(list(_awaited(task)), limit, ASKED)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited(task: asyncio.Task[object] | None) -> Iterator[FrameType]:
    seen = 0
    while task is not None:
        each: Any = task.get_coro()
        while each is not None and seen < sys.getrecursionlimit():
            seen += 1
            for kind, awaits in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await")):
                if hasattr(each, kind):
                    if (frame := getattr(each, kind)) is not None:
                        yield frame
                    each = getattr(each, awaits)
                    break
            else:
                each = getattr(each, "awaitable", None)  # of ``SoftlyAwaited``
        waiter = getattr(task, "_fut_waiter", None)
        task = waiter if isinstance(waiter, asyncio.Task) and seen < sys.getrecursionlimit() else None


def _text(frames: Sequence[FrameType], limit: int, title: str) -> str:
    ours = [frame.f_code.co_filename in OUR_FILES for frame in frames]
    if True not in ours:
        return ""
    first = ours.index(True)
    while first < len(ours) and ours[first]:
        first += 1
    step = next((frame.f_locals.get("name") for frame in reversed(frames) if frame.f_code in STEPS), None)
    shown = _lines(frames[first:])
    within = [f"In step {step}:\n"] if isinstance(step, str) else []
    return shortened(clean("".join([*within, f"{title}\n", *shown])), limit) if shown else ""


def _lines(frames: Sequence[FrameType]) -> list[str]:
    if (left := len(frames) - MOST_FRAMES) > 0:
        first = MOST_FRAMES // 4
        return [*_lines(frames[:first]), f"  … {left} calls …\n", *_lines(frames[first + left :])]
    return traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames).format()
