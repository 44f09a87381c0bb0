"""In the executor: from a run off the channel to a job that can be called.

And what the jobs of each database need of it; most workers serve one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TypeVar

from django.db import Error, connections

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.context import Reporter
from django_pgjobs.decisions import Decision
from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.execution import failed_attempts
from django_pgjobs.execution.atomic_end import AtomicEnds
from django_pgjobs.execution.durable import Memories
from django_pgjobs.execution.prepared import Guard, RunControl
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.failures import OUR_FILES, Account, kind_of, text_of
from django_pgjobs.states import Cause
from django_pgjobs.store import finalising, keys
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.database import Database, on
from django_pgjobs.store.keys import FoundResult
from django_pgjobs.worker.executor import cleanup
from django_pgjobs.worker.executor.entering import Tenancy
from django_pgjobs.worker.shared.board import Board
from django_pgjobs.worker.shared.channel import ExecutorEnd
from django_pgjobs.worker.shared.channel_messages import Progress

OUR_FILES.add(__file__)


class ShownGuard:
    """Calls the job's own code through another guard, and shows on ``slot`` that it begins."""

    def __init__(self, guard: Guard, board: Board, slot: int) -> None:
        self.guard = guard
        self.board = board
        self.slot = slot

    def call(self, body: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        """Call ``body``."""
        self.board.begin(self.slot, clock.monotonic_ns())
        return self.guard.call(body, *args, **kwargs)

    async def acall(self, body: Callable[..., Awaitable[object]], /, *args: object, **kwargs: object) -> object:
        """Await ``body``."""
        self.board.begin(self.slot, clock.monotonic_ns())
        return await self.guard.acall(body, *args, **kwargs)

    def reach(self, connect: Callable[[], object]) -> None:
        """Call ``connect``: the job has not begun."""
        self.guard.reach(connect)

    def keeping_connections(self) -> AbstractContextManager[None]:
        """Return the block of the other guard."""
        return self.guard.keeping_connections()


Answer = TypeVar("Answer")

PROGRESS_SECONDS = 1.0
PAYLOAD_SECONDS = 5.0


def with_payload(job: ClaimedJob, database: str) -> ClaimedJob | Decision:
    """Read a payload that is too big for the channel; return a decision about the attempt if that fails."""
    is_body = job.ending is None
    try:
        payload = asked(database, lambda db: finalising.read_payload(db, *job.fence, partly=not is_body))
    except Error as error:
        # Nothing of the job has run, so its attempt is not charged; a callback's never is.
        log.warning(
            "payload cannot be read, again in %g s name=%s job=%d: %s",
            PAYLOAD_SECONDS, job.name, job.id, one_line(error),
        )  # fmt: skip
        return (
            decide.Snoozed(PAYLOAD_SECONDS)
            if is_body
            else decide.Retried(PAYLOAD_SECONDS, failed_attempts.failure_of(error))
        )
    except UnreadablePayload as error:
        log.error("payload cannot be filled name=%s job=%d: %s", job.name, job.id, error)
        return decide.Abandoned(str(error), failed_attempts.failure_of(error)) if is_body else decide.Succeeded()
    if payload is None:
        return decide.Released("the claim was lost before the payload was read")
    return job._replace(payload=payload)


def find_result(database: str, job_id: int, names: Sequence[str], key: str) -> FoundResult | None:
    """Return the result stored under an idempotency key, read on this thread's connection."""
    return asked(database, lambda db: keys.find_result(db, job_id, names, key))


def read_failure(database: str, job_id: int) -> decide.Failure | None:
    """Return how the latest attempt of a job failed, for its callback, read on this thread's connection."""
    return asked(database, lambda db: finalising.read_failure(db, job_id))


def asked(database: str, ask: Callable[[Database], Answer]) -> Answer:
    """Return what ``ask`` reads on this thread's connection, or on a new one if the kept one fails.

    A network or a pooler that has dropped it in silence is noticed by the first statement only. The next job is not to
    blame for that.
    """
    kept = connections[database].connection is not None
    try:
        return ask(on(database))
    except Error as error:
        if not kept:
            raise
        words = one_line(error)
        log.warning("kept connection cannot read of the next job, replaced alias=%s: %s", database, words)
        cleanup.discard(connections[database])
        return ask(on(database))


def reporter(end: ExecutorEnd, control: RunControl) -> Reporter:
    """Return the function that a run's ``context.progress()`` calls: it reports to the supervisor now and then."""
    last, done = 0.0, False

    def report(n: float, total: float | None, message: str) -> None:
        nonlocal last, done
        now = clock.monotonic()
        whole = total is not None and n >= total
        if now - last >= PROGRESS_SECONDS or (whole and not done):  # report the end at once, but not repeatedly
            last, done = now, whole
            # A supervisor that is gone is the control thread's business, not the job's.
            with suppress(OSError):
                end.send(Progress(control.run, {"n": n, "total": total, "message": message}))

    return report


def failed_outside(job: ClaimedJob, error: BaseException) -> Decision:
    """Return the decision about an attempt that failed in our code, not in the job's: retry by the default backoff.

    A body is retried only while attempts are left, a callback always, since claims count its starts. Raises nothing.
    """
    account = Account(error)
    info, trace = account.for_log()
    words = f"{kind_of(error)}: {text_of(error)}{trace}"
    log.error("executor failed around name=%s job=%d: %s", job.name, job.id, words, exc_info=info)
    failure = failed_attempts.failure_of(error)
    if job.ending is not None:
        return decide.Retried(failed_attempts.default_delay(job), failure)
    return failed_attempts.by_default_backoff(job, failure, Cause.FAILED)


class JobHome:
    """A database of jobs, by its alias, or a schema in it: what is read and written there while they run."""

    def __init__(self, database: str, schema: str = "") -> None:
        self.database = database
        self.tenancy = Tenancy(database, schema) if schema else None
        self.recall = partial(find_result, database)
        self.history = partial(read_failure, database)
        self.transaction = AtomicEnds(database)
        self.memories = Memories(database, schema or None)


class JobHomes(dict[str, JobHome]):
    """The homes by what jobs say of theirs. If there is one alias only, whatever they say is a schema in it."""

    def __missing__(self, schema: str) -> JobHome:
        self[schema] = home = JobHome(self[""].database, schema)
        return home


def homes_of(databases: str) -> JobHomes:
    """Return the homes; ``databases``: the aliases, separated by commas.

    Jobs of a worker that serves one only say nothing, unless it serves many schemas of it.
    """
    aliases = databases.split(",")
    return JobHomes({alias if aliases[1:] else "": JobHome(alias) for alias in aliases})
