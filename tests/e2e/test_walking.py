"""``context.each`` in real workers that are drained and killed, and whose operator releases, pauses and cancels."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from django_pgjobs.models import Job
from tests.e2e import walking
from tests.e2e.stage import Stage
from tests.e2e.walking import effects
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers, ended, history, read, started

CONF = {"LEASE_SECONDS": 3.0, "RENEW_SECONDS": 1.0, "DRAIN_SECONDS": 60.0}

ALL = list(range(6))

kinds = pytest.mark.parametrize(
    ("kind", "atomic"),
    [(walking.gated, False), (walking.gated, True), (walking.agated, False)],
    ids=["plain", "atomic", "async"],
)


@pytest.fixture(autouse=True)
def table(committed: None) -> Iterator[None]:
    with walking.laid_out():
        yield


def at_its_third_row(stage: Stage, kind: Any, *, atomic: bool) -> Job:
    job: Job = kind.register("one", atomic)
    started(stage, "one")
    return job


@kinds
def test_a_drain_ends_it_behind_its_row_and_another_worker_goes_on(
    worker: Workers, stage: Stage, kind: Any, atomic: bool
) -> None:
    """Uncharged; the worker need not wait for the rest."""
    process = worker(conf=CONF)
    job = at_its_third_row(stage, kind, atomic=atomic)
    assert process.stop() == 0, process.log
    after = read(job)
    assert (after.state, after.attempt, history(job)) == ("ready", 0, [(1, "released")])
    assert after.options == {"each": {"each": {"n": 3, "of": 6, "at": 2}}}
    assert effects(job.pk) == [0, 1, 2]
    worker(conf=CONF)
    assert [(each.outcome, each.attempt) for each in ended(job)] == [("succeeded", 1)]
    assert effects(job.pk) == ALL


@pytest.mark.parametrize("inline", [False, True], ids=["executor", "inline"])
def test_a_release_ends_it_behind_its_row(worker: Workers, stage: Stage, inline: bool) -> None:
    """Announced a second before the worker interrupts; it goes on at once."""
    worker("--inline", conf=CONF, ready=False) if inline else worker(conf=CONF)
    job = at_its_third_row(stage, walking.gated, atomic=True)
    job.release(by="anna")
    (after,) = ended(job)
    assert (after.outcome, after.attempt, history(job)) == ("succeeded", 1, [(1, "released")])
    (trace,) = stage.traces("told", "one")
    why, left = trace.words[2:]
    assert (why, left == "None" if inline else float(left) <= 1) == ("release", True)
    assert effects(job.pk) == ALL


def test_a_paused_one_is_held_once_it_is_released(worker: Workers, stage: Stage) -> None:
    worker(conf=CONF)
    job = at_its_third_row(stage, walking.gated, atomic=True)
    walking.gated.pause(reason="The database is busy.")
    job.release(by="anna")
    wait_until(lambda: read(job).state == "paused", 20, "it is held")
    assert effects(job.pk) == [0, 1, 2]
    walking.gated.resume()
    (after,) = ended(job)
    assert (after.outcome, after.attempt, effects(job.pk)) == ("succeeded", 1, ALL)


def test_a_cancel_ends_it_behind_its_row(worker: Workers, stage: Stage) -> None:
    worker(conf=CONF)
    job = at_its_third_row(stage, walking.gated, atomic=True)
    job.cancel(by="anna")
    assert ended(job)[0].outcome == "cancelled"
    assert effects(job.pk) == [0, 1, 2]


def test_a_killed_executor_leaves_no_half_batch(worker: Workers, stage: Stage) -> None:
    process = worker(conf=CONF)
    job = at_its_third_row(stage, walking.gated, atomic=True)
    (executor,) = process.executors()
    os.kill(executor, signal.SIGKILL)
    stage.open("one")
    (after,) = ended(job, timeout=40)
    assert (after.outcome, history(job)) == ("succeeded", [(1, "crashed")])
    assert effects(job.pk) == ALL


def test_a_worker_that_has_lost_it_leaves_no_effect(worker: Workers, stage: Stage, raw: RawDatabase) -> None:
    """Frozen at a row until another worker has run the job: its batch is refused at the fence."""
    frozen = worker(conf=CONF)
    job = at_its_third_row(stage, walking.gated, atomic=True)
    freeze(frozen, signal.SIGSTOP)
    try:
        stage.open("one")
        worker(conf=CONF)
        (after,) = ended(job, timeout=40)
        assert (after.outcome, effects(job.pk)) == ("succeeded", ALL)
    finally:
        freeze(frozen, signal.SIGCONT)
    assert frozen.stop(60) == 0, frozen.log
    assert effects(job.pk) == ALL
    assert read(job).options == {"each": {"each": 6}}


def freeze(process: WorkerProcess, number: int) -> None:
    for pid in process.processes():
        os.kill(pid, number)
