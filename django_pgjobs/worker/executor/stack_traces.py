"""In the executor: the stack of a job whose time is over. If the job has to be killed, nothing else shows it."""

from __future__ import annotations

import sys
import threading
import traceback

from django_pgjobs.serialization.failures import OUR_FILES, clean, shortened

TITLE = "Where it stood when it was to be interrupted (most recent call last):"


def stack_of(thread: threading.Thread | None, limit: int) -> str:
    """Return the formatted stack of a job's thread, from the job's own code on, about ``limit`` characters at most.

    Empty if the thread runs no job's code. Called in another thread, while the job's thread goes on.
    """
    frame = None if thread is None or thread.ident is None else sys._current_frames().get(thread.ident)
    stack = [] if frame is None else traceback.extract_stack(frame)
    names = [each.filename in OUR_FILES for each in stack]
    if True not in names:
        return ""
    first = names.index(True)
    while first < len(names) and names[first]:
        first += 1
    lines = traceback.format_list(stack[first:])
    return shortened(clean("".join([TITLE, "\n", *lines])), limit) if lines else ""
