"""Hundreds of queues: the claims of two workers scan some at a time, and miss no job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from django_pgjobs.models import Job
from django_pgjobs.worker.threads import tour
from django_pgjobs.worker.threads.claim_options import ClaimOptions
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.frontier import Frontier
from django_pgjobs.worker.threads.inbox_messages import Claimed
from tests.plugins.fix_db import RawDatabase, register
from tests.unit.worker_fakes import Heard

Connect = Callable[..., RawDatabase]

QUEUES = 400
EACH = 3
LIMIT = 20


class Worker:
    """One worker's claim thread, called claim by claim."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self.heard = Heard()
        options = ClaimOptions(
            uuid4(), lease_seconds=30, allowance_seconds=5, grace_seconds=30, poll_seconds=5.0, notify=True
        )
        self.claimer = Claimer(lambda: self.db, self.heard, Frontier(), options)
        self.claimer.listening.set()

    def claim(self, limit: int = LIMIT) -> bool:
        """Claim once; return whether the thread would claim again at once."""
        self.claimer.request(limit)
        wanted, _ = self.claimer._until_wanted()
        return self.claimer._claim(self.db, wanted)


@pytest.fixture
def workers(db_connection: Connect, committed: None, monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    monkeypatch.setattr(tour, "MOST_PAIRS", 120)
    for n in range(QUEUES):
        register(EACH, queue=f"q{n:03}", priority=n % 2)
    return [Worker(db_connection(autocommit=True)) for _ in range(2)]


def drain(workers: list[Worker]) -> list[tuple[int, str]]:
    jobs: list[tuple[int, str]] = []
    going_on = dict.fromkeys(range(len(workers)), True)
    for _ in range(1000):
        for at, worker in enumerate(workers):
            before = len(worker.heard.of(Claimed))
            going_on[at] = worker.claim()
            found = [job for message in worker.heard.of(Claimed)[before:] for job in message.jobs]
            worker.claimer.adopted(found)
            jobs += [(job.id, job.queue) for job in found]
        if not any(going_on.values()):
            return jobs
    raise AssertionError("they never end")


def test_each_job_is_claimed_once_and_larger_priorities_first(workers: list[Worker]) -> None:
    jobs = drain(workers)
    assert Counter(job_id for job_id, _ in jobs) == dict.fromkeys(Job.objects.values_list("pk", flat=True), 1)
    priorities = [int(queue[1:]) % 2 for _, queue in jobs]
    half = len(priorities) // 2
    assert sum(priorities[:half]) >= half - 2 * LIMIT, "but for what both workers skipped"


def test_a_job_that_is_announced_is_in_the_next_claim(workers: list[Worker]) -> None:
    [worker, _] = workers
    drain([worker])
    [new] = register(queue="q399", priority=1)
    worker.claimer.wake_for(("q399", 1))
    before = len(worker.heard.of(Claimed))
    worker.claim()
    assert [job.id for message in worker.heard.of(Claimed)[before:] for job in message.jobs] == [new]


def test_a_job_that_is_not_announced_is_found_by_the_next_tour(workers: list[Worker]) -> None:
    [worker, _] = workers
    drain([worker])
    [new] = register(queue="q350", priority=0)
    frontier = worker.claimer.frontier
    frontier.tour.due = float("-inf")
    assert [job_id for job_id, _ in drain([worker])] == [new]
