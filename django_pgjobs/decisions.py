"""The decision about an attempt, as data: ``attempt`` makes it once, ``store`` writes it once.

Layer 0. Each class holds the facts of one fenced statement. The database's clock counts ``seconds``. ``outcome`` is how
the attempt ends, in one word that log lines and traces share: ``succeeded``, ``abandoned`` and ``cancelled`` end the
job too; after ``retried`` it runs again, and the attempt counts; after the others the attempt does not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from django_pgjobs.states import Ended, Outcome


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the retry history keeps it.

    ``kind``: the qualified name of the exception type. ``chain``: the whole chain of causes as (kind, message) pairs,
    the raised one first. ``traceback``: the formatted, truncated text.
    """

    kind: str
    message: str
    chain: tuple[tuple[str, str], ...] = ()
    traceback: str = ""

    @property
    def summary(self) -> str:
        """One line for lists: every link of the chain, the raised one first."""
        links = self.chain or ((self.kind, self.message),)
        return " ← ".join(_words(kind.rpartition(".")[2], message) for kind, message in links)


def _words(kind: str, message: str) -> str:
    line = " ".join(message.split())
    return f"{kind}: {line}" if kind and line else kind or line


class Succeeded(NamedTuple):
    """The body returned; ``result`` is its value, already JSON text, or None to keep nothing.

    A tuple, since every job makes one: a frozen dataclass costs four times as much.
    """

    result: str | None = None

    @property
    def outcome(self) -> str:
        """The word of ``Ended``."""
        return Outcome.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Stepped:
    """The job continues with its next step: its ``name``, and the columns that it writes as a JSON object."""

    outcome: ClassVar[str] = Ended.STEPPED
    name: str
    columns: str


@dataclass(frozen=True, slots=True)
class Retried:
    """The attempt failed and may be tried again after ``seconds``."""

    outcome: ClassVar[str] = Ended.RETRIED
    seconds: float
    failure: Failure
    cause: str = "failed"


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The job asks to come back after ``seconds``; the attempt does not count."""

    outcome: ClassVar[str] = Ended.SNOOZED
    seconds: float


@dataclass(frozen=True, slots=True)
class Suspended:
    """A durable function continues later where it stopped; the attempt does not count.

    ``memo``, ``kind``: what it waits for, by its name. ``seconds``: for how long, at most. ``event``: what ends the
    wait earlier. ``failure``, ``failures``: how its step failed, and how often by now. ``progressed``: it remembers
    more than at its claim. ``besides``: what other tasks of it wait for, themselves without ``besides``; the job goes
    on when the first of all of these is over.
    """

    outcome: ClassVar[str] = Ended.SUSPENDED
    memo: str
    kind: str
    seconds: float
    event: str | None = None
    failures: int = 0
    failure: Failure | None = None
    progressed: bool = False
    besides: tuple[Suspended, ...] = ()

    @property
    def all(self) -> tuple[Suspended, ...]:
        """All waits, this one first."""
        return (self, *self.besides)


@dataclass(frozen=True, slots=True)
class Abandoned:
    """No attempt is left, or the job gave itself up. ``failure`` is None only for a bare ``raise Abandon()``."""

    outcome: ClassVar[str] = Outcome.ABANDONED
    reason: str
    failure: Failure | None = None
    cause: str | None = "failed"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job ends as cancelled. ``cause``: why its attempt failed, if there is a ``failure``.

    An attempt may fail by itself, or pass its timeout, before the cancel reaches it.
    """

    outcome: ClassVar[str] = Outcome.CANCELLED
    reason: str = ""
    failure: Failure | None = None
    cause: str | None = "cancelled"


@dataclass(frozen=True, slots=True)
class Parked:
    """This code cannot run the job: hold it until code with another ``fingerprint`` knows it."""

    outcome: ClassVar[str] = "parked"
    reason: str
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """The job's name is paused: hold the job until the pause ends; the attempt is not charged.

    ``limited``: it is not paused, but an operator's limit must count it, and admit it, before it starts.
    """

    outcome: ClassVar[str] = "held"
    reason: str
    limited: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """The job never started, or stopped through no fault of its own: it is ready again; the attempt is not charged."""

    outcome: ClassVar[str] = Ended.RELEASED
    why: str = ""
    failure: Failure | None = field(default=None)


Unwritten = Succeeded | Stepped | Retried | Snoozed | Suspended | Abandoned | Cancelled | Parked | Held | Released
"""Decisions that a fenced statement still has to write."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The job's own transaction has written its success.

    ``marked``: all of it but the end of ``on_success``. ``stepped``: not its success, but its next step. ``step_in``:
    the queue and priority in which that waits for a claim, if they are known and no limit holds it.
    """

    marked: bool = False
    stepped: bool = False
    step_in: tuple[str, int] | None = None

    @property
    def outcome(self) -> str:
        """The word of ``Ended``."""
        return Ended.STEPPED if self.stepped else Outcome.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Lost:
    """The job found that its claim is lost: its own transaction, which was rolled back, or a step of it."""

    outcome: ClassVar[str] = "lost"


@dataclass(frozen=True, slots=True)
class InDoubt:
    """The job's own transaction may have committed; if it has not, the attempt comes to ``otherwise``."""

    otherwise: Unwritten

    @property
    def outcome(self) -> str:
        """The decision that ends the attempt if its transaction has not ended it."""
        return self.otherwise.outcome


Decision = Unwritten | Committed | Lost | InDoubt
