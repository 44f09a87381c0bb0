"""What tests of batches share."""

from __future__ import annotations

from typing import Any

import pytest

from django_pgjobs import Batch, job
from django_pgjobs.models import Job
from django_pgjobs.testing import run_jobs

ran: list[Any] = []


@job(name="batches.work", max_attempts=1)
def work(n: int) -> int:
    ran.append(n)
    if n in unlucky:
        raise ValueError(f"unlucky {n}")
    return n


@job(name="batches.note", max_attempts=1)
def note(text: str) -> None:
    ran.append(text)


@job(name="batches.grow", max_attempts=1)
def grow(batch_id: int) -> None:
    Batch.of(Job.objects.get(pk=batch_id)).add(work.bind(100))


unlucky: set[int] = set()


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()
    unlucky.clear()


def batch_of(count: int, **options: object) -> Batch:
    """A closed batch, with a note for each way in which it may end."""
    after = {name: note.bind(name) for name in ("succeeded", "failed", "settled")}
    with Batch("some work", **{**after, **options}) as batch:  # type: ignore[arg-type]
        batch.add_many(work.bind(n) for n in range(count))
    return batch


def run_in_turn() -> None:
    """Run the due jobs one by one, as a worker with one thread does: a more urgent one comes next."""
    while run_jobs(limit=1).ran:
        pass


def notes() -> list[str]:
    return [each for each in ran if isinstance(each, str)]


def states(batch: Batch) -> dict[str, int]:
    found: dict[str, int] = {}
    for state in Job.objects.filter(parent_id=batch.job.pk).values_list("state", flat=True):
        found[state] = found.get(state, 0) + 1
    return found
