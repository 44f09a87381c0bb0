"""The finished steps of a job, and the step that a failed attempt was of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django_pgjobs.models import Job, Step


def finished_steps(job: Job) -> list[Step]:
    """Return the finished steps that are kept, latest first, without their arguments; one query if there are any."""
    if not job.flow:
        return []
    return list(Step.objects.using(job._state.db).filter(job_id=job.pk).defer("payload").order_by("-pk"))


def step_at(job: Job, steps: Sequence[Step], instant: datetime) -> str:
    """Return the name of the step whose attempt ended at ``instant``; ``steps`` are latest first.

    If the job finished more steps than are kept, it may be a later one.
    """
    name = job.name
    for step in steps:
        if step.finished_at < instant:
            break
        name = step.name
    return name
