"""``Queue``: what producers and operators do with a whole queue.

::

    mail = Queue("mail")
    mail.pause(by="anna", reason="The server moves.")
    mail.status().jobs["ready"]
    mail.job("welcome:7").arguments
    mail.jobs("parked").retry(by="anna")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.models import Q

from django_pgjobs.conf import get_conf
from django_pgjobs.context import JobContext
from django_pgjobs.definition.allowed import check_allowed_queue
from django_pgjobs.definition.validation import check_queue
from django_pgjobs.exceptions import InvalidJob, JobDoesNotExist
from django_pgjobs.models import Job, LimitOverride, QueueState
from django_pgjobs.queues import limits, pauses
from django_pgjobs.registering.destination import routed
from django_pgjobs.registering.token_bucket import of_this_process
from django_pgjobs.states import Hold, JobState, Outcome
from django_pgjobs.values.asynchronous import asynchronous
from django_pgjobs.values.setting_rules import InvalidOption

if TYPE_CHECKING:
    from datetime import timedelta

    from django_pgjobs.models.jobs import JobQuerySet
    from django_pgjobs.steering.batching import Steered
    from django_pgjobs.steering.trail import Until
    from django_pgjobs.values.by_queue import Rate

MOST = 100_000
"""The bound of a count."""

UNFINISHED: Final = [state for state in JobState if state.value not in list(Outcome)]


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue at one moment.

    ``pause``: its pause, None if it is not paused. ``jobs``: state → how many unfinished jobs, counted up to 100,000.
    """

    pause: QueueState | None
    jobs: dict[str, int]


class Queue:
    """One queue, given by name or by the context of a job that runs in it.

    ``database``: an alias; if left out, that of the job whose context is given, else your routers' choice, else that
    of the job that runs here.

    ``job``, ``jobs``, ``status`` and ``cancel`` take tokens if the setting ``REGISTRATION_RATE`` names the queue, from
    the bucket of its registrations. All but ``cancel`` wait for them, for a few seconds at most. Raises ``InvalidJob``
    for an invalid name, a queue that ``QUEUES`` does not allow, or an unknown alias.
    """

    def __init__(self, queue: str | JobContext, database: str | None = None) -> None:
        try:
            self.name = check_queue(queue.queue if isinstance(queue, JobContext) else queue)
            check_allowed_queue(self.name, get_conf().queues)
        except InvalidOption as error:
            raise InvalidJob(str(error)) from None
        here = queue.database if isinstance(queue, JobContext) else None
        self.database = database or here or routed(Job, {"queue": self.name})
        if self.database not in connections.settings:
            raise InvalidJob(f"there is no database {self.database!r}")

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Queue) and (self.name, self.database) == (other.name, other.database)

    def __hash__(self) -> int:
        return hash((self.name, self.database))

    # Pausing

    def pause(self, *, by: object = None, reason: str = "", until: Until = None) -> QueueState:
        """Stop jobs of this queue from starting, in the caller's transaction; return the pause.

        Running jobs continue; every worker honours it within a second. ``by``: a user or a text. ``until``: an aware
        instant, or seconds or a ``timedelta`` from now, by the database's clock; None until the queue is resumed.
        Pausing again replaces who, why and until when. Raises ``InvalidJob`` for an end in the past. Repeatable.
        """
        return pauses.pause("queue", self.name, by=by, reason=reason, until=until, database=self.database)

    def resume(self, *, by: object = None, reason: str = "") -> bool:
        """Resume the queue, in the caller's transaction; return whether it was paused. Repeatable."""
        return pauses.resume("queue", self.name, by=by, reason=reason, database=self.database)

    @property
    def paused(self) -> QueueState | None:
        """The current pause of the queue, None if it is not paused; reads the database each time."""
        return pauses.current(self.database).filter(kind="queue", name=self.name).first()

    apause = asynchronous(pause)

    aresume = asynchronous(resume)

    # Its limit

    def limit(
        self,
        concurrency: int | None = None,
        rate: int | None = None,
        per: float | timedelta | None = None,
        *,
        by: object = None,
        reason: str = "",
        until: Until = None,
    ) -> LimitOverride:
        """Set another limit in place of the code's, in the caller's transaction; return it.

        Every worker goes by it within a second or two; no running job is stopped. A number that is left out stays the
        code's; ``per`` is that of the code's rate, or 60. ``by``, ``reason`` and ``until`` are those of ``pause``.
        Setting it again replaces all of it. Raises ``InvalidJob`` for a number that no ``Limit`` may have. Repeatable.
        """
        return limits.override(
            "queue", self.name, concurrency=concurrency, rate=rate, per=per, by=by, reason=reason, until=until,
            database=self.database,
        )  # fmt: skip

    def restore_limit(self, *, by: object = None, reason: str = "") -> bool:
        """Let the code's limit apply again; return whether another one was in force. Repeatable."""
        return limits.restore("queue", self.name, by=by, reason=reason, database=self.database)

    @property
    def limited(self) -> LimitOverride | None:
        """The limit in place of the code's, None if there is none; reads the database each time."""
        return limits.current(self.database).filter(kind="queue", name=self.name).first()

    alimit = asynchronous(limit)

    arestore_limit = asynchronous(restore_limit)

    # Its jobs

    def status(self) -> QueueStatus:
        """Return the pause of the queue, and how many jobs it has in each state. Raises ``RateLimited``."""
        if rate := self._rate():
            of_this_process.take_patiently(self.name, rate, rate.status)
        return self._status()

    def job(self, job: int | str) -> Job:
        """Return an unfinished job of this queue, by its id or by the key it holds.

        Raises ``JobDoesNotExist``, also for an ended job, and ``RateLimited``.
        """
        if rate := self._rate():
            of_this_process.take_patiently(self.name, rate, rate.status)
        return self._job(job)

    def jobs(self, *states: str) -> JobQuerySet:
        """Return the jobs of this queue in these states, by time, then id; without states, those that have not ended.

        Filter them further, read them, or steer all of them: ``jobs("parked").retry(by=…)``. Reading them sorts them
        all, also for a slice. Raises ``ValueError`` for a word that is no state, and ``RateLimited``.
        """
        if rate := self._rate():
            of_this_process.take_patiently(self.name, rate, rate.list)
        return self._jobs(states)

    def cancel(self, job: int | str, *, mode: str = "ask", by: object = None, reason: str = "") -> Steered:
        """Cancel an unfinished job of this queue, by its id or by the key it holds; see ``Job.cancel``.

        Raises ``JobDoesNotExist``, also for an ended job, and ``RateLimited`` without waiting. The result says *busy*
        if another transaction kept the row locked; the job is not cancelled then. Repeatable. To cancel many, use
        ``jobs().cancel()``.
        """
        if rate := self._rate():
            of_this_process.take({self.name: (rate, rate.cancel)})
        steered = self._job(job).cancel(mode=mode, by=by, reason=reason)
        if steered.skipped.keys() & _GONE:
            raise JobDoesNotExist(self._missing(job))
        return steered

    async def astatus(self) -> QueueStatus:
        """``status`` for async callers; blocks no thread while it waits for tokens."""
        if rate := self._rate():
            await of_this_process.atake_patiently(self.name, rate, rate.status)
        return await sync_to_async(self._status)()

    async def ajob(self, job: int | str) -> Job:
        """``job`` for async callers; blocks no thread while it waits for tokens."""
        if rate := self._rate():
            await of_this_process.atake_patiently(self.name, rate, rate.status)
        return await sync_to_async(self._job)(job)

    async def ajobs(self, *states: str) -> JobQuerySet:
        """``jobs`` for async callers; blocks no thread while it waits for tokens."""
        if rate := self._rate():
            await of_this_process.atake_patiently(self.name, rate, rate.list)
        return self._jobs(states)

    acancel = asynchronous(cancel)

    def _rate(self) -> Rate | None:
        return get_conf().registration_rate.of(self.name)

    def _status(self) -> QueueStatus:
        return QueueStatus(self.paused, {str(state): self._jobs((state,))[:MOST].count() for state in UNFINISHED})

    def _job(self, job: int | str) -> Job:
        if isinstance(job, bool) or not isinstance(job, int | str):
            raise TypeError(f"name a job by its id (int) or its key (str), not by {job!r}")
        which = {"pk": job} if isinstance(job, int) else {"unique_key": job}
        # Not first(): ordered by id, a planner that expects one job walks all of them.
        jobs = Job.objects.using(self.database).filter(queue=self.name, finished_at=None, **which)[:1]
        found = [] if isinstance(job, str) and not job.isprintable() else list(jobs)  # a key is printable
        if not found:
            raise JobDoesNotExist(self._missing(job))
        return found[0]

    def _missing(self, job: int | str) -> str:
        return f"Queue {self.name!r} has no unfinished job {job!r}."

    def _jobs(self, states: tuple[str, ...]) -> JobQuerySet:
        for state in states:
            if state not in list(JobState):
                raise ValueError(f"no job is {state!r}: its states are {', '.join(JobState)}")
        # Jobs with a hold and jobs without one have different indexes; the words find the better one of the first.
        unfinished = Q(hold=None, finished_at=None) | Q(hold__in=list(Hold), finished_at=None)
        asked = Q(state__in=states) if states else unfinished
        return Job.objects.using(self.database).filter(asked, queue=self.name).order_by("run_at", "pk")


_GONE = {JobState.SUCCEEDED, JobState.CANCELLED, JobState.ABANDONED, "unknown"}
