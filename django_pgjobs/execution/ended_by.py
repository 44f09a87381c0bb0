"""What a callback learns about the error that ended its job: all of it while the history has it."""

from __future__ import annotations

from collections.abc import Callable

from django_pgjobs.decisions import Failure
from django_pgjobs.execution import events
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.serialization.failures import text_of

History = Callable[[int], Failure | None]
"""Reads how the latest attempt of a job, by its id, failed; None if no attempt is kept."""


def ended_by(job_id: int, summary: str, history: History | None) -> Failure:
    """Return the error of which ``summary`` is stored with the job; only that line where no more can be had.

    The latest attempt that is kept may have ended otherwise, by a release for one. Raises nothing.
    """
    failure = None
    try:
        failure = None if history is None else history(job_id)
    except Exception as error:
        words = one_line(text_of(error))
        events.log.warning("history cannot be read, a callback gets one line of its error job=%d: %s", job_id, words)
    return failure if failure is not None and failure.summary == summary else Failure("", summary)
