"""The context of a running job: its id, its attempt, its time left, whether it should stop.

``attempt`` makes one for a body or callback when it is first asked for. It holds no connection and writes nothing
itself: ``progress`` calls its reporter, and ``cancelled`` reads the latest message of the supervisor to this process.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from django.apps import apps
from django.db.models import Model, Q, QuerySet

from django_pgjobs import clock, logs
from django_pgjobs.durable import Durable, Memory
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.fields import is_among
from django_pgjobs.serialization.payload import revive
from django_pgjobs.states import BODY, GATHERING, NOT_NEEDED, Outcome
from django_pgjobs.values.built_in import is_built_in

if TYPE_CHECKING:
    from django_pgjobs.decisions import Failure
    from django_pgjobs.exceptions import Interrupt
    from django_pgjobs.values.stopping import Stopping

MESSAGE_LIMIT = 200
"""Characters of a progress message that are kept."""

Reporter = Callable[[float, float | None, str], None]
"""Takes (n, total, message) from ``progress``; must not block for long."""


executor_name = ""
"""The name of this process as an executor; see ``name_executor``."""


def name_executor(name: str) -> None:
    """Set the name of this process as an executor, once, at its start."""
    global executor_name
    executor_name = name


class Cancellation(Protocol):
    """The latest messages of the supervisor about a cancel of the job and its lease; may change at any time."""

    requested: bool
    by: str
    reason: str
    trusted_until: float
    started: float
    interrupt: type[Interrupt] | None

    @property
    def stopping(self) -> Stopping: ...


class JobContext(Durable):
    """The first argument of callbacks, and of jobs that annotate it so or declare ``takes_context=True``.

    ``database``: the alias of the job's database; None if the job is not stored. What it registers goes there unless
    your routers or ``database=…`` say otherwise. ``schema``: the schema of the job, if its worker serves
    [several](../how-to/schemas.md); else None. ``started``: an instant of ``django_pgjobs.clock.monotonic()``.
    ``error``: in ``on_abandon``, the error that ended the job, with kind, message, chain of causes and traceback as in
    the history; if the history no longer has it, ``message`` holds one line. ``headers``: what middleware captured at
    registering.
    """

    __slots__ = (
        "__weakref__", "_cancellation", "_facts", "_log", "_memory", "_reporter", "database", "error", "headers",
        "schema", "started",
    )  # fmt: skip

    def __init__(
        self,
        facts: logs.JobFacts,
        headers: dict[str, object],
        reporter: Reporter,
        cancellation: Cancellation,
        started: float,
        error: Failure | None = None,
        memory: Callable[[], Memory] | None = None,
        database: str | None = None,
        schema: str | None = None,
    ) -> None:
        self._facts = facts
        self._memory = memory
        self.headers = headers
        self.database = database
        self.schema = schema
        self._reporter = reporter
        self._cancellation = cancellation
        self.started = started
        self.error = error
        self._log: logs.JobLogger | None = None

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
        """The queue that the job was claimed from."""
        return self._facts.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1 on."""
        return self._facts.attempt

    @property
    def max_attempts(self) -> int:
        """Number of attempts that the job has in all."""
        return self._facts.max_attempts

    @property
    def callback(self) -> str:
        """Name of the callback that runs: ``on_success``, ``on_abandon`` or ``on_cancel``; empty while the job itself
        runs."""
        return "" if self._facts.kind == BODY else self._facts.kind

    @property
    def claim_id(self) -> str:
        """The claim under which this attempt runs, unique to it."""
        return self._facts.claim_id

    @property
    def timeout(self) -> float | None:
        """Number of seconds that the attempt may run, None for unlimited."""
        return self._facts.timeout

    @property
    def description(self) -> str:
        """The description that registering stored."""
        return self._facts.description

    @property
    def run_at(self) -> datetime:
        """The instant at which this attempt was due, in UTC."""
        return self._facts.run_at.astimezone(UTC)

    @property
    def cron_entry(self) -> str | None:
        """The name of the cron entry that registered this job, None if none did."""
        name: str | None = self._extra("cron_entry")
        return name

    @property
    def fire_at(self) -> datetime | None:
        """The scheduled instant of the cron entry, in UTC: the same in every attempt, however late the job starts."""
        fire = self._extra("fire_at")
        return None if fire is None else datetime.fromisoformat(fire).astimezone(UTC)

    @property
    def has_origin(self) -> bool:
        """True if code of the project registered this job, or the one for which this package works here.

        False for a job that a schedule has fired, for a notice of failures and an action on many jobs, and for what
        undoes such a job, wakes it or cancels its members: there was no caller from whom middleware could have captured
        headers.
        """
        if self.headers:
            return True
        return not (self.cron_entry or is_built_in(self.name) or self.is_compensation)

    def _remembered(self) -> Memory:
        if self._memory is None:
            raise InvalidJob(f"{self.name}: only a job with a row, run by a worker or run_jobs(), remembers steps")
        return self._memory()

    def _extra(self, name: str) -> Any:
        extras = self._facts.extras
        return None if extras is None else extras.get(name)

    @property
    def remaining_attempts(self) -> int:
        """The attempts left, including this one: ``max_attempts`` on the first attempt, 1 on the last."""
        return max(self.max_attempts - self.attempt + 1, 0)

    def remaining(self) -> float | None:
        """Return the seconds until the worker stops the attempt, 0.0 after that; None if it may run forever.

        It stops it at the end of its timeout or at the job's deadline, whichever comes first.
        """
        by_timeout = None if self.timeout is None else self.started + self.timeout
        ends = [instant for instant in (self._facts.until, by_timeout) if instant is not None]
        return max(min(ends) - clock.monotonic(), 0.0) if ends else None

    @property
    def cancelled(self) -> bool:
        """True if this job was asked to cancel: then raise ``Cancel()``; a job that returns has succeeded."""
        return self._cancellation.requested

    @property
    def cancelled_by(self) -> str:
        """The user who asked the job to stop, as stored with the request; empty without a request."""
        return self._cancellation.by

    @property
    def cancel_reason(self) -> str:
        """Why, as stored with the request; empty if no reason was given."""
        return self._cancellation.reason

    @property
    def stopping(self) -> Stopping:
        """True while the job is to stop: then store how far it is, and raise ``Release()``.

        It runs again at once, elsewhere, uncharged; ``each`` does that by itself. Says ``why``, how much time is
        ``remaining()``, and has an ``event`` for ``async def`` jobs.
        """
        return self._cancellation.stopping

    @property
    def lease_is_trusted(self) -> bool:
        """True if the worker renewed this job's lease in time. If False, another worker may run the job too.

        It turns True again when the worker reaches the database and finds that it still has the job.
        """
        return clock.monotonic() < self._cancellation.trusted_until

    @property
    def inputs(self) -> Inputs:
        """Results of what the job needed: the jobs of ``after=`` or of its flow, or the batch that it comes after."""
        return Inputs(self.id, self.database)

    @property
    def is_compensation(self) -> bool:
        """True if this job undoes another, or a step of another."""
        return self._target() is not None

    def _target(self) -> list[Any] | None:
        options = self._extra("options")
        return options.get("target") if isinstance(options, dict) else None

    @property
    def target(self) -> Target:
        """The job or step that this job undoes. Raises ``RuntimeError`` in a job that undoes nothing."""
        found = self._target()
        if not found:
            raise RuntimeError(f"{self.name} undoes nothing: only what an undo calls has a target.")
        return Target(int(found[0]), str(found[1]), self.database)

    @property
    def executor(self) -> str:
        """The process that runs the job, by the name of its database connections; empty outside a worker."""
        return executor_name

    @property
    def log(self) -> logs.JobLogger:
        """A logger under ``django_pgjobs.job`` whose records carry job, attempt, claim and queue."""
        if self._log is None:
            facts = {"job": self.id, "attempt": self.attempt, "claim": self.claim_id, "queue": self.queue}
            self._log = logs.JobLogger(logging.getLogger("django_pgjobs.job"), facts)
        return self._log

    def progress(self, n: float, total: float | None = None, message: str = "") -> None:
        """Report how far the job is: ``n`` of ``total``, and what it is doing, cut to 200 characters.

        Call it as often as you like; it does not block. Raises ``ValueError`` unless the numbers are finite and ≥ 0.
        """
        text = str(message).replace("\0", "")
        text = text if len(text) <= MESSAGE_LIMIT else f"{text[: MESSAGE_LIMIT - 1]}…"
        text = text.encode("utf-8", "replace").decode()
        self._reporter(_share(n), None if total is None else _share(total), text)


FAILED = Q(outcome=Outcome.ABANDONED) | (Q(outcome=Outcome.CANCELLED) & ~Q(cancel_by=NOT_NEEDED))
"""The condition of jobs that were abandoned, or cancelled though they were needed."""


class Inputs:
    """The jobs that a job needed, as querysets of ``Job``: each reads the database when you iterate it."""

    __slots__ = ("_job_id", "_using")

    def __init__(self, job_id: int, using: str | None) -> None:
        self._job_id = job_id
        self._using = using

    def __repr__(self) -> str:
        return f"<Inputs of job {self._job_id}>"

    @property
    def jobs(self) -> QuerySet[Any]:
        """The jobs that it needed; for what comes after a batch, the batch."""
        return self._all().filter(is_among("id", self._needed())).order_by("pk")

    @property
    def members(self) -> QuerySet[Any]:
        """The members of the batches and flows among them."""
        return self._all().filter(is_among("parent_id", self._needed()), parent__isnull=False).order_by("pk")

    def failed(self) -> QuerySet[Any]:
        """Those of both that were abandoned or cancelled, without batches and flows themselves.

        A member that was cancelled because it was not needed has not failed.
        """
        bad = FAILED & ~Q(name__in=GATHERING)
        found = [jobs.filter(bad).order_by().values("pk") for jobs in (self.jobs, self.members)]
        return self._all().filter(is_among("id", found[0].union(found[1], all=True))).order_by("pk")

    def _needed(self) -> QuerySet[Any, Any]:
        links = apps.get_model("pgjobs", "Link").objects.filter(job_id=self._job_id)
        return links.values("parent_id")

    def _all(self) -> QuerySet[Model]:
        jobs = apps.get_model("pgjobs", "Job").objects.using(self._using)
        return jobs


class Target:
    """The target of a compensation. ``job_id``: a job; ``step``: the name of its step, empty for all of the job."""

    __slots__ = ("_using", "job_id", "step")

    def __init__(self, job_id: int, step: str, using: str | None) -> None:
        self.job_id = job_id
        self.step = step
        self._using = using

    def __repr__(self) -> str:
        return f"<Target {self.id}>"

    @property
    def id(self) -> str:
        """A text that identifies it, for an idempotency key: always the same, of no other target."""
        return f"{self.job_id}/{self.step}" if self.step else str(self.job_id)

    @property
    def job(self) -> Any:
        """The ``Job``. Raises ``Job.DoesNotExist``."""
        return apps.get_model("pgjobs", "Job").objects.using(self._using).get(pk=self.job_id)

    @property
    def result(self) -> Any:
        """Value that the step or the job returned; None for a step of a job that continued with the next one."""
        if not self.step:
            return revive(self.job.result)
        memos = apps.get_model("pgjobs", "Memo").objects.using(self._using).filter(job_id=self.job_id, name=self.step)
        return revive(memos.values_list("result", flat=True).first())


def _share(number: float) -> float:
    with suppress(TypeError, OverflowError):
        if math.isfinite(number) and number >= 0:
            return number if isinstance(number, int) else float(number)
    raise ValueError(f"progress needs finite numbers ≥ 0, not {_short(repr(number))}")


def _short(text: str) -> str:
    return text if len(text) <= MESSAGE_LIMIT else f"{text[:MESSAGE_LIMIT]}…"


class Running(Protocol):
    """A job that runs and may need no ``JobContext``: ``context`` makes it when first asked for."""

    @property
    def job(self) -> logs.JobFacts: ...
    @property
    def context(self) -> JobContext: ...


_current: ContextVar[JobContext | Running] = logs.running


def current_context() -> JobContext:
    """Return the context of the job that runs in this thread or task. Raises ``RuntimeError`` outside a job."""
    try:
        job = _current.get()
    except LookupError:
        raise RuntimeError("No job is running here: call current_context() inside a job.") from None
    return job if isinstance(job, JobContext) else job.context


def running_alias() -> str | None:
    """Return the database of the job that runs here, by its worker's alias; None outside of workers."""
    return getattr(getattr(_current.get(None), "memories", None), "using", None)


activate: Callable[[JobContext | Running], Token[JobContext | Running]] = _current.set
"""Makes a job, or its context, the current one; returns the token for ``deactivate``."""

deactivate: Callable[[Token[JobContext | Running]], None] = _current.reset
"""Undoes ``activate``."""
