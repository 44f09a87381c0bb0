"""Waits of the tasks of a running job, which is suspended once, for all of them.

A task that waits lets the others continue: until each waits too, has ended, or is busy with something that is none of
our calls. Then the first of them leaves the body. Waits side by side therefore begin together, and no step is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from django_pgjobs import decisions as decide
from django_pgjobs.exceptions import JobSuspended, SuspensionSwallowed
from django_pgjobs.serialization.failures import OUR_FILES

OUR_FILES.add(__file__)

T = TypeVar("T")

ROUNDS = 10
"""Number of rounds of the event loop, with no call of ours under way, before a task leaves the body."""

_awaits: ContextVar[bool] = ContextVar("django_pgjobs_awaits", default=False)
"""True if a coroutine awaits the call, which then leaves the body by itself."""


class Suspending:
    """The waits of the job, in this run; none as long as it is not to be suspended."""

    def __init__(self) -> None:
        self._waits: dict[str, decide.Suspended] = {}
        self._leaving = False
        self.released = False
        self._busy = 0
        self._idle = asyncio.Event()

    def check_going_on(self) -> None:
        """Raise ``JobSuspended`` if the job is about to leave its body."""
        if self._leaving:
            raise JobSuspended

    def check_not_swallowed(self) -> None:
        """Raise if the body has returned although it was suspended."""
        if self._waits or self.released:
            raise SuspensionSwallowed

    def suspend(self, wait: decide.Suspended, cause: BaseException | None = None) -> NoReturn:
        """Raise ``JobSuspended``: the task that calls waits for this."""
        known = self._waits.get(wait.memo)
        if known is None or wait.seconds < known.seconds:
            self._waits[wait.memo] = wait
        self._leaving = self._leaving or not _awaits.get()
        raise JobSuspended from cause

    def leave(self, wait: decide.Suspended) -> None:
        """Let the job be suspended, and none of its tasks do more."""
        self._waits[wait.memo] = wait
        self._leaving = True

    def release(self) -> NoReturn:
        """Raise ``JobSuspended``: the job is to stop, and restarts elsewhere."""
        self.released = self._leaving = True
        raise JobSuspended

    async def beside(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call of ours; if it suspends the job, let the other tasks come to their waits before."""
        self._busy += 1
        self._idle.clear()
        token = _awaits.set(True)
        try:
            return await call
        except JobSuspended as error:
            suspended = error
        finally:
            _awaits.reset(token)
            self._busy -= 1
            if not self._busy:
                self._idle.set()
        if not self._leaving:
            await self._others()
            self._leaving = True
        raise suspended

    async def _others(self) -> None:
        rounds = 0
        while rounds < ROUNDS and not self._leaving:
            if self._busy:
                await self._idle.wait()
                rounds = 0
            await asyncio.sleep(0)
            rounds += 1

    def decision(self, *, progressed: bool) -> decide.Suspended | None:
        """Return the suspension of the attempt; None if it is not suspended. A step that failed comes first."""
        if not self._waits:
            return None
        first, *others = sorted(self._waits.values(), key=lambda wait: (wait.failure is None, wait.seconds))
        return replace(first, progressed=progressed, besides=tuple(others))
