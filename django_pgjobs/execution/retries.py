"""Decides whether and when a failed attempt is retried, and describes the failure for the history."""

from __future__ import annotations

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.conf import get_conf
from django_pgjobs.decisions import Failure, Unwritten
from django_pgjobs.definition.registry import registry
from django_pgjobs.serialization.failures import Account
from django_pgjobs.store.claiming import ClaimedJob

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
