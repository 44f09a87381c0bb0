"""In the executor: the door of a job on the event loop, where its task is cancelled and its queries are.

A soft limit is no cancellation. But a task can only be cancelled, so a job with a soft limit is awaited by an object
that throws ``SoftDeadlinePassed`` into it in place of that one cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, Self

from django_pgjobs.exceptions import Interrupt, SoftDeadlinePassed
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.worker.executor import cleanup
from django_pgjobs.worker.executor.cancelling import cancel_queries

OUR_FILES.add(__file__)


class TaskDoor:
    """The door of one task on the event loop. Everything here runs in the loop's thread, so without races.

    ``softly``: the job has a soft limit.
    """

    def __init__(self, control: RunControl, *, softly: bool = False) -> None:
        self.control = control
        self.task = asyncio.current_task()
        self.connections = cleanup.of_this_job()
        self.is_open = False
        self.softly = softly
        self.is_soft = False

    def interrupt(self, kind: type[Interrupt]) -> None:
        """Cancel the task, now or when the job's own code begins; at a soft limit it is not cancelled but told."""
        if kind is SoftDeadlinePassed and self.control.interrupt is not None:
            return  # it is being stopped: both came in one turn of the loop
        self.is_soft = self.is_open and kind is SoftDeadlinePassed
        if not self.is_soft:
            self.control.interrupt = kind
        if self.is_open and self.task is not None:
            self.control.interrupted = True
            self.task.cancel()
            cancel_queries(cleanup.active(self.connections))

    def takes_soft(self) -> bool:
        """Return whether the cancellation that arrives now stands for a soft limit; then it cancels nothing."""
        soft, self.is_soft = self.is_soft, False
        if soft and self.task is not None:
            self.task.uncancel()
        return soft

    def call(self, body: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """Call ``body`` in a thread beside the loop, where it cannot be interrupted."""
        return body(*args, **kwargs)

    def reach(self, connect: Callable[[], object]) -> None:
        """Call ``connect``: no job on the loop is atomic."""
        connect()

    def keeping_connections(self) -> AbstractContextManager[None]:
        """Return an empty block: no job on the loop is atomic."""
        return nullcontext()

    async def acall(self, body: Callable[..., Awaitable[object]], /, *args: object, **kwargs: object) -> object:
        """Await the job's own code with the door open."""
        if self.control.interrupt is not None:
            raise self.control.interrupt
        self.is_open = True
        try:
            awaitable = body(*args, **kwargs)
            return await (SoftlyAwaited(awaitable, self.takes_soft) if self.softly else awaitable)
        except asyncio.CancelledError as error:
            if self.control.interrupt is None:
                raise  # the job's own
            raise self.control.interrupt from error
        finally:
            self.is_open = False
            if self.control.interrupted and self.task is not None:
                self.task.uncancel()


class SoftlyAwaited:
    """Awaits a job, and raises ``SoftDeadlinePassed`` where it waits instead of a cancellation that ``takes_soft``.

    A task can only be cancelled; its coroutine gets any exception that we throw in.
    """

    def __init__(self, awaitable: Awaitable[object], takes_soft: Callable[[], bool]) -> None:
        self.awaitable = awaitable
        self.steps = awaitable.__await__()
        self.takes_soft = takes_soft

    def __await__(self) -> Self:
        return self

    __iter__ = __await__

    def __next__(self) -> object:
        return self.steps.send(None)

    def send(self, value: object) -> object:
        """Continue with the job."""
        return self.steps.send(value)

    def throw(self, kind: Any, value: object = None, trace: object = None) -> object:
        """Raise an exception in the job."""
        error = kind if isinstance(kind, BaseException) else value if isinstance(value, BaseException) else kind()
        if isinstance(error, asyncio.CancelledError) and self.takes_soft():
            error = SoftDeadlinePassed()
            _cancel_waits(self.awaitable)
        return self.steps.throw(error)

    def close(self) -> None:
        """End the job."""
        self.steps.close()


def _cancel_waits(awaitable: object) -> None:
    """Cancel what asyncio waits for in this coroutine, where it expects nothing but a cancellation.

    That is a ``TaskGroup`` at its end, and up to Python 3.11 ``wait_for``.
    """
    while awaitable is not None:
        frame: FrameType | None = getattr(awaitable, "cr_frame", None)
        if frame is not None and frame.f_code is asyncio.TaskGroup.__aexit__.__code__:
            frame.f_locals["self"]._abort()
        elif frame is not None and frame.f_code is asyncio.wait_for.__code__:
            waited = frame.f_locals.get("fut")
            if isinstance(waited, asyncio.Future):
                waited.cancel()
        awaitable = getattr(awaitable, "cr_await", None)
