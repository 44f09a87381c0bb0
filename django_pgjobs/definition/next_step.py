"""``Next``: the value that a job returns to continue with another step, in the same row. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from typing import final

from django_pgjobs.exceptions import InvalidJob


class Call(ABC):
    """A call that a job can continue with. ``BoundJob`` is the only one."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the job to call."""

    @abstractmethod
    def _as_step(self, delay: float | timedelta | None) -> Call:
        """Return the call with this delay. Raises ``InvalidJob`` for options that no next step may have."""

    @abstractmethod
    def _stored(self) -> str:
        """Return the columns that the step writes, as a JSON object. Raises ``InvalidJob``."""


@final
@dataclass(frozen=True, slots=True)
class Next:
    """Return this from a job to continue with a next step: ``return Next(publish.bind(month))``.

    The job's row becomes the next step: the same job, with the step's name, arguments and queue, and its own attempts.
    ``delay``: seconds or a ``timedelta`` before it starts, on the database's clock. Raises ``InvalidJob`` for anything
    but a call that ``bind`` made, for an invalid delay, and for options that the job keeps, such as its key.
    """

    step: Call
    delay: float | timedelta | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.step, Call):
            raise InvalidJob(f"Next takes a call, made by a definition's bind(…), not {self.step!r}")
        object.__setattr__(self, "step", self.step._as_step(self.delay))
        object.__setattr__(self, "delay", None)
