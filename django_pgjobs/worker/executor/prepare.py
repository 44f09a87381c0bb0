"""In the executor: from a run off the channel to a job that can be called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from django.db import Error, connections

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.context import Reporter
from django_pgjobs.decisions import Decision
from django_pgjobs.exceptions import UnreadablePayload
from django_pgjobs.execution import retries
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.logs import safe_logger
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.failures import Account, kind_of, text_of
from django_pgjobs.states import Cause
from django_pgjobs.store import finalising, keys
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.store.database import Database, on
from django_pgjobs.store.keys import FoundResult
from django_pgjobs.worker.executor import cleanup
from django_pgjobs.worker.shared.channel import ExecutorEnd
from django_pgjobs.worker.shared.channel_messages import Progress

Answer = TypeVar("Answer")

log = safe_logger("django_pgjobs")

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
            decide.Snoozed(PAYLOAD_SECONDS) if is_body else decide.Retried(PAYLOAD_SECONDS, retries.failure_of(error))
        )
    except UnreadablePayload as error:
        log.error("payload cannot be filled name=%s job=%d: %s", job.name, job.id, error)
        return decide.Abandoned(str(error), retries.failure_of(error)) if is_body else decide.Succeeded()
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
    failure = retries.failure_of(error)
    if job.ending is not None:
        return decide.Retried(retries.default_delay(job), failure)
    return retries.by_default_backoff(job, failure, Cause.FAILED)
