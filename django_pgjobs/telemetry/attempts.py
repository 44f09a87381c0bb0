"""Results of attempts, in the words that log lines use too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_pgjobs import decisions as decide
from django_pgjobs.exceptions import CancelRequested, JobControl, JobSuspended, WorkerStopping

if TYPE_CHECKING:
    from django_pgjobs.decisions import Decision, Failure, Unwritten

STEERING = (JobControl, JobSuspended, CancelRequested, WorkerStopping)
"""Exceptions that steer a job: they are no errors of its code."""


def settled(decision: Decision) -> Unwritten | decide.Committed | decide.Lost:
    """Return the decision, or what a transaction in doubt comes to if it was not committed."""
    return decision.otherwise if isinstance(decision, decide.InDoubt) else decision


def failure_in(decision: Decision, error: BaseException | None) -> Failure | None:
    """Return the failure to report of an attempt; None if it did not fail, or steered itself.

    An attempt that failed after its job was cancelled, or after its worker had asked it to stop, is not
    reported: what it raised is how it stopped.
    """
    came_to = settled(decision)
    if not isinstance(came_to, decide.Retried | decide.Abandoned):
        return None
    # By type, as the decision itself: an exception's __class__ is code of the job.
    return None if error is not None and issubclass(type(error), STEERING) else came_to.failure
