"""What a running job may know of itself: its number, its attempt, its time left, whether it should stop.

Made by ``attempt`` for every start of a body or callback; holds no connection and writes nothing itself:
``progress`` goes to the reporter it was given, ``cancelled`` reads what the supervisor has told this process.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from django_pgjobs import clock, logs

if TYPE_CHECKING:
    from django_pgjobs.decisions import Failure
    from django_pgjobs.exceptions import JobInterrupted

MESSAGE_LIMIT = 200
"""Characters kept of a progress message."""

Reporter = Callable[[float, float | None, str], None]
"""Takes (n, total, message) of ``progress``; must not block for long."""


executor_name = ""
"""Which executor this process is; see ``name_executor``."""


def name_executor(name: str) -> None:
    """Say once, at the start, which executor this process is."""
    global executor_name
    executor_name = name


class Cancellation(Protocol):
    """What this process has been told about a wish to stop the job, and of its lease; it may change at any time."""

    requested: bool
    by: str
    reason: str
    trusted_until: float
    started: float
    interrupt: type[JobInterrupted] | None


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds ``job``, ``attempt``, ``claim`` and ``queue`` to every record; the caller's own ``extra`` wins."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge both extras (the standard adapter drops the caller's)."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class AttemptFacts(Protocol):
    """A job as far as every line about an attempt names it."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def claim_id(self) -> str: ...
    @property
    def description(self) -> str: ...


class JobFacts(AttemptFacts, Protocol):
    """What an attempt knows of its job: ``attempt.Item``."""

    @property
    def timeout(self) -> float | None: ...
    @property
    def run_at(self) -> float: ...
    @property
    def extras(self) -> str | None: ...
    @property
    def until(self) -> float | None: ...


class JobContext:
    """The first argument of callbacks, and of jobs declared with ``takes_context=True``.

    ``started`` is an instant of ``django_pgjobs.clock.monotonic()``; ``error`` is, in ``on_abandon``, what ended the
    job: its kind, message, chain of causes and traceback as the history has them, or one line of it in ``message``
    where the history does not have it any more; ``headers`` is what middleware captured at registering.
    """

    # One is made per job and most jobs look at none of it: so it refers to the facts and copies none.
    __slots__ = ("_cancellation", "_facts", "_log", "_reporter", "error", "headers", "started")

    def __init__(
        self,
        facts: JobFacts,
        headers: dict[str, Any],
        reporter: Reporter,
        cancellation: Cancellation,
        started: float,
        error: Failure | None = None,
    ) -> None:
        self._facts = facts
        self.headers = headers
        self._reporter = reporter
        self._cancellation = cancellation
        self.started = started
        self.error = error
        self._log: JobLogger | None = None

    def __repr__(self) -> str:
        return f"<JobContext {self.name} job={self.id} attempt={self.attempt}>"

    @property
    def id(self) -> int:
        """The job's primary key."""
        return self._facts.id

    @property
    def name(self) -> str:
        """The job's name."""
        return self._facts.name

    @property
    def queue(self) -> str:
        """The queue it was claimed from."""
        return self._facts.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1 on."""
        return self._facts.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts there are in all."""
        return self._facts.max_attempts

    @property
    def claim_id(self) -> str:
        """The claim under which this attempt runs; no other attempt has the same."""
        return self._facts.claim_id

    @property
    def timeout(self) -> float | None:
        """Seconds it may run, None for unlimited."""
        return self._facts.timeout

    @property
    def description(self) -> str:
        """What ``describe`` said of it at registering."""
        return self._facts.description

    @property
    def run_at(self) -> datetime:
        """The instant this attempt was due, in UTC."""
        return datetime.fromtimestamp(self._facts.run_at, tz=UTC)

    @property
    def cron_entry(self) -> str | None:
        """The name of the cron entry that registered this job, None if none did."""
        name: str | None = self._extra("cron_entry")
        return name

    @property
    def fire_at(self) -> datetime | None:
        """The instant that the cron entry meant, in UTC: the same in every attempt, however late the job starts."""
        fire = self._extra("fire_at")
        return None if fire is None else datetime.fromisoformat(fire).astimezone(UTC)

    def _extra(self, name: str) -> Any:
        extras = self._facts.extras
        return None if extras is None else json.loads(extras).get(name)

    @property
    def remaining_attempts(self) -> int:
        """Starts that are left, this one included: ``max_attempts`` on the first attempt, 1 on the last."""
        return max(self.max_attempts - self.attempt + 1, 0)

    @property
    def deadline(self) -> float | None:
        """The instant of ``django_pgjobs.clock.monotonic()`` at which the attempt is stopped, or None.

        The end of its timeout or the job's own deadline, whichever comes first.
        """
        until, timeout = self._facts.until, self.timeout
        if timeout is None:
            return until
        return self.started + timeout if until is None else min(self.started + timeout, until)

    def remaining(self) -> float | None:
        """Return the seconds left before the deadline, 0.0 when it has passed, None when there is none."""
        deadline = self.deadline
        return None if deadline is None else max(deadline - clock.monotonic(), 0.0)

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked this job to stop: raise ``Cancel()`` then; a job that returns has succeeded."""
        return self._cancellation.requested

    @property
    def cancelled_by(self) -> str:
        """Who asked, as stored with the request; empty when nobody did."""
        return self._cancellation.by

    @property
    def cancel_reason(self) -> str:
        """Why, as stored with the request; empty when not said."""
        return self._cancellation.reason

    @property
    def lease_is_trusted(self) -> bool:
        """Whether the worker could renew this job's lease in time: after False, somebody else may run the job too.

        It turns True again when the worker reaches the database and finds the job still its own.
        """
        return clock.monotonic() < self._cancellation.trusted_until

    @property
    def executor(self) -> str:
        """The process that runs the job, by the name of its database connections; empty outside of a worker."""
        return executor_name

    @property
    def log(self) -> JobLogger:
        """A logger under ``django_pgjobs.job`` whose records carry job, attempt, claim and queue."""
        if self._log is None:
            facts = {"job": self.id, "attempt": self.attempt, "claim": self.claim_id, "queue": self.queue}
            self._log = JobLogger(logging.getLogger("django_pgjobs.job"), facts)
        return self._log

    def progress(self, n: float, total: float | None = None, message: str = "") -> None:
        """Tell people how far the job is: ``n`` of ``total``, and what it is doing (≤ 200 characters kept).

        May be called as often as the job likes. Raises ``ValueError`` for what is no finite number ≥ 0.
        """
        text = str(message).replace("\0", "")[:MESSAGE_LIMIT].encode("utf-8", "replace").decode()
        self._reporter(_share(n), None if total is None else _share(total), text)


def _share(number: float) -> float:
    with suppress(TypeError, OverflowError):
        if math.isfinite(number) and number >= 0:
            return number if isinstance(number, int) else float(number)
    raise ValueError(f"progress needs finite numbers ≥ 0, not {_short(repr(number))}")


def _short(text: str) -> str:
    return text if len(text) <= MESSAGE_LIMIT else f"{text[:MESSAGE_LIMIT]}…"


_current: ContextVar[JobContext] = logs.running


def current_context() -> JobContext:
    """Return the context of the job that runs here. Raises ``RuntimeError`` outside of a job."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("No job is running here: current_context() works inside of a job only.") from None


activate: Callable[[JobContext], Token[JobContext]] = _current.set
"""Makes a context the current one; the token that it returns is for ``deactivate``."""

deactivate: Callable[[Token[JobContext]], None] = _current.reset
"""Undoes ``activate``."""
