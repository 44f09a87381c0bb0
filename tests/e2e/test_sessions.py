"""Whatever a job leaves on the session of its connection, the next job of the same thread finds none of it."""

from __future__ import annotations

from typing import Any

import pytest

from django_pgjobs.models import Job
from tests.e2e import decorated, jobs, sessions
from tests.plugins.fix_worker import WorkerProcess, ended

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"threads": 1}
"""Only the number of threads differs from what a project gets: connections are kept as by default."""


def tell() -> dict[str, Any]:
    (job,) = ended(sessions.tells_its_session.register())
    assert job.outcome == "succeeded", job.error
    assert Job.objects.get(pk=job.pk).description == "written", "what it wrote was rolled back"
    return dict(job.result or {})


@pytest.mark.parametrize("how", sorted(sessions.LEFT))
def test_the_next_job_finds_a_session_as_new(shared_worker: WorkerProcess, how: str) -> None:
    """Settings, roles, locks, channels, temporary tables, cursors, prepared statements, transactions."""
    before = tell()
    (left,) = ended(sessions.leaves_behind.register(how))
    assert left.outcome == "succeeded", left.error
    assert tell() == before
    if how.partition(" ")[0] in ("transaction", "failed"):
        shared_worker.wait_for_log(rf"job left a transaction open, rolled back .* job={left.pk}")


def test_a_session_that_was_reset_is_kept(shared_worker: WorkerProcess) -> None:
    backends = {job.result for job in ended(*[sessions.leaves_behind.register("own setting") for _ in range(5)])}
    assert len(backends) == 1


def test_a_job_that_a_temporary_table_would_have_swallowed_is_stored(shared_worker: WorkerProcess) -> None:
    """A job registers another after one has made a temporary table that hides the jobs."""
    ended(sessions.leaves_behind.register("temporary table"))
    before = Job.objects.count()
    ended(jobs.no_op.register())
    assert Job.objects.count() == before + 1


@pytest.mark.parametrize("where", ["before", "in"])
def test_nothing_is_remembered_in_a_transaction_that_sql_has_begun(shared_worker: WorkerProcess, where: str) -> None:
    """The memo would be rolled back with it, and the step would run again."""
    (job,) = ended(sessions.remembers_after_begin.register(where))
    assert job.outcome == "abandoned"
    assert "transaction that the job has begun by SQL" in job.error


def test_what_a_body_returns_is_awaited_and_of_a_plain_step_refused(shared_worker: WorkerProcess) -> None:
    """A plain decorator hides that a function is async: its body runs all the same."""
    body, step = ended(decorated.awaited.register(4), decorated.has_a_hidden_step.register(4))
    assert (body.outcome, body.result) == ("succeeded", 5), body.error
    assert step.outcome == "abandoned"
    assert "a coroutine that nobody awaits" in step.error
