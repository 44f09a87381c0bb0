"""``testing.context()``: a context for tests that call a body or a callback themselves."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from django_pgjobs import JobContext, current_context
from django_pgjobs.testing import context


def send(job: JobContext, count: int) -> int:
    for n in range(count):
        if job.cancelled:
            return n
        current_context().progress(n + 1, count)
    return count


def test_a_body_is_called_with_a_context_and_its_progress_is_seen() -> None:
    """What a job reads of its context is what the test says, and what it reports can be asserted."""
    with context(attempt=2, max_attempts=3, queue="mail", headers={"tenant": 7}) as job:
        assert send(job, 2) == 2
    assert job.reports == [(1, 2, ""), (2, 2, "")]
    assert (job.attempt, job.remaining_attempts, job.queue, job.headers) == (2, 2, "mail", {"tenant": 7})
    with pytest.raises(RuntimeError, match="No job is running here"):
        current_context()


def test_a_cancelled_job_and_one_that_is_cancelled_while_it_runs() -> None:
    """A54: the body sees the wish, who has it and why."""
    assert send(context(cancelled=True), 3) == 0
    job = context()
    assert not job.cancelled
    job.cancel(by="anna", reason="wrong customer")
    assert (job.cancelled, job.cancelled_by, job.cancel_reason) == (True, "anna", "wrong customer")


def test_time_left_and_lost_trust_are_told() -> None:
    job = context(timeout=60, elapsed=50, lease_is_trusted=False)
    remaining = job.remaining()
    assert remaining is not None
    assert 0 < remaining <= 10
    assert not job.lease_is_trusted
    assert context().remaining() is None


def test_a_callback_gets_the_error_and_a_fire_its_instant() -> None:
    fire = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
    job = context(error=OSError("line is down"), cron_entry="nightly", fire_at=fire, run_at=fire)
    assert job.error is not None
    assert (job.error.kind, job.error.message) == ("OSError", "line is down")
    assert (job.cron_entry, job.fire_at, job.run_at) == ("nightly", fire, fire)
