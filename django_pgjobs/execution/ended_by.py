"""The error that ended a job, for its callback: complete while the history has it, otherwise one line."""

from __future__ import annotations

from collections.abc import Callable

from django_pgjobs.decisions import Failure
from django_pgjobs.execution import events
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.failures import text_of

History = Callable[[int], Failure | None]
"""Takes a job's id, returns how its latest attempt failed; None if the history has no attempt."""


def ended_by(job_id: int, summary: str, history: History | None) -> Failure:
    """Return the error that ``summary``, stored with the job, sums up; only that line if the history has no more.

    The latest attempt in the history may have ended in another way, such as a release. Raises nothing.
    """
    failure = None
    try:
        failure = None if history is None else history(job_id)
    except Exception as error:
        words = one_line(text_of(error))
        events.log.warning("history cannot be read, a callback gets one line of its error job=%d: %s", job_id, words)
    return failure if failure is not None and failure.summary == summary else Failure("", summary)
