"""What becomes ready behind a frontier is claimed within a second of the claimer's clock, which stands here.

Design §3, frontier. The claims are the claim thread's own, on a real connection; only time is the test's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from django_pgjobs import clock
from django_pgjobs.models import Job
from django_pgjobs.store import admitting, claiming, finalising
from django_pgjobs.store.finalising import End
from django_pgjobs.worker.threads import claimer as claimer_module
from django_pgjobs.worker.threads import reach as rules
from django_pgjobs.worker.threads.claim_options import ClaimOptions
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.frontier import Frontier
from django_pgjobs.worker.threads.inbox_messages import Claimed
from tests.plugins.fix_db import AUTHOR, FAILURE, WORKER, RawDatabase, register
from tests.unit.worker_fakes import Heard

Connect = Callable[..., RawDatabase]

BATCH = 100


class Worker:
    """One worker's claim thread, called claim by claim at instants that the test sets."""

    def __init__(self, db: RawDatabase, now: list[float]) -> None:
        self.db: Any = db
        self.now = now
        self.heard = Heard()
        options = ClaimOptions(
            WORKER, lease_seconds=30, allowance_seconds=5, grace_seconds=30, poll_seconds=5.0, notify=True
        )
        self.claimer = Claimer(lambda: self.db, self.heard, Frontier(), options)

    @property
    def reach(self) -> rules.Reach:
        return self.claimer.frontier.reaches["default", 0]

    def claim(self, seconds: float = 0.0, limit: int = BATCH) -> list[int]:
        """Claim once, so much later; return the ids."""
        self.now[0] += seconds
        before = len(self.heard.of(Claimed))
        self.claimer._claim(self.db, {False: limit})
        return [job.id for claimed in self.heard.of(Claimed)[before:] for job in claimed.jobs]

    def claim_for(self, seconds: float, wanted: set[int], limit: int = BATCH) -> float | None:
        """Claim every 50 ms for so long; return after how many seconds all that was ``wanted`` had been claimed."""
        missing, began = set(wanted), self.now[0]
        while self.now[0] < began + seconds:
            missing -= set(self.claim(0.05, limit))
            if not missing:
                return self.now[0] - began
        return None

    def done(self) -> None:
        """Let everything that it holds succeed."""
        for claimed in self.heard.of(Claimed):
            ends = [End(*job.fence, result="1") for job in claimed.jobs]
            finalising.finalise_success(self.db, ends, AUTHOR)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def worker(db_connection: Connect, now: list[float], committed: None) -> Worker:
    return Worker(db_connection(), now)


def busy(worker: Worker, count: int = 2000) -> None:
    """Give it more than it asks for, so that no claim comes back short, and let its frontier walk in."""
    register(count)
    for _ in range(5):
        worker.claim(0.05)
    worker.now[0] += rules.SCAN_FLOOR_SECONDS
    worker.claim()
    worker.claim()
    assert worker.reach.at > rules.BEGINNING


@pytest.mark.parametrize("sliced", [False, True], ids=["whole", "sliced"])
@pytest.mark.parametrize("behind", ["1 s", "30 s", "1 day"])
def test_a_late_commit_is_found(worker: Worker, other: RawDatabase, behind: str, sliced: bool) -> None:
    """A transaction that has registered and commits after the frontier has passed; while there is more than enough."""
    busy(worker)
    rows = other.query(
        "INSERT INTO pgjobs_job (name, payload, queue, run_at) SELECT 'test.job', '{}', 'default', "
        "statement_timestamp() - %s::interval FROM generate_series(1, 20) RETURNING id",
        [behind],
    )
    worker.claim(0.05)
    other.commit()
    late = {row[0] for row in rows}
    halvings = worker.reach.halvings = 12 if sliced else 0
    waited = worker.claim_for(3.0, late)
    assert waited is not None
    assert waited <= 1.2 + 0.05 * halvings, "a slice is a part of a claim, which come every few milliseconds"


def test_a_row_of_the_same_instant_and_a_lower_id_is_found(worker: Worker, raw: RawDatabase) -> None:
    ids = register(400)
    raw.query("UPDATE pgjobs_job SET run_at = '2026-01-01' WHERE true")
    raw.query("UPDATE pgjobs_job SET hold = 'parked' WHERE id = %s", [ids[3]])
    for _ in range(2):
        worker.claim(0.05)
    raw.query("UPDATE pgjobs_job SET hold = NULL WHERE id = %s", [ids[3]])
    waited = worker.claim_for(3.0, {ids[3]}, limit=10)
    assert waited is not None
    assert waited <= 1.2


def test_after_the_clock_was_set_back_new_jobs_do_not_wait(worker: Worker, raw: RawDatabase) -> None:
    """What the frontier has seen is in the future then, even if no sweep is due."""
    busy(worker)
    worker.reach.at = (worker.reach.at[0].replace(year=2999), 7)
    worker.reach.scan_due = worker.reach.near_due = 1e9
    [new] = register()
    raw.query("UPDATE pgjobs_job SET run_at = '2001-01-01' WHERE id <> %s AND claim_id IS NULL", [new])
    assert worker.claim() == [new]
    assert worker.reach.at[0].year < 2999


def test_a_bulk_retry_is_found_beside_a_backlog(worker: Worker) -> None:
    """It is ready now: behind the frontier only by the short time since."""
    failed = register(300)
    worker.claim(0.05, 300)
    ends = [
        End(*job.fence, failure=FAILURE, outcome="abandoned", cause="failed", seconds=0.0, delay=0.0)
        for claimed in worker.heard.of(Claimed)
        for job in claimed.jobs
    ]
    finalising.finalise_end(worker.db, ends, AUTHOR)
    busy(worker, 600)
    Job.objects.filter(pk__in=failed).retry()
    assert worker.claim_for(3.0, set(failed)) is not None


def test_released_rows_far_behind_are_claimed_one_claim_after_the_other(worker: Worker, raw: RawDatabase) -> None:
    """They keep their old instant. Once found, they are not waited for again."""
    old = register(1000)
    raw.query("UPDATE pgjobs_job SET run_at = run_at - interval '9 days', hold = 'parked' WHERE true")
    busy(worker, 4000)
    raw.query("UPDATE pgjobs_job SET hold = NULL WHERE id = ANY (%s)", [old])
    worker.reach.halvings = 12
    waited = worker.claim_for(5.0, set(old))
    assert waited is not None
    assert waited <= 1.0 + 0.05 * (len(old) / BATCH + 40)


@pytest.mark.parametrize("sliced", [False, True], ids=["whole", "sliced"])
def test_what_is_said_to_be_given_back_does_not_wait_for_the_next_sweep(
    worker: Worker, raw: RawDatabase, sliced: bool
) -> None:
    """Another worker had it, so the full scan found nothing, was expensive, and must not repeat soon."""
    old = register(BATCH)
    raw.query("UPDATE pgjobs_job SET run_at = run_at - interval '9 days', hold = 'parked' WHERE true")
    busy(worker, 4000)
    worker.reach.scan_due = worker.now[0] + 60.0
    halvings = worker.reach.halvings = 12 if sliced else 0
    raw.query("UPDATE pgjobs_job SET hold = NULL WHERE id = ANY (%s)", [old])
    assert worker.claim_for(1.5, set(old)) is None, "one that is not told of waits"
    worker.claimer.wake_for_released("default")
    worker.claimer.hints.hand_over(worker.claimer.lines.values())
    waited = worker.claim_for(3.0, set(old))
    assert waited is not None
    assert waited <= 0.05 * (2 + halvings)


def test_what_another_worker_has_released_is_found(worker: Worker, db_connection: Connect, now: list[float]) -> None:
    """Several workers: each has its own frontier, and the row is behind both."""
    second = Worker(db_connection(), now)
    register(2000)
    first_claim = worker.claim(0.05)
    for _ in range(6):
        second.claim(0.05)
    [claimed, *_] = worker.heard.of(Claimed)
    finalising.release_jobs(worker.db, [End(*job.fence) for job in claimed.jobs], AUTHOR)
    assert second.claim_for(3.0, set(first_claim)) is not None


def test_thousands_of_running_jobs_in_front_hide_nothing(worker: Worker, raw: RawDatabase) -> None:
    register(5000)
    while len(worker.claim(0.01, 500)) == 500:
        pass
    [new] = register()
    assert worker.claim_for(3.0, {new}) is not None
    [old] = register()
    raw.query("UPDATE pgjobs_job SET run_at = '2001-01-01' WHERE id = %s", [old])
    waited = worker.claim_for(3.0, {old})
    assert waited is not None
    assert waited <= 1.2


def test_a_claim_that_is_given_up_again_and_again_still_claims_what_is_new(
    worker: Worker, raw: RawDatabase, now: list[float]
) -> None:
    """The statement timeout hits a worker that starts behind more dead rows than it can pass in that time."""
    register(50)
    raw.query("UPDATE pgjobs_job SET run_at = '2001-01-01' WHERE true")
    worker.claimer.hints.refresh(worker.db, worker.claimer.lines)
    plan = worker.claimer.frontier.plan(now[0])
    worker.claimer.frontier.gave_up(plan, now[0], 3.3)
    [new] = register()
    assert worker.claim(0.05) == [new]
    everything = {job.pk for job in Job.objects.filter(claim_id=None)}
    waited = worker.claim_for(200.0, everything)
    assert waited is not None, "the slices come to the old ones too"


def test_what_a_limit_lets_in_is_found_at_once_beside_a_backlog(worker: Worker, raw: RawDatabase) -> None:
    """Its jobs are older than those that fill every claim; a claim or two takes each of them."""
    held = register(10, limit_key="a")
    raw.query("UPDATE pgjobs_job SET run_at = '2026-01-01' WHERE hold = 'limited'")
    busy(worker)
    for each in held:
        assert admitting.admit_one(raw, each)
        worker.claimer.wake_for_admitted(("default", 0))
        worker.claimer.hints.hand_over(worker.claimer.lines.values())
        assert worker.claim_for(0.2, {each}) is not None


@pytest.mark.parametrize("seconds", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("announced", [True, False], ids=["announced", "due"])
def test_a_row_that_was_locked_when_its_turn_came_waits_about_as_long_again(
    worker: Worker, other: RawDatabase, monkeypatch: pytest.MonkeyPatch, seconds: float, announced: bool
) -> None:
    """As one that a new job needs: a claim skips it, and the commit that unlocks it unchanged tells nobody."""
    [job_id] = register()
    other.lock(job_id)
    claimer, now = worker.claimer, worker.now
    claimer.options = replace(claimer.options, poll_seconds=3600.0)
    claimer.listening.set()
    if announced:
        claimer.wake_for(("default", 0))
    else:  # nothing has happened for long, and now the job for which the thread has slept
        dues = itertools.chain([0.5], itertools.repeat(None))
        monkeypatch.setattr(claiming, "next_due", lambda db, pairs: next(dues))
    began = now[0] if announced else now[0] + 0.5

    def sleep(pause: float, notified: int) -> bool:
        now[0] += pause
        if now[0] >= began + seconds:
            other.rollback()
        return False

    monkeypatch.setattr(claimer, "_sleep", sleep)
    while not (found := worker.claim()) and now[0] < began + 3600.0:
        claimer._rest(worker.db, claimer.notified)
    assert found == [job_id]
    assert now[0] - began <= 2 * seconds + claimer_module.FIRST_POLL_SECONDS
