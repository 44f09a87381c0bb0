"""The decision about an attempt that failed, the line that tells of it, and its description for the history."""

from __future__ import annotations

from typing import cast

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.decisions import Decision, Failure, Unwritten
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import (
    Abandon,
    Cancel,
    CancelRequested,
    DeadlinePassed,
    Interrupt,
    JobControl,
    JobSuspended,
    MembersFailed,
    MemoryExceeded,
    OtherArguments,
    Release,
    Snooze,
    StepFailed,
    UnstorableResult,
    WaitTimedOut,
    WorkerStopping,
)
from django_pgjobs.execution import events
from django_pgjobs.execution.prepared import Prepared
from django_pgjobs.logs import log
from django_pgjobs.serialization.failures import OUR_FILES, Account, text_of
from django_pgjobs.states import Cause
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.values.backoff import LONGEST_SECONDS

NO_ATTEMPTS, NOT_RETRIED, RELEASE_REASON = "no attempts left", "not to be retried", "released"
TOO_LATE = "its deadline leaves no time for another attempt"


def by_default_backoff(job: ClaimedJob, failure: Failure, cause: str) -> Unwritten:
    """Retry by the default backoff while attempts are left: there is no exception to ask the project's rules about."""
    if job.attempt >= job.max_attempts:
        return decide.Abandoned(NO_ATTEMPTS, failure, cause)
    return retry(job, default_delay(job), failure, cause)


def retry(job: ClaimedJob, delay: float, failure: Failure, cause: str) -> Unwritten:
    """Retry; or abandon now, while the failure is known, if the next attempt could not start before the deadline."""
    if job.until is not None and clock.monotonic() + delay >= job.until:
        return decide.Abandoned(TOO_LATE, failure, cause)
    return decide.Retried(delay, failure, cause)


def released(why: str) -> Unwritten:
    """Return the release of a job that asks for it, since it is to stop."""
    return decide.Released(RELEASE_REASON, Failure("", f"The job released itself ({why})."))


def default_delay(job: ClaimedJob) -> float:
    """Return the seconds until a job's next attempt; this code may not know its definition."""
    definition = registry.find(job.name)
    return definition._default_delay(job.attempt) if definition else get_conf().default_backoff.jittered(job.attempt)


def failure_of(error: BaseException) -> Failure:
    """Return ``error`` as the history records it."""
    return kept(Account(error))


def kept(account: Account) -> Failure:
    """Return an exception as the history records it: kind, message, chain of causes, truncated traceback."""
    return account.failure(get_conf().bounds.traceback_chars)


OUR_FILES.add(__file__)

ASLEEP = "The job's deadline would pass while it sleeps."

REMEMBERED = (StepFailed, WaitTimedOut, MembersFailed)
"""Exceptions that a job raises each time that it runs, since it remembers them."""

_CAUSES: dict[type[Interrupt] | None, Cause] = {
    CancelRequested: Cause.CANCELLED,
    DeadlinePassed: Cause.TIMEOUT,
    MemoryExceeded: Cause.FAILED,
    WorkerStopping: Cause.RELEASED,
}
"""The exception an attempt was interrupted with → why it did not succeed, regardless of what it raised in the end."""


def failed(prepared: Prepared, error: BaseException) -> Decision:
    """Log the failed attempt and return the decision about it. Raises nothing."""
    if prepared.memory is not None and prepared.memory.claim_lost:
        return decide.Lost()
    account = Account(error)
    try:
        decision = _decision(prepared, account)
    except BaseException:
        log.exception("decision about a failure failed, the default backoff applies job=%d", prepared.job.id)
        decision = by_default_backoff(prepared.job, kept(account), Cause.FAILED)
    try:
        _log_failure(prepared, decision, account)
    except BaseException:
        log.exception("failure cannot be logged job=%d", prepared.job.id)
    return decide.InDoubt(decision) if prepared.in_doubt else decision


def _decision(prepared: Prepared, account: Account) -> decide.Unwritten:
    """Return what the job asked for by raising a ``JobControl``, or else retry or give up."""
    # Use type(), never isinstance(), which reads the exception's own __class__.
    context, error, kind = prepared.context, account.error, type(account.error)
    if issubclass(kind, Cancel):
        return decide.Cancelled(text_of(error))
    if context.cancelled:
        if issubclass(kind, JobControl) or besides_suspension(error) is None:
            return decide.Cancelled()
        return decide.Cancelled("", kept(account), _CAUSES.get(prepared.control.interrupt, Cause.FAILED))
    if prepared.memory is not None and besides_suspension(error) is None:
        suspension: decide.Unwritten | None = prepared.memory.decision()
        if suspension is not None:
            return _suspension(prepared, suspension)
    if issubclass(kind, Snooze):
        return decide.Snoozed(min(error.seconds, LONGEST_SECONDS))  # type: ignore[attr-defined]
    if issubclass(kind, Release):
        return released(context.stopping.why or "it raised Release")
    if issubclass(kind, (Abandon, UnstorableResult, OtherArguments, *REMEMBERED)):
        return decide.Abandoned(text_of(error), kept(account))
    if prepared.control.interrupt is WorkerStopping:
        return decide.Released(RELEASE_REASON, kept(account))
    if prepared.control.interrupt in (DeadlinePassed, MemoryExceeded):
        # As after a kill, where no exception reaches the retry rules: both ways to end such a job decide alike.
        return by_default_backoff(prepared.job, kept(account), _CAUSES[prepared.control.interrupt])
    if context.attempt >= context.max_attempts:
        return decide.Abandoned(NO_ATTEMPTS, kept(account))
    delay = prepared.definition._retry_delay(error, context.attempt)
    if delay is None:
        return decide.Abandoned(NOT_RETRIED, kept(account))
    return retry(prepared.job, delay, kept(account), Cause.FAILED)


def besides_suspension(error: BaseException) -> BaseException | None:
    """Return what left the body besides the suspension of the job; a ``TaskGroup`` wraps what its tasks raise."""
    kind = type(error)
    if issubclass(kind, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        besides: BaseException | None = BaseExceptionGroup.split(group, JobSuspended)[1]
        return besides
    return None if issubclass(kind, JobSuspended) else error


def _suspension(prepared: Prepared, suspension: decide.Unwritten) -> decide.Unwritten:
    """Return the suspension; or give the job up, if it would sleep past its deadline, which no event can prevent."""
    if not isinstance(suspension, decide.Suspended):
        return suspension
    until, waits = prepared.job.until, suspension.all
    if until is None or any(wait.event is not None or clock.monotonic() + wait.seconds < until for wait in waits):
        return suspension
    return decide.Abandoned(TOO_LATE, suspension.failure or failure_of(DeadlinePassed(ASLEEP)), Cause.TIMEOUT)


def _log_failure(prepared: Prepared, decision: decide.Unwritten, account: Account) -> None:
    """Log a failed attempt where its live exception is: WARNING if the job is retried, ERROR if it is abandoned."""
    about, words = events.facts(prepared.context), account.message
    match decision:
        case decide.Retried(seconds=seconds):
            info, trace = account.for_log()
            log.warning("attempt failed, retry in %.1f s %s: %s%s", seconds, about, words, trace, exc_info=info)
        case decide.Abandoned():
            info, trace = account.for_log()
            log.error("job abandoned %s: %s%s", about, words, trace, exc_info=info)
        case _:
            log.info("attempt ended %s: %s: %s", about, account.kind, words)
