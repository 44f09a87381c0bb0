"""The parts of an attempt: the claimed run as an ``Item``, requests that come while it runs, the job to call.

Each job makes one of each of these, so they keep rarely used values as class attributes and make nothing in advance.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Protocol

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.context import Cancellation, JobContext, Reporter
from django_pgjobs.decisions import Decision, Failure
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.durable import Memory
from django_pgjobs.exceptions import Interrupt
from django_pgjobs.execution.idempotency import Recall
from django_pgjobs.serialization.failures import OUR_FILES

Definition = JobPolicy

OUR_FILES.add(__file__)


class Item(NamedTuple):
    """One run as its executor gets it: what to call (``kind``), and the facts of the claimed job."""

    run: int
    kind: str
    id: int
    claim_id: str
    name: str
    attempt: int
    max_attempts: int
    timeout: float | None
    payload: str | None
    headers: str | None
    queue: str
    description: str
    error: str
    run_at: float = 0.0
    is_async: bool = False
    cancelled: bool = False
    extras: Mapping[str, Any] | None = None
    until: float | None = None
    """The instant of ``clock.monotonic()`` at which the job's own deadline passes."""
    is_plain: bool = False
    """True if it is surely a body with attempts left, no headers, no extras and no deadline of its own."""


def items_of(group: Sequence[Any]) -> Iterator[Item]:
    """Return the items of a group in a frame: what its jobs have in common, then a column of each other field.

    Common are the fields of ``Item`` in their order, without ``run``, ``id``, ``payload`` and ``run_at``, which are the
    columns. All this is part of the protocol.
    """
    common, runs, ids, payloads, run_ats = group
    kind, claim, name, attempt, most, timeout, headers, queue, description, error, *others = map(repeat, common)
    columns = zip(
        runs, kind, ids, claim, name, attempt, most, timeout, payloads, headers, queue, description, error, run_ats,
        *others, strict=False,
    )  # fmt: skip
    return map(tuple.__new__, repeat(Item), columns)  # as ``Item._make``, which is a call for each


class RunControl:
    """Requests of the supervisor to a run that has started in this process: cancellation, an interrupt, a lease.

    ``interrupt`` is the exception to raise in the job. ``interrupted`` is True once it has been sent to the job's
    thread or task. ``started`` is the instant on the board, 0.0 without a board. ``item`` is the run, ``decision`` its
    result. Each job makes one of these, so rarely used values are class attributes until they are set.
    """

    requested: bool = False
    by: str = ""
    reason: str = ""
    interrupt: type[Interrupt] | None = None
    interrupted: bool = False
    decision: Decision | None = None

    def __init__(
        self, slot: int = 0, trusted_until: float = math.inf, started: float = 0.0, item: Item | None = None
    ) -> None:
        self.slot = slot
        self.trusted_until = trusted_until
        self.started = started
        self.item = item


ReporterOf = Callable[[Item], Reporter]
"""Returns what a job's ``progress`` calls, once its context is needed."""


class Guard(Protocol):
    """Calls the job's own code, so that interrupts can reach the job there and nowhere else."""

    def call(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call ``body`` with these arguments and return what it returns."""

    async def acall(self, body: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Any:
        """Await ``body`` with these arguments and return what it returns."""

    def reach(self, connect: Callable[[], object]) -> None:
        """Call ``connect``, which is not the job's own code, but may take long and can be interrupted."""

    def keeping_connections(self) -> AbstractContextManager[None]:
        """Return a block up to whose end an interrupted job keeps its thread's connections."""
        ...


class Unguarded:
    """Nothing interrupts a job that runs without executors."""

    def call(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call ``body``."""
        return body(*args, **kwargs)

    async def acall(self, body: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Any:
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

    headers: Mapping[str, Any] | None = None
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
        item: Item,
        args: list[Any],
        kwargs: dict[str, Any],
        control: Cancellation,
        guard: Guard,
        reporter_of: ReporterOf,
    ) -> None:
        self.definition = definition
        self.item = item
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
            fresh = JobContext(
                self.item, headers, self.reporter_of(self.item), self.control, self.began, self.error, memory
            )
            made = self.__dict__.setdefault("_context", fresh)  # a thread of the job's may ask at the same time
        return made
