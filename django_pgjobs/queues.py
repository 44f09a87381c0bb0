"""A queue as its producers see it: list its jobs, look at one, cancel one.

::

    mail = Queue("mail")
    mail.status("welcome:7").state   # "waiting"
    mail.cancel("welcome:7")
    for run_at, id, label in mail.list(): ...

It covers unfinished jobs only: an ended job has left the queue. If the setting ``REGISTRATION_RATE`` names the queue,
each call takes tokens from the same bucket as registering. For more, or for all queues, use ``Job.objects``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final, Literal

from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import connections, router
from django.db.models import BooleanField, ExpressionWrapper, Q
from django.db.models.functions import Now

from django_pgjobs.conf import get_conf
from django_pgjobs.context import JobContext
from django_pgjobs.definition import options
from django_pgjobs.definition.options import BackoffRule, InvalidOption
from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob, JobDoesNotExist, UnreadablePayload
from django_pgjobs.models import Job
from django_pgjobs.pausing import pauses_of
from django_pgjobs.registering.token_bucket import of_this_process
from django_pgjobs.serialization import payload
from django_pgjobs.states import JobState
from django_pgjobs.steering.batching import Steered
from django_pgjobs.store import gating
from django_pgjobs.store.database import on
from django_pgjobs.store.gating import ListedJob
from django_pgjobs.values.by_queue import Rate

WAITING: Final = "waiting"
RUNNABLE: Final = "runnable"
RUNNING: Final = "running"

PAGE = 1000
"""Number of jobs that ``list`` reads per page."""

_DUE = ExpressionWrapper(Q(run_at__lte=Now()), output_field=BooleanField())


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """An unfinished job of a queue, as read at one moment.

    ``state``: *waiting* until it is due, and while it is held or paused; *runnable* once a worker may claim it;
    *running*. ``arguments``: name → value as registered, sensitive ones hidden; None if this process cannot read them.
    ``app``: label of the app that declares the job, empty if there is none. ``timeout``: seconds, None for unlimited.
    ``attempt``: charged starts so far. ``remaining_attempts``: starts left, including a running one.
    ``backoff``: from this process's code; None if it does not know the job.
    """

    id: int
    key: str | None
    name: str
    app: str
    queue: str
    arguments: Mapping[str, Any] | None
    description: str
    registered_at: datetime
    run_at: datetime
    state: Literal["waiting", "runnable", "running"]
    timeout: float | None
    attempt: int
    max_attempts: int
    remaining_attempts: int
    backoff: BackoffRule | None


class Queue:
    """One queue, given by name or by the context of a job that runs in it; ``database`` is an alias.

    Raises ``InvalidJob`` for an invalid name, a queue that ``QUEUES`` does not allow, or an unknown alias.
    """

    def __init__(self, queue: str | JobContext, database: str | None = None) -> None:
        try:
            self.name = options.check_queue(queue.queue if isinstance(queue, JobContext) else queue)
            options.check_allowed_queue(self.name, get_conf().queues)
        except InvalidOption as error:
            raise InvalidJob(str(error)) from None
        self.database = database or router.db_for_write(Job)
        if self.database not in connections.settings:
            raise InvalidJob(f"there is no database {self.database!r}")

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    def status(self, job: int | str) -> QueuedJob:
        """Return an unfinished job of this queue, by its id or by the key it holds.

        Waits for tokens, for a few seconds at most. Raises ``JobDoesNotExist``, also for an ended job, and
        ``RateLimited``.
        """
        if rate := self._rate():
            of_this_process.take_patiently(self.name, rate, rate.status)
        return self._status(job)

    def list(self) -> Iterator[ListedJob]:
        """Return this queue's unfinished jobs as (run_at, id, label), by time, then id.

        Waits for tokens, for a few seconds at most, and raises ``RateLimited``. Iteration reads the jobs page by page:
        it may miss a job that changes in the meantime, or yield it at its new time.
        """
        if rate := self._rate():
            of_this_process.take_patiently(self.name, rate, rate.list)
        return self._pages()

    def cancel(self, job: int | str, *, by: object = None, reason: str = "") -> Steered:
        """Cancel an unfinished job of this queue, by its id or by the key it holds; see ``Job.cancel``.

        An unclaimed job never runs. A running job receives the request, and a failure is not retried. Raises
        ``JobDoesNotExist``, also for an ended job, and ``RateLimited`` without waiting. Repeatable. The result says
        *busy* if another transaction kept the row locked; the job is not cancelled then.
        """
        if rate := self._rate():
            of_this_process.take({self.name: (rate, rate.cancel)})
        found = self._find(job)
        steered: Steered = found.cancel(mode="ask", by=by, reason=reason)
        if steered.skipped.keys() & _GONE:
            raise JobDoesNotExist(self._missing(job))
        return steered

    async def astatus(self, job: int | str) -> QueuedJob:
        """Do as ``status``, for async callers."""
        if rate := self._rate():
            await of_this_process.atake_patiently(self.name, rate, rate.status)
        return await sync_to_async(self._status)(job)

    async def alist(self) -> AsyncIterator[ListedJob]:
        """Do as ``list``, for async callers."""
        if rate := self._rate():
            await of_this_process.atake_patiently(self.name, rate, rate.list)
        listed = self._pages()
        while page := await sync_to_async(tuple)(islice(listed, PAGE)):
            for job in page:
                yield job

    async def acancel(self, job: int | str, *, by: object = None, reason: str = "") -> Steered:
        """Do as ``cancel``, for async callers."""
        return await sync_to_async(self.cancel)(job, by=by, reason=reason)

    def _status(self, job: int | str) -> QueuedJob:
        return _queued(self._find(job))

    def _rate(self) -> Rate | None:
        return get_conf().registration_rate.of(self.name)

    def _find(self, job: int | str) -> Any:
        if isinstance(job, bool) or not isinstance(job, int | str):
            raise TypeError(f"name a job by its id (int) or its key (str), not by {job!r}")
        which = {"pk": job} if isinstance(job, int) else {"unique_key": job}
        jobs = Job._base_manager.using(self.database)
        # Not first(): ordered by id, a planner that expects one job walks all of them.
        found = list(jobs.filter(queue=self.name, finished_at=None, **which).annotate(due=_DUE)[:1])
        if not found:
            raise JobDoesNotExist(self._missing(job))
        return found[0]

    def _missing(self, job: int | str) -> str:
        return f"Queue {self.name!r} has no unfinished job {job!r}."

    def _pages(self) -> Iterator[ListedJob]:
        db = on(self.database)
        after = gating.BEFORE_ALL
        while True:
            page, after = gating.list_queue(db, self.name, after=after, limit=PAGE)
            yield from page
            if len(page) < PAGE:
                return


_GONE = {JobState.SUCCEEDED, JobState.CANCELLED, JobState.ABANDONED, "unknown"}


def _queued(job: Any) -> QueuedJob:
    definition = registry.resolved(job.name)
    running = job.state == JobState.RUNNING
    return QueuedJob(
        id=job.pk,
        key=job.key,
        name=job.name,
        app=_app(definition),
        queue=job.queue,
        arguments=_arguments(definition, job.payload),
        description=job.description,
        registered_at=job.created_at,
        run_at=job.run_at,
        state=RUNNING if running else RUNNABLE if _may_start(job) else WAITING,
        timeout=job.timeout_seconds,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        remaining_attempts=max(job.max_attempts - job.attempt + running, 0),
        backoff=definition.backoff if definition else None,
    )


def _may_start(job: Any) -> bool:
    return job.state == JobState.READY and job.due and not pauses_of(job.queue, job.name, job._state.db)


def _app(definition: JobPolicy | None) -> str:
    app = apps.get_containing_app_config(definition.func.__module__) if definition else None
    return app.label if app else ""


def _arguments(definition: JobPolicy | None, stored: Any) -> Mapping[str, Any] | None:
    if definition is None:
        return None
    try:
        args, kwargs = definition.load(json.dumps(stored))
    except UnreadablePayload:
        return None
    return payload.redact(definition.signature, args, kwargs, definition.sensitive)
