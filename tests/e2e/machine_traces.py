"""What tests of step machines ask of the stage and of the rows."""

from __future__ import annotations

from django_pgjobs.models import Job
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until


def started(stage: Stage, step: str, key: str, count: int = 1) -> None:
    wait_until(lambda: stage.count(step, key) >= count, 20, f"{step} of {key} has started")


def starts(stage: Stage, key: str) -> list[str]:
    """The steps of a machine that have begun, in order."""
    return [trace.words[0] for trace in stage.traces() if trace.words[1:] == (key,)]


def finished(job: Job) -> list[tuple[str, int]]:
    """Name and attempt of each finished step."""
    return list(job.steps.order_by("pk").values_list("name", "attempt"))
