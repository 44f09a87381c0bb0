"""What an attempt comes to, as data: decided once by ``attempt``, written once by ``store``.

Layer 0. Each class is one fenced statement's worth of facts. ``seconds`` are counted by the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the retry history keeps it.

    ``kind`` is the qualified name of the exception type, ``chain`` the whole chain of causes as
    (kind, message) pairs with the raised one first, ``traceback`` the formatted, truncated text.
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


class Succeed(NamedTuple):
    """The body returned; ``result`` is its value already encoded as JSON text, or None for nothing kept.

    A tuple, since one is made per job: a frozen dataclass costs four times as much.
    """

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed and may be tried again after ``seconds``."""

    seconds: float
    failure: Failure
    cause: str = "failed"


@dataclass(frozen=True, slots=True)
class Snooze:
    """The job asks to come back after ``seconds``; the attempt does not count."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Abandon:
    """No attempt is left, or the job gave itself up. ``failure`` is None only for a bare ``raise Abandon()``."""

    reason: str
    failure: Failure | None = None
    cause: str | None = "failed"


@dataclass(frozen=True, slots=True)
class Cancel:
    """The job ends as cancelled. ``cause`` says why its attempt failed, where there is a ``failure``: an attempt may
    fail by itself, or pass its timeout, before the cancel gets to it.
    """

    reason: str = ""
    failure: Failure | None = None
    cause: str | None = "cancelled"


@dataclass(frozen=True, slots=True)
class Park:
    """The job cannot be run by this code: it is held until code with another ``fingerprint`` knows it."""

    reason: str
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """The job's name is paused: it is held until that is over, the attempt uncharged."""

    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """The job never started, or not by its own fault: it goes back as it was, the attempt uncharged."""

    why: str = ""
    failure: Failure | None = field(default=None)


Decision = Succeed | Retry | Snooze | Abandon | Cancel | Park | Hold | Release
