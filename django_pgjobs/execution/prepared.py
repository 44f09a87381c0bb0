"""The parts of an attempt: the requests that come while it runs, and the job to call.

Each job makes one of each of these, so they keep rarely used values as class attributes and make nothing in advance.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.context import JobContext, Reporter
from django_pgjobs.decisions import Decision, Failure
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.durable import Memory
from django_pgjobs.exceptions import Interrupt
from django_pgjobs.serialization.failures import OUR_FILES
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.keys import FoundResult
from django_pgjobs.values import stopping

if TYPE_CHECKING:
    from django_pgjobs.execution.log_lines import JobLines

Definition = JobPolicy

OUR_FILES.add(__file__)


class RunControl:
    """Requests of the supervisor to a run in this process: cancellation, an interrupt, a lease.

    ``interrupt`` is the exception to raise in the job. ``interrupted`` is True once it has been sent to the job's
    thread or task. ``run`` is the run's number, ``slot`` its place on the board, ``started`` the instant there, 0.0
    without a board; ``decision`` is its result. Each job makes one of these, so values are class attributes until they
    are set.
    """

    run: int = 0
    slot: int = 0

    requested: bool = False
    by: str = ""
    reason: str = ""
    interrupt: type[Interrupt] | None = None
    interrupted: bool = False
    decision: Decision | None = None
    trusted_until: float = math.inf
    started: float = 0.0
    lines: JobLines | None = None
    """The lines of the job, if they are kept."""

    _stopping: stopping.Stopping | None = None

    @property
    def stopping(self) -> stopping.Stopping:
        """The job's own notice that it is to stop, made when it is first asked for."""
        made = self._stopping
        if made is None:  # the control thread may ask at the same time
            made = self.__dict__.setdefault("_stopping", stopping.of_this_process.of_job())
        return made


ReporterOf = Callable[[RunControl], Reporter]
"""Returns what a job's ``progress`` calls, once its context is needed."""


Recall = Callable[[int, Sequence[str], str], FoundResult | None]
"""Takes a job's id, its names and a key, returns the stored result."""


class Guard(Protocol):
    """Calls the job's own code, so that interrupts can reach the job there and nowhere else."""

    def call(self, body: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """Call ``body`` with these arguments and return what it returns."""

    async def acall(self, body: Callable[..., Awaitable[object]], /, *args: object, **kwargs: object) -> Any:
        """Await ``body`` with these arguments and return what it returns."""

    def reach(self, connect: Callable[[], object]) -> None:
        """Call ``connect``, which is not the job's own code, but may take long and can be interrupted."""

    def keeping_connections(self) -> AbstractContextManager[None]:
        """Return a block up to whose end an interrupted job keeps its thread's connections."""
        ...


class Unguarded:
    """Nothing interrupts a job that runs without executors."""

    def call(self, body: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """Call ``body``."""
        return body(*args, **kwargs)

    async def acall(self, body: Callable[..., Awaitable[object]], /, *args: object, **kwargs: object) -> object:
        """Await ``body``."""
        return await body(*args, **kwargs)

    def reach(self, connect: Callable[[], object]) -> None:
        """Call ``connect``."""
        connect()

    def keeping_connections(self) -> AbstractContextManager[None]:
        """Return an empty block."""
        return nullcontext()


UNGUARDED = Unguarded()


class Transaction(Protocol):
    """Runs an atomic job inside the transaction that also ends it: see ``atomic_end``."""

    def run(self, prepared: Prepared, body: Callable[[Prepared], decide.Succeeded | decide.Stepped]) -> Decision:
        """Return what ``body`` came to, already committed; raise what kept it from that."""
        ...


class MemoryOpener(Protocol):
    """Opens the memory of a durable function: see ``durable``."""

    def of(self, prepared: Prepared) -> Memory:
        """Return the memory of a running job, always the same."""
        ...


class Prepared:
    """A job that is ready to be called. Like ``RunControl``, it keeps rarely used values as class attributes."""

    headers: Mapping[str, object] | None = None
    error: Failure | None = None
    recall: Recall | None = None
    transaction: Transaction | None = None
    memories: MemoryOpener | None = None
    memory: Any = None
    """The memos of the job, once it has asked for them: a ``durable.DurableMemory``."""

    lane: object = None
    """The task of an event loop, or else the thread, in which the body runs; None: not known."""

    outer_blocks = 0
    """Number of ``atomic()`` blocks that are open around the job; none, except in a test."""

    decision: Decision | None = None
    """The decision about the attempt, once known. It stands, regardless of what happens to the thread afterwards."""

    in_doubt = False
    """True if the job's transaction may have committed although it raised an exception."""

    _context: JobContext | None = None

    def __init__(
        self,
        definition: Definition,
        job: ClaimedJob,
        args: list[object],
        kwargs: dict[str, object],
        control: RunControl,
        guard: Guard,
        reporter_of: ReporterOf,
    ) -> None:
        self.definition = definition
        self.job = job
        self.args = args
        self.kwargs = kwargs
        self.control = control
        self.guard = guard
        self.reporter_of = reporter_of
        self.began = control.started or clock.monotonic()

    @property
    def context(self) -> JobContext:
        """The job's context, always the same. It is made when first asked for: most jobs need none."""
        made = self._context
        if made is None:
            headers = dict(self.headers or {})
            memory = None if self.memories is None else partial(self.memories.of, self)
            reporter = self.reporter_of(self.control)
            database = getattr(self.memories, "using", None)
            schema = getattr(self.memories, "schema", None)
            fresh = JobContext(
                self.job, headers, reporter, self.control, self.began, self.error, memory, database, schema
            )
            made = self.__dict__.setdefault("_context", fresh)  # a thread of the job's may ask at the same time
        return made
