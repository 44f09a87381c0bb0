"""Jobs that bypass the queue: run at once, once, in a thread of this process, and stored nowhere.

``register`` passes a job to its ``run_bypassed``, which the app's ``ready`` sets, because it must not import the
packages that run attempts. The thread has Django connections of its own, closed when the job has ended, so it is
outside the caller's transaction. Arguments go through JSON, as those of any job do. A failure counts as that of a last
attempt: ``on_abandon`` runs.

A timeout raises ``DeadlinePassed`` in the thread and cancels its queries, through the same *door* as in an executor
(``worker.executor.interrupts``). Code that does not return to Python cannot be stopped: the only process to kill is the
caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from uuid import uuid4

from django.core.cache import close_caches
from django.db import connections, router

from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Decision
from django_pgjobs.ends.kinds import has_callback
from django_pgjobs.exceptions import DeadlinePassed
from django_pgjobs.execution import attempt
from django_pgjobs.execution.atomic_end import AtomicEnds
from django_pgjobs.execution.attempt import History
from django_pgjobs.execution.fresh_context import fresh_context
from django_pgjobs.execution.prepared import Prepared, RunControl
from django_pgjobs.logs import facts, log
from django_pgjobs.models import Job
from django_pgjobs.states import Outcome
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.new_jobs import NewJob
from django_pgjobs.worker.executor import cleanup
from django_pgjobs.worker.executor.interrupts import Door


class LocalDoor(Door):
    """The door of a local worker's thread, which also enforces the deadline of a coroutine."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: float | None = None

    async def acall(self, body: Callable[..., Awaitable[object]], /, *args: object, **kwargs: object) -> object:
        """Await the job's own code for ``seconds``."""
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit:
                return await body(*args, **kwargs)
        except TimeoutError:
            if not limit.expired():
                raise  # the job's own
            self.control.interrupt = DeadlinePassed
            raise DeadlinePassed from None


def run(new: NewJob) -> None:
    """Run a job to its end in this thread, callback included. Raises nothing."""
    cleanup.remember_connections()
    door, job = LocalDoor(), _job(new)
    try:
        decision = _attempt(job, door)
        _call_back(job, _outcome(decision, new), decision, door)
    finally:
        cleanup.tidy(facts("name=%s", new.name))
        for close in (close_caches, connections.close_all):
            with contextlib.suppress(Exception):
                close()


def _outcome(decision: Decision, new: NewJob) -> str:
    """Return how the job ended. No queue can take the job back, even if it asks for that."""
    match decision:
        case decide.Succeeded():
            return Outcome.SUCCEEDED
        case decide.Cancelled():
            return Outcome.CANCELLED
        case decide.Abandoned():
            return Outcome.ABANDONED
        case decide.Stepped(name=step):
            log.error("job that bypassed the queue cannot take a next step, abandoned name=%s step=%s", new.name, step)
        case decide.Parked(reason=reason):
            log.error("job that bypassed the queue cannot be run, abandoned name=%s: %s", new.name, reason)
        case _:
            log.error(
                "job that bypassed the queue cannot come back, abandoned name=%s: %s",
                new.name,
                type(decision).__name__.lower(),
            )
    return Outcome.ABANDONED


def _call_back(job: ClaimedJob, outcome: str, decision: Decision, door: LocalDoor) -> None:
    if has_callback(job.name, outcome):
        failure = getattr(decision, "failure", None)
        callback = job._replace(ending=outcome, error=failure.summary if failure else "")
        _attempt(callback, door, lambda _: failure)


def _job(new: NewJob) -> ClaimedJob:
    return ClaimedJob(
        id=0,
        run_at=datetime.now(UTC),
        payload=new.payload,
        queue=new.queue,
        priority=new.priority,
        name=new.name,
        attempt=1,
        max_attempts=1,
        timeout_seconds=new.timeout_seconds,
        headers=new.headers,
        claim_id=str(uuid4()),
        description=new.description,
    )


def _attempt(job: ClaimedJob, door: LocalDoor, history: History | None = None) -> Decision:
    control = door.control = RunControl()
    door.seconds = job.timeout
    prepared = attempt.prepare(
        job,
        lambda _: _ignore_progress,
        control,
        door,
        history=history,
        transaction=AtomicEnds(router.db_for_write(Job), stored=False),
    )
    if not isinstance(prepared, Prepared):
        return prepared
    with _deadline(job.timeout, control, door):
        return fresh_context().run(attempt.run_here, prepared)


@contextlib.contextmanager
def _deadline(timeout: float | None, control: RunControl, door: LocalDoor) -> Iterator[None]:
    """Interrupt the door's job when its timeout is over."""
    if timeout is None:
        yield
        return
    timer = threading.Timer(timeout, door.interrupt, (control, DeadlinePassed))
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError as error:
        log.error("timeout of a job that bypassed the queue cannot be kept: %s", error)
    try:
        yield
    finally:
        timer.cancel()


def _ignore_progress(n: float, total: float | None, message: str) -> None:
    """Drop the report: there is no row to store it in."""
