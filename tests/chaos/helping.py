"""What the fault tests share: short leases, the moment a fault began, and how long it took until things were right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from django_pgjobs import register_many
from django_pgjobs.models import Job
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import patience, wait_until

LEASE, RENEW = 1.5, 0.4
FAST: dict[str, object] = {
    "LEASE_SECONDS": LEASE, "RENEW_SECONDS": RENEW, "BEAT_SECONDS": 0.5, "STALE_SECONDS": 2, "POLL_SECONDS": 1,
}  # fmt: skip
"""Settings of workers that lose their jobs soon."""

Record = Callable[[str, object], None]


class Recovery:
    """A stopwatch that starts with the fault; ``check`` records what it took and compares it with the promise."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.began = time.monotonic()

    def check(self, at_most: float, at: float | None = None) -> None:
        """Record the seconds until ``at`` (CLOCK_MONOTONIC; now) and refuse more than ``at_most``."""
        took = (time.monotonic() if at is None else at) - self.began
        self.record("recovery_seconds", round(took, 2))
        assert took <= patience(at_most), f"recovery took {took:.2f} s, promised are {at_most:g} s"


def running(stage: Stage, key: str, count: int) -> list[Job]:
    """Register jobs that wait for ``key`` and return them once they all run."""
    before = stage.count("start", key)
    ids = register_many(jobs.waits.bind(key) for _ in range(count))
    wait_until(lambda: stage.count("start", key) >= before + count, 20, f"{count} jobs wait for {key}")
    return list(Job.objects.filter(pk__in=ids).order_by("id"))


def open_jobs(found: Iterable[Job]) -> int:
    """Return how many of these have not ended."""
    return Job.objects.filter(pk__in=[job.pk for job in found], finished_at=None).count()
