"""Requests of operators to this worker, as its threads share them. One for each home.

The keep thread reads a request in the answer to a heartbeat; the main thread obeys, and the next heartbeat says so. The
numbers of requests ascend in the worker's row, so each is obeyed once, and of several between two heartbeats only the
last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django_pgjobs.store.stacks import StackAnswer


@dataclass(slots=True)
class Controls:
    """``taken``: the number of the last request that the main thread has obeyed. ``quiet``: it claims nothing now.

    ``draining``: the worker is about to end.

    ``beat_now`` makes the keep thread write a heartbeat, since one of these has changed; ``answer_stack`` has it store
    where a job is.
    """

    taken: int = 0
    quiet: bool = False
    draining: bool = False
    beat_now: Callable[[], None] = lambda: None
    answer_stack: Callable[[StackAnswer], None] = lambda answer: None
