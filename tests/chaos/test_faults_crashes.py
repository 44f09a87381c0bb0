"""kill −9 at each row of the protocol's crash table, by fail points: the process dies there and nowhere else.

A lease of 1.5 s, renewed each 0.4 s (``fix_chaos.LEASES``). There are no ``atomic=True`` jobs yet, so their two rows of
the table are not here; "SIGTERM sent, the job succeeds" is ``tests/e2e/test_ladder.py``.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_pgjobs.models import Job
from django_pgjobs.models.attempts import Claim
from tests.chaos.failpoints import armed
from tests.chaos.ground import Ground
from tests.chaos.jobs import act, called
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history

pytestmark = pytest.mark.chaos

LEASE_SECONDS = 1.5


def killed_at(ground: Ground, point: str, *registering: Any) -> tuple[WorkerProcess, list[Job]]:
    """Let a worker run these jobs until its supervisor dies at ``point``; return another worker and the jobs."""
    first = ground.workers(env=armed(**{point: {"do": "kill"}}), threads=2, ready=False)
    with ground.fault("kill", first.pid):
        jobs = [ground.register(*each) for each in registering]
        wait_until(lambda: first.process.poll() is not None, 30, f"the supervisor has died at {point}")
    ground.gone(first)
    assert ground.journal.count("failpoint", name=point) == 1
    return ground.workers(threads=2), jobs


def settled(jobs: list[Job], record: Any, within: float) -> list[Job]:
    """Wait until these jobs have ended, counted from the next worker's being ready."""
    began = time.monotonic()
    after = ended(*jobs)
    took = time.monotonic() - began
    record("recovery_seconds", round(took, 2))
    assert took < patience(within)
    wait_until(lambda: not Claim.objects.exists(), 10, "nothing is left in the ledger")
    return after


def starts(ground: Ground, part: str = "body") -> int:
    return ground.journal.count("start", part=part)


@pytest.mark.parametrize(
    ("point", "runs", "attempt", "told"),
    [
        ("received", 1, 1, []),  # sent, not started: free again
        ("started", 1, 2, [(1, "crashed")]),  # on the board, not a line of its own has run: charged
        ("body", 1, 2, [(1, "crashed")]),
        ("finished", 2, 2, [(1, "crashed")]),
        ("queued", 2, 2, [(1, "crashed")]),  # off the board, its outcome not sent: lost with its process
    ],
)
def test_an_executor_dies_alone_with_a_job(
    ground: Ground, record_property: Any, point: str, runs: int, attempt: int, told: list[tuple[int, str]]
) -> None:
    """C29 C36 D18, crash table: the board says what was started; only that is charged, at once."""
    ground.workers(env=armed(**{point: {"do": "kill"}}), threads=1)
    with ground.fault("kill"):
        job = ground.register(act)
        (after,) = settled([job], record_property, 3.0)
    assert (after.outcome, after.attempt, history(after)) == ("succeeded", attempt, told)
    assert starts(ground) == runs
    ground.check()


@pytest.mark.parametrize("point", ["finished", "queued"])
def test_a_job_with_one_attempt_is_not_run_twice_for_a_lost_outcome(
    ground: Ground, record_property: Any, point: str
) -> None:
    """C17 C36 X8, crash table: nobody knows how it ended, so it is charged and given up."""
    ground.workers(env=armed(**{point: {"do": "kill"}}), threads=1)
    with ground.fault("kill"):
        job = ground.register(act.using(max_attempts=1))
        (after,) = settled([job], record_property, 3.0)
    assert (after.outcome, history(after)) == ("abandoned", [(1, "crashed")])
    assert starts(ground) == 1
    ground.check()


@pytest.mark.parametrize("point", ["body", "finished"])
def test_an_executor_dies_with_jobs_in_company(ground: Ground, record_property: Any, point: str) -> None:
    """D18, crash table: each half runs again by itself, uncharged; who had finished and was not heard is charged."""
    ground.workers(env=armed(**{point: {"do": "kill", "after": 3}}), threads=3)
    with ground.fault("kill"):
        jobs = [ground.register(act, "wait", gate="go") for _ in range(2)]
        wait_until(lambda: starts(ground) == 2, 15, "two are running")
        jobs.append(ground.register(act))
        if point == "finished":
            ground.stage.open("go")
        wait_until(lambda: ground.journal.count("failpoint", name=point) == 1, 15, "their executor has died")
        ground.stage.open("go")
        after = settled(jobs, record_property, 6.0)
    assert [job.outcome for job in after] == ["succeeded"] * 3
    # Of those that finish, outcomes may be lost with the process: these are charged, once each.
    assert all(job.attempt == (1 if point == "body" else len(history(job)) + 1) <= 2 for job in after)
    ground.check()


@pytest.mark.parametrize("point", ["claimed", "adopted"])
def test_a_claim_is_committed_and_its_worker_dies(ground: Ground, record_property: Any, point: str) -> None:
    """C12 C16 C36, crash table: nothing was sent, so nothing ran; the lease runs out, and the start is charged."""
    _, jobs = killed_at(ground, point, (act,), (act,))
    after = settled(jobs, record_property, LEASE_SECONDS + 2)
    assert {job.outcome for job in after} == {"succeeded"}
    assert [(1, "lost")] in [history(job) for job in after]
    assert starts(ground) == 2
    ground.check()


@pytest.mark.parametrize("point", ["sent", "renewing", "renewed", "done", "flushing"])
def test_a_supervisor_dies_with_jobs_under_way(ground: Ground, record_property: Any, point: str) -> None:
    """C12 C16 C38, crash table: whatever was not recorded is lost with its lease, or given back by the executor."""
    _, jobs = killed_at(ground, point, (act, "sleep"), (act,), (act, "sleep"))
    after = settled(jobs, record_property, LEASE_SECONDS + 4)
    assert {job.outcome for job in after} == {"succeeded"}
    assert all(history(job) in ([], [(1, "lost")]) for job in after)
    ground.check()


@pytest.mark.parametrize("point", ["flushed", "deleting"])
def test_a_supervisor_dies_when_an_end_is_recorded(ground: Ground, record_property: Any, point: str) -> None:
    """C46, crash table: recorded is recorded; the ledger row that is left goes at the next look."""
    _, jobs = killed_at(ground, point, (act,))
    (after,) = settled(jobs, record_property, LEASE_SECONDS + 2)
    assert (after.outcome, after.attempt, history(after)) == ("succeeded", 1, [])
    assert starts(ground) == 1
    ground.check()


@pytest.mark.parametrize(("point", "callbacks"), [("marked", 1), ("callback", 1), ("called_back", 2)])
def test_who_dies_after_the_mark_leaves_the_callback_and_nothing_else(
    ground: Ground, record_property: Any, point: str, callbacks: int
) -> None:
    """C36 A5 I12, crash table: `ending` is written, so the body never runs again; the callback may."""
    raising = (called.using(max_attempts=1), "raise")
    if point == "marked":
        _, jobs = killed_at(ground, point, raising)
        after = settled(jobs, record_property, LEASE_SECONDS + 2)
    else:
        ground.workers(env=armed(**{point: {"do": "kill"}}), threads=1)
        with ground.fault("kill"):
            after = settled([ground.register(*raising)], record_property, 3.0)
    assert [job.outcome for job in after] == ["abandoned"]
    assert "Told" in after[0].error
    assert (starts(ground), starts(ground, "on_abandon")) == (1, callbacks)
    ground.check()
