"""kill −9 at the points of a job's way, with an heir: a worker that rescues from the start, but claims nothing before.

So the time from a death until others go on is measured, and not their start. ``test_faults_crashes`` goes through the
protocol's table; here are what is charged when nothing is left to try, writes that fail, and every point in turn under
jobs of every kind. Leases of 1.5 s (``fix_chaos.LEASES``).
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_pgjobs import clock
from django_pgjobs.models import Job
from tests.chaos import history as h
from tests.chaos.failpoints import EXECUTOR, PLACES, SUPERVISOR, armed
from tests.chaos.ground import Ground
from tests.chaos.helping import LEASE, Record
from tests.chaos.jobs import aact, act, called
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history

pytestmark = pytest.mark.chaos

RESCUED = LEASE + 2
"""Seconds from a worker's death until others run its jobs."""

REPLACED = 2
"""Seconds from an executor's death until its jobs run again: recorded at once, and a process is started."""

HEIR: dict[str, Any] = {"claiming": {"do": "wait"}}

UNREACHED = {"spawned", "rescuing", "rescued", "firing", "fired"}
"""Points where a supervisor has nothing of its own: its start, the rescue of others, fires (``test_faults_cron``)."""

OF_OTHER_JOBS = {"closing", "committing", "stepping", "stepped", "suspending", "suspended"}
"""Points of atomic jobs (``e2e/test_atomic_crashes``) and of durable functions (``e2e/test_remembering``)."""

RARE = {"settling", "releasing", "released"}
"""Points that are reached when an executor dies, or a job is to be handed back."""


class Strike:
    """A fail point that has struck: whom, and when."""

    def __init__(self, ground: Ground, name: str) -> None:
        wait_until(lambda: ground.journal.count("failpoint", name=name), 30, f"the point {name} strikes")
        self.ground = ground
        self.line = next(line for line in ground.journal.lines("failpoint") if line["name"] == name)
        at = self.line["wall"] / 1e9
        ground.faults.append(h.Fault(h.KILL, at, at, frozenset({self.line["pid"], self.line["parent"]})))

    def recovered(self, record: Record, at_most: float, key: str, part: str = "body") -> None:
        """Record the seconds until the job ``key`` (or its callback) was started after the strike."""
        starts = (s["at"] for s in self.ground.journal.lines("start") if (s["key"], s["part"]) == (key, part))
        took = (min(at for at in starts if at > self.line["at"]) - self.line["at"]) / 1e9
        check(record, took, at_most)


def check(record: Record, took: float, at_most: float) -> None:
    record("recovery_seconds", round(took, 2))
    assert took <= patience(at_most), f"recovery took {took:.2f} s, promised are {at_most:g} s"


def since(strike: Strike) -> float:
    """Return the seconds since it struck."""
    return clock.monotonic() - float(strike.line["at"]) / 1e9


def worker_and_heir(ground: Ground, points: dict[str, Any], **sizes: Any) -> tuple[WorkerProcess, WorkerProcess]:
    """Start a worker with these points armed, and its heir."""
    return ground.workers(env=armed(**points), **sizes), ground.workers(env=armed(**HEIR), **sizes)


def inherit(ground: Ground, victim: WorkerProcess) -> None:
    """Wait for the end of a killed worker and let its heir claim."""
    ground.gone(victim)
    ground.stage.open("failpoint-claiming")


def story(ground: Ground, job: Job, timeout: float = 20) -> tuple[str | None, int, list[tuple[int, str]], int, int]:
    """Wait for a job's end: (outcome, attempt, causes, starts of its body, starts of its callbacks)."""
    (after,) = ended(job, timeout=timeout)
    bodies = ground.journal.count("start", job=job.pk, part="body")
    callbacks = ground.journal.count("start", job=job.pk) - bodies
    return after.outcome, after.attempt, history(job), bodies, callbacks


# Claimed, sent, not started


@pytest.mark.parametrize("point", ["claimed", "adopted"])
def test_the_supervisor_dies_with_a_claim_that_it_has_sent_to_nobody(
    ground: Ground, record_property: Record, point: str
) -> None:
    """C12 W21: nobody can know that it had not started, so it is charged; it runs at the heir's."""
    victim, _ = worker_and_heir(ground, {point: {"do": "kill"}})
    job, once = ground.register.many([(act, "succeed", "job", {}), (act.using(max_attempts=1), "succeed", "once", {})])
    strike = Strike(ground, point)
    inherit(ground, victim)
    assert story(ground, job) == ("succeeded", 2, [(1, "lost")], 1, 0)
    assert story(ground, once) == ("abandoned", 1, [(1, "lost")], 0, 0)
    strike.recovered(record_property, RESCUED, "job")
    ground.check()


# Finished, the outcome not told


def test_an_executor_dies_while_it_sends_the_outcome_of_a_job(ground: Ground, record_property: Record) -> None:
    """C29: its outcome is lost, which is charged: with one attempt it must not run twice."""
    ground.workers(env=armed(sending={"do": "kill"}), threads=1)
    once = ground.register(act.using(max_attempts=1), key="once")
    strike = Strike(ground, "sending")
    assert story(ground, once) == ("abandoned", 1, [(1, "crashed")], 1, 0)
    assert "its outcome was lost" in once.attempts.get().message
    probe = ground.register(act, key="probe")
    assert story(ground, probe) == ("succeeded", 1, [], 1, 0)
    strike.recovered(record_property, REPLACED, "probe")
    ground.check()


@pytest.mark.parametrize("point", ["done", "flushing"])
def test_the_supervisor_dies_with_an_outcome_that_it_has_not_written(
    ground: Ground, record_property: Record, point: str
) -> None:
    """C12 W21: the job is charged as lost and runs again; with one attempt it does not."""
    victim, _ = worker_and_heir(ground, {point: {"do": "kill"}})
    job, once = ground.register.many(
        [(act, "wait", "job", {"gate": "go"}), (act.using(max_attempts=1), "wait", "once", {"gate": "go"})]
    )
    wait_until(lambda: ground.journal.count("start") == 2, 20, "both run")
    ground.stage.open("go")
    strike = Strike(ground, point)
    inherit(ground, victim)
    assert story(ground, job) == ("succeeded", 2, [(1, "lost")], 2, 0)
    assert story(ground, once) == ("abandoned", 1, [(1, "lost")], 1, 0)
    strike.recovered(record_property, RESCUED, "job")
    ground.check()


@pytest.mark.parametrize("point", ["flushing", "flushed"])
def test_a_flush_that_fails_is_repeated(ground: Ground, record_property: Record, point: str) -> None:
    """I2 I9: whether or not it was written, the fence lets it stand once."""
    ground.workers(env=armed(**{point: {"do": "trouble", "times": 2}}))
    job = ground.register(act.using(max_attempts=1), key="job")
    strike = Strike(ground, point)
    assert story(ground, job) == ("succeeded", 1, [], 1, 0)
    check(record_property, since(strike), 5)
    ground.check()


# In the ending


FAILED = [(1, "failed"), (2, "failed")]


def test_the_supervisor_dies_before_the_ending_is_written(ground: Ground, record_property: Record) -> None:
    """C12 W21: the failure is not known, so the attempt is lost; none is left, and the callback runs."""
    victim, _ = worker_and_heir(ground, {"marking": {"do": "kill"}})
    job = ground.register(called, "raise", key="job")
    strike = Strike(ground, "marking")
    inherit(ground, victim)
    assert story(ground, job) == ("abandoned", 2, [(1, "failed"), (2, "lost")], 2, 1)
    strike.recovered(record_property, RESCUED, "job", "on_abandon")
    ground.check()


def test_the_supervisor_dies_after_the_ending_is_written(ground: Ground, record_property: Record) -> None:
    """C12 I12: only the callback is left; the body does not run again."""
    victim, _ = worker_and_heir(ground, {"marked": {"do": "kill"}})
    job = ground.register(called, "raise", key="job")
    strike = Strike(ground, "marked")
    inherit(ground, victim)
    assert story(ground, job) == ("abandoned", 2, FAILED, 2, 1)
    strike.recovered(record_property, RESCUED, "job", "on_abandon")
    ground.check()


def test_the_supervisor_dies_while_a_callback_runs(ground: Ground, record_property: Record) -> None:
    """C12 I12: the callback is started again, elsewhere; the body is not."""
    victim, _ = worker_and_heir(ground, {"callback": {"do": "kill_both", "after": 1}})
    job = ground.register(called, "raise", key="job")
    strike = Strike(ground, "callback")
    inherit(ground, victim)
    assert story(ground, job) == ("abandoned", 2, FAILED, 2, 1)
    strike.recovered(record_property, RESCUED, "job", "on_abandon")
    ground.check()


# Told to stop


def test_a_success_between_sigterm_and_death_stands(ground: Ground, record_property: Record) -> None:
    """C26: a neighbour's, whose executor is then killed for another job; and that of the job that was meant."""
    process = ground.workers(threads=2)
    slow = ground.register(act.using(timeout=1, max_attempts=1), "deaf", seconds=30)
    neighbour = ground.register(act.using(max_attempts=1), "wait", gate="go")
    process.wait_for_log("executor terminated cause=timeout")
    ground.stage.open("go")
    assert story(ground, neighbour) == ("succeeded", 1, [], 1, 0)
    assert story(ground, slow) == ("abandoned", 1, [(1, "timeout")], 1, 0)
    killed = time.monotonic()
    late = ground.register(act.using(timeout=1, max_attempts=1), "deaf", seconds=4.6)
    wait_until(lambda: ground.journal.count("start") == 3, 20, "the next one runs")
    check(record_property, time.monotonic() - killed, REPLACED)
    process.wait_for_log("executor terminated cause=timeout", times=2)
    assert story(ground, late) == ("succeeded", 1, [], 1, 0)
    assert not process.said("executor killed", times=2)
    ground.check()


# Anywhere


def points_of(process: str) -> dict[str, Any]:
    """Return the points that the jobs here reach in such processes, each to kill once."""
    names = [name for name, place in PLACES.items() if place.process == process]
    return {name: {"do": "kill"} for name in names if name not in UNREACHED | OF_OTHER_JOBS}


def some_of_each(ground: Ground) -> list[Job]:
    """Register jobs of every kind, the first of them long."""
    steady = act.using(max_attempts=50)
    wanted: list[Any] = [(steady, "sleep", "", {"seconds": 0.5}), (aact.using(max_attempts=50), "succeed", "", {})]
    wanted += [(steady, "sleep", "", {"seconds": 0.02})] * 5
    wanted += [(steady, "fail", "", {"times": 1}), (steady, "snooze", "", {}), (called, "raise", "", {})]
    wanted += [(steady, "cancel", "", {}), (steady, "abandon", "", {})]
    return ground.register.many(wanted)


def strikes(ground: Ground) -> set[str]:
    return {line["name"] for line in ground.journal.lines("failpoint")}


def all_is_well(ground: Ground, record: Record, jobs: list[Job], last: Strike, within: float) -> None:
    ended(*jobs, timeout=within)
    check(record, since(last), within)
    assert story(ground, ground.register(act)) == ("succeeded", 1, [], 1, 0)
    report = ground.check(recovery_seconds=2)
    assert report.counts["rows"] == len(jobs) + 1, report


def test_wherever_a_supervisor_is_killed_every_job_ends_once(ground: Ground, record_property: Record) -> None:
    """C12 I1 I2: one worker after the other dies at the first point that none has died at, under jobs of every kind."""
    ground.workers("--queues=nobody")
    points = points_of(SUPERVISOR)
    jobs: list[Job] = []
    struck: list[Strike] = []
    for turn in range(len(points)):
        seen = strikes(ground)
        if seen == set(points):  # two threads may have reached theirs at once
            break
        victim = ground.workers(env=armed(**points), threads=3)
        jobs += some_of_each(ground)
        if set(points) - seen <= RARE:
            jobs += [ground.register(act.using(max_attempts=50), "sleep", key=f"long-{turn}", seconds=5)]
            jobs += [ground.register(act.using(max_attempts=50), "die", times=1)]
            wait_until(lambda turn=turn: ground.journal.count("start", key=f"long-{turn}"), 20, "it runs")  # type: ignore[misc]
            jobs[-2].release()
        wait_until(
            lambda victim=victim: victim.process.poll() is not None,  # type: ignore[misc]
            30,
            f"a worker is killed at one of {set(points) - seen}",
        )
        new = strikes(ground) - seen
        assert new
        struck += [Strike(ground, name) for name in new]
        ground.gone(victim)
    assert strikes(ground) == set(points)
    ground.workers(threads=3)
    all_is_well(ground, record_property, jobs, struck[-1], 20)


def test_wherever_an_executor_is_killed_every_job_ends_once(ground: Ground, record_property: Record) -> None:
    """C29 I1 I2: one executor after the other dies at the first point that none has died at."""
    points = points_of(EXECUTOR)
    ground.workers(env=armed(**points), processes=2, threads=3)
    jobs: list[Job] = []
    while strikes(ground) != set(points):
        before = len(strikes(ground))
        jobs += some_of_each(ground)
        wait_until(lambda before=before: len(strikes(ground)) > before, 20, f"one more than {before} points strike")  # type: ignore[misc]
    last = max((Strike(ground, name) for name in points), key=lambda strike: int(strike.line["at"]))
    all_is_well(ground, record_property, jobs, last, 20)
