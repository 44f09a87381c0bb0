"""Messages between supervisor and executors. Each message is one fact or one order; ``channel`` carries it.

The receivers ``match`` every class of ``FromExecutor`` or ``ToExecutor``: mypy refuses a message that they forget. A
message names runs, never jobs. It is sent for many jobs where many may have something to say: one per job would cost
more than the rest of its way.

On the wire a message is ``[tag, *fields]``. Raise ``channel.PROTOCOL`` when a tag, or the meaning or number of its
fields, changes. ``READY`` never changes: an executor of another version introduces itself by it, and the supervisor
stops. A receiver ignores other messages that it does not know, by their tag or by the number of their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, TypeVar, get_args

Message = TypeVar("Message")

SignalEvent = tuple[str, dict[str, object]]
"""A signal of a durable write, and its fields."""


class Hello(TypedDict):
    """The first message of an executor. ``listens``: the durable writes that it wants, see ``Interest``.

    ``identity``: of its database; empty if its jobs are in several, see ``Reached``.
    """

    protocol: int
    version: str
    build: str
    pid: int
    identity: list[object]
    jobs: int
    rss: int
    listens: list[str]


# From an executor


@dataclass(frozen=True, slots=True)
class Ready:
    """It has loaded the project's code and reaches its database."""

    tag: ClassVar = "READY"
    hello: Hello


@dataclass(frozen=True, slots=True)
class Reached:
    """It has reached one more of several databases, and which one that is."""

    tag: ClassVar = "REACHED"
    alias: str
    identity: list[object]


@dataclass(frozen=True, slots=True)
class BootFailed:
    """It ends before it is ready, because it cannot use its database. ``away``: the database may come back."""

    tag: ClassVar = "BOOT_FAILED"
    why: str
    away: bool


@dataclass(frozen=True, slots=True)
class Successes:
    """Successes as three columns: which runs, how many µs each took, the encoded result of each."""

    tag: ClassVar = "SUCCEEDED"
    runs: list[int]
    micros: list[int]
    results: list[str | None]


@dataclass(frozen=True, slots=True)
class Decided:
    """Other outcomes. Each item is a run, its seconds, and the values of ``pack_decision``."""

    tag: ClassVar = "DONE"
    items: list[list[Any]]


@dataclass(frozen=True, slots=True)
class RunsReleased:
    """These runs have never started. ``why``: *asked* by ``ReleaseRuns``, came too *late*, or *drain*."""

    tag: ClassVar = "RELEASED"
    runs: list[int]
    why: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A report of a running job about itself."""

    tag: ClassVar = "PROGRESS"
    run: int
    progress: dict[str, object]


@dataclass(frozen=True, slots=True)
class Logged:
    """Lines that a running job has logged, as ``execution.log_lines`` has them; before its outcome."""

    tag: ClassVar = "LOGGED"
    run: int
    lines: list[list[object]]


@dataclass(frozen=True, slots=True)
class Interest:
    """The durable writes that it wants from now on: outcomes of ends, and other events by their names."""

    tag: ClassVar = "INTEREST"
    kinds: list[str]


@dataclass(frozen=True, slots=True)
class Notified:
    """The receivers of this batch of events have been called."""

    tag: ClassVar = "NOTIFIED"
    batch: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A thread got an exception, after it had been held back for so long; with a ``kind``, one from outside."""

    tag: ClassVar = "INTERRUPTED"
    held_seconds: float
    kind: str


@dataclass(frozen=True, slots=True)
class StackRead:
    """The stack of a run's thread, just before the interrupt at its deadline."""

    tag: ClassVar = "STACK"
    run: int
    stack: str


@dataclass(frozen=True, slots=True)
class StackTaken:
    """The answer to ``ReadStack``; empty if the run is in no code of its job."""

    tag: ClassVar = "TAKEN"
    run: int
    stack: str


@dataclass(frozen=True, slots=True)
class Learned:
    """It has found a job that its code did not know when it started, with these ``JobPolicy.traits``."""

    tag: ClassVar = "LEARNED"
    name: str
    traits: list[str]


@dataclass(frozen=True, slots=True)
class Bye:
    """It leaves, with nothing left to run; ``rss`` is the most memory that it has used, in bytes."""

    tag: ClassVar = "BYE"
    rss: int


FromExecutor = (
    Ready
    | Reached
    | BootFailed
    | Successes
    | Decided
    | RunsReleased
    | Progress
    | Logged
    | Interest
    | Notified
    | Interrupted
    | StackRead
    | StackTaken
    | Learned
    | Bye
)


# To an executor


@dataclass(frozen=True, slots=True)
class RunJobs:
    """Jobs to run, none of which may start after ``start_by``, in the groups of ``run_groups``."""

    tag: ClassVar = "RUN"
    start_by: float
    groups: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class ReleaseRuns:
    """Release those of these runs that have not started. Answered by ``RunsReleased``, even if there are none."""

    tag: ClassVar = "RELEASE"
    runs: list[int]


@dataclass(frozen=True, slots=True)
class StopRun:
    """Take a rung of the ladder that is the executor's to take: set the job's flag, or interrupt it."""

    tag: ClassVar = "STOP"
    run: int
    rung: str
    cause: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReadStack:
    """Say where this run is. Answered by ``StackTaken``."""

    tag: ClassVar = "WHERE"
    run: int


@dataclass(frozen=True, slots=True)
class TrustUntil:
    """Until this instant the claims of the worker are trusted. ``database``: the home, as jobs name it."""

    tag: ClassVar = "TRUST"
    until: float
    database: str = ""


@dataclass(frozen=True, slots=True)
class Notify:
    """Call the receivers of these events, in order, and confirm the batch."""

    tag: ClassVar = "NOTIFY"
    batch: int
    events: list[SignalEvent]


@dataclass(frozen=True, slots=True)
class Drain:
    """Start nothing more, release what has not started, and leave after the last outcome."""

    tag: ClassVar = "DRAIN"


@dataclass(frozen=True, slots=True)
class StopSoon:
    """Tell jobs why this process is about to stop, and at which instant it is killed; None: it waits for them."""

    tag: ClassVar = "SOON"
    why: str
    until: float | None


ToExecutor = RunJobs | ReleaseRuns | StopRun | ReadStack | TrustUntil | Notify | StopSoon | Drain


# The wire

Constructors = Mapping[str, tuple[Callable[..., Message], int]]
"""Tag → how to make the message, and from how many fields."""


def _constructors(union: object) -> dict[str, tuple[Any, int]]:
    return {each.tag: (each, len(each.__match_args__)) for each in get_args(union)}


_FROM_EXECUTOR: Constructors[FromExecutor] = _constructors(FromExecutor)
_TO_EXECUTOR: Constructors[ToExecutor] = _constructors(ToExecutor)


def encode(message: FromExecutor | ToExecutor) -> list[Any]:
    """Return ``message`` as it travels."""
    return [message.tag, *[getattr(message, name) for name in message.__match_args__]]


def from_executor(values: object) -> FromExecutor | None:
    """Return the message that an executor sent as ``values``; None if they are none. Raises nothing."""
    return _decoded(values, _FROM_EXECUTOR)


def to_executor(values: object) -> ToExecutor | None:
    """Return the message that the supervisor sent as ``values``; None if they are none. Raises nothing."""
    return _decoded(values, _TO_EXECUTOR)


def _decoded(values: object, constructors: Constructors[Message]) -> Message | None:
    # Not by ``match``, which costs thrice as much, and this is done for every frame.
    if isinstance(values, list) and values and isinstance(values[0], str) and values[0] in constructors:
        make, count = constructors[values[0]]
        if len(values) == 1 + count:
            return make(*values[1:])
    return None
