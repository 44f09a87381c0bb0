"""Executors without their supervisor: it was killed, or it stands still; and jobs that keep an interpreter for long."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from django_pgjobs import register_many
from django_pgjobs.models import Job
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, patience, wait_until
from tests.plugins.fix_worker import Workers, ended, history, read, started

SHORT = {"LEASE_SECONDS": 2.0, "RENEW_SECONDS": 0.5, "BEAT_SECONDS": 1.0, "STALE_SECONDS": 3.0}


def test_what_a_killed_worker_had_not_started_is_ready_again_at_once(
    worker: Workers, stage: Stage, raw: RawDatabase
) -> None:
    """C53 C55: uncharged, under the fence, long before the lease runs out; what ran waits for the lease."""
    process = worker(threads=1)
    ended(*Job.objects.filter(pk__in=register_many(jobs.no_op.bind() for _ in range(500))))  # learns: jobs are short
    ids = register_many([jobs.waits.bind("slow"), *(jobs.effect.bind(n) for n in range(40))])
    started(stage, "slow")
    sent = Job.objects.filter(pk__in=ids[1:], outcome=None).exclude(claim_id=None)
    wait_until(lambda: sent.exists(), 5, "some wait behind the slow one")
    raw.query("LISTEN pgjobs")
    began = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    process.process.wait(patience(10))
    wait_until(lambda: process.said("jobs that had not started were released"), 3, "those behind are back")
    assert time.monotonic() - began < patience(3)
    told = raw.raw.notifies(timeout=1, stop_after=2)
    assert {note.payload for note in told} == {"0:default", "behind:default"}, "so that other workers look for them"
    [back] = re.findall(r"were released jobs=(\d+)", process.log)
    behind = Job.objects.filter(pk__in=ids[1:], outcome=None)
    assert int(back) > 0
    assert [job.state for job in behind].count("ready") >= int(back)
    assert {(job.attempt, job.overdue_at) for job in behind if job.state == "ready"} == {(0, None)}
    assert read(Job.objects.get(pk=ids[0])).state == "running"
    wait_until(lambda: not process.processes(), 5, "no process is left")


def test_a_channel_that_a_job_has_broken_gives_nothing_back_behind_the_worker(worker: Workers, stage: Stage) -> None:
    """The supervisor lives, still holds the claims, and settles them itself: released behind its back, they would
    run twice."""
    process = worker(threads=1, conf={"POLL_SECONDS": 60})
    ended(*Job.objects.filter(pk__in=register_many(jobs.no_op.bind() for _ in range(500))))
    breaking, *behind = register_many([jobs.breaks_the_channel.bind(), *(jobs.effect.bind(n) for n in range(40))])
    after = ended(*Job.objects.filter(pk__in=behind))
    assert {(job.outcome, job.attempt) for job in after} == {("succeeded", 1)}
    assert stage.count("effect") == 40
    assert not process.said("were released")
    assert history(ended(Job.objects.get(pk=breaking))[0]) == [(1, "crashed")]


@pytest.mark.slow
def test_a_frozen_worker_wakes_up_and_changes_nothing(worker: Workers, stage: Stage) -> None:
    """C12 C16: what it ran has been ended by then, a job that holds the interpreter included; others ran it."""
    zombie = worker(processes=2, conf=SHORT)
    stubborn, quiet = jobs.holds_the_gil_for_ever.register(), jobs.waits.register("one")
    wait_until(lambda: stage.count("start", "gil"), 15, "the interpreter is held")
    started(stage, "one")
    executors = zombie.executors()
    assert len(executors) == 2
    os.kill(zombie.pid, signal.SIGSTOP)
    wait_until(lambda: not _living(executors), SHORT["LEASE_SECONDS"] + 1, "the watchdog has ended its executors")
    zombie.wait_for_log("pgjobs watchdog: the supervisor has stalled")
    zombie.wait_for_log("most recent call first")
    Job.objects.filter(pk=stubborn.pk).cancel()
    other = worker(conf=SHORT)
    started(stage, "one", 2)
    os.kill(zombie.pid, signal.SIGCONT)
    zombie.wait_for_log("lease lost, nothing of the job was changed.*job=" + str(quiet.pk))
    stage.open("one")
    after = ended(quiet, stubborn)
    assert [(job.outcome, job.attempt) for job in after] == [("succeeded", 2), ("cancelled", 1)]
    assert history(quiet) == [(1, "lost")]
    assert stage.count("end", "one") == 1
    # It is a worker like any other again.
    zombie.ready(4)
    other.stop()
    assert ended(jobs.effect.register("again"))[0].outcome == "succeeded"


@pytest.mark.slow
def test_a_worker_frozen_alone_charges_nothing(worker: Workers, stage: Stage) -> None:
    """Nobody has taken its jobs: it hands them back itself, uncharged, and runs them again."""
    process = worker(conf=SHORT)
    job = jobs.waits.using(max_attempts=1).register("one")
    started(stage, "one")
    executors = process.executors()
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: not _living(executors), SHORT["LEASE_SECONDS"] + 1, "the watchdog has ended its executor")
    os.kill(process.pid, signal.SIGCONT)
    started(stage, "one", 2)
    stage.open("one")
    (after,) = ended(job)
    assert (after.outcome, after.attempt, history(after)) == ("succeeded", 1, [(1, "released")])


@pytest.mark.slow
def test_an_interpreter_held_for_three_leases_is_let_finish(worker: Workers, stage: Stage) -> None:
    """C12: its lease is renewed by another process, and the watchdog asks that process only."""
    process = worker(conf={**SHORT, "LEASE_SECONDS": 1.0, "RENEW_SECONDS": 0.3})
    worker(conf=SHORT)  # would rescue it
    job = jobs.holds_the_gil_for.register(3.5)
    (after,) = ended(job)
    assert (after.outcome, after.attempt, history(after)) == ("succeeded", 1, [])
    assert stage.count("held") == 1
    assert not process.said("watchdog")


@pytest.mark.slow
def test_an_executor_stopped_for_longer_than_a_lease_goes_on(worker: Workers, stage: Stage) -> None:
    """Its supervisor has renewed all the time."""
    process = worker(conf={**SHORT, "LEASE_SECONDS": 1.0, "RENEW_SECONDS": 0.3})
    job = jobs.waits.register("one")
    started(stage, "one")
    (pid,) = process.executors()
    os.killpg(pid, signal.SIGSTOP)
    time.sleep(2.5)
    os.killpg(pid, signal.SIGCONT)
    stage.open("one")
    (after,) = ended(job)
    assert (after.outcome, after.attempt, process.executors()) == ("succeeded", 1, [pid])


def _living(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                found += [pid] if stat.read().rpartition(")")[2].split()[0] != "Z" else []
        except OSError:
            continue
    return found
