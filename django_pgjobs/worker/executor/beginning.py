"""In the executor: a job with a soft limit shows when its own code begins, since the limit counts from there.

Code that comes before, such as slow receivers of ``job_started``, cannot catch the exception for the job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

from django_pgjobs import clock
from django_pgjobs.execution.prepared import Guard
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.worker.shared.board import Board

OUR_FILES.add(__file__)


class ShownGuard:
    """Calls the job's own code through another guard, and shows on ``slot`` that it begins."""

    def __init__(self, guard: Guard, board: Board, slot: int) -> None:
        self.guard = guard
        self.board = board
        self.slot = slot

    def call(self, body: Callable[..., object], /, *args: object, **kwargs: object) -> Any:
        """Call ``body``."""
        self.board.begin(self.slot, clock.monotonic_ns())
        return self.guard.call(body, *args, **kwargs)

    async def acall(self, body: Callable[..., Awaitable[object]], /, *args: object, **kwargs: object) -> object:
        """Await ``body``."""
        self.board.begin(self.slot, clock.monotonic_ns())
        return await self.guard.acall(body, *args, **kwargs)

    def reach(self, connect: Callable[[], object]) -> None:
        """Call ``connect``: the job has not begun."""
        self.guard.reach(connect)

    def keeping_connections(self) -> AbstractContextManager[None]:
        """Return the block of the other guard."""
        return self.guard.keeping_connections()
