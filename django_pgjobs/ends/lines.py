"""The lines about ends that are stored: one for each attempt, at DEBUG of ``django_pgjobs.jobs``.

``execution.events`` logs what an attempt comes to where it ran; these lines tell that the database has it.
"""

from __future__ import annotations

import logging
from datetime import datetime

from django_pgjobs.ends.kinds import EndKind
from django_pgjobs.logs import Facts, facts, safe_logger
from django_pgjobs.states import Outcome
from django_pgjobs.store.finalising import End
from django_pgjobs.store.keeping import ExpiredJob

jobs_log = safe_logger("django_pgjobs.jobs")


def are_wanted() -> bool:
    """Return whether a handler reads these lines. Ask once for a batch: a worker may end 50,000 jobs a second."""
    return jobs_log.isEnabledFor(logging.DEBUG)


def stored(kind: EndKind, end: End, row: object, about: Facts, seconds: float | None) -> None:
    """Log an end of this kind; ``row``: what its statement returned; ``seconds``: what the body took, if known."""
    said = [about, facts("outcome=%s", kind.outcome or end.outcome)]
    if end.failure is not None and end.cause:
        said.append(facts("cause=%s", end.cause))
    if seconds is not None:
        said.append(facts("seconds=%.4f", seconds))
    if isinstance(run_at := getattr(row, "run_at", None), datetime):
        said.append(facts("run_at=%s", run_at.isoformat(timespec="seconds")))
    if end.failure is not None:
        said[-1] = facts("%s: %s", said[-1], end.failure.summary)
    line = Facts(" ".join(said))
    if kind.final:
        jobs_log.debug("job ended %s", line)
    elif kind.requeues:
        jobs_log.debug("attempt ended, the job has not %s", line)
    else:
        jobs_log.debug("attempt ended, a callback follows %s", line)


def expired(job: ExpiredJob) -> None:
    """Log the end of a job that expired before it started."""
    jobs_log.debug(
        "job ended name=%s job=%d attempt=%d queue=%s outcome=%s: it expired before it started",
        job.name, job.id, job.attempt, job.queue, Outcome.CANCELLED,
    )  # fmt: skip
