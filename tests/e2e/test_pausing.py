"""Pausing with real workers: what starts and what does not, by the jobs' own log."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from typing import Any

import pytest
from django.db import transaction

from django_pgjobs import register_many
from django_pgjobs.models import Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.queues import Queue
from tests.chaos.helping import FAST, Record
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import Workers, ended, history, read

SECONDS = 0.02
NAME = "tests.e2e.jobs.effect"


def passed(seconds: float) -> None:
    """Let a pause last so long: only time tells that nothing starts."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until, seconds + 5, f"{seconds:g} s have passed")


def begun(stage: Stage) -> list[float]:
    """When the jobs of the load began: each notes its end."""
    return [trace.at - SECONDS for trace in stage.traces("effect") if trace.words[1].startswith("load-")]


@pytest.mark.parametrize("notify", [True, False], ids=["NOTIFY", "no NOTIFY"])
@pytest.mark.parametrize("kind", ["queue", "job"])
def test_pausing_under_load_stops_starts_within_a_second(
    worker: Workers, stage: Stage, record_property: Record, kind: str, notify: bool
) -> None:
    """Two workers with full buffers: what runs goes on, what was sent or waits goes back uncharged, others run on.

    And after the pause everything runs, once.
    """
    crew = [worker(processes=1, threads=2, conf={"NOTIFY": notify}) for _ in range(2)]
    load = register_many(jobs.effect.using(queue="load").bind(f"load-{n}", SECONDS) for n in range(500))
    wait_until(lambda: len(begun(stage)) > 40, 20, "both are at it")
    if kind == "queue":
        Queue("load").pause(by="anna")
    else:
        jobs.effect.pause(by="anna")
    paused_at = time.monotonic()
    for process in crew:
        process.wait_for_log("pauses have changed")
    left = Job.objects.filter(pk__in=load, finished_at=None)
    wait_until(lambda: not left.exclude(claim_id=None).exists(), 10, "nothing of it is claimed")
    others = [jobs.aeffect.using(queue="load" if kind == "job" else "other").register(f"other-{n}") for n in range(20)]
    ended(*others)
    passed(1.5)
    last = max(begun(stage))
    record_property("last_start_seconds", round(last - paused_at, 3))
    assert last < paused_at + patience(1.0)
    assert left.count() > 200
    assert set(left.values_list("attempt", flat=True)) == {0}
    assert set(left.values_list("state", flat=True)) <= ({"ready"} if kind == "queue" else {"ready", "paused"})
    (Queue("load").resume() if kind == "queue" else jobs.effect.resume())
    after = ended(*Job.objects.filter(pk__in=load), timeout=60)
    assert {(job.outcome, job.attempt) for job in after} == {("succeeded", 1)}
    assert stage.count("effect") == 520, "each once"


def test_running_jobs_go_on_and_their_retry_waits(worker: Workers, stage: Stage) -> None:
    """Only starts are stopped."""
    worker()
    running, failing = jobs.waits.register("go"), jobs.watched.register("fail")
    wait_until(lambda: stage.count("start") == 2, 20, "both run")
    Queue("default").pause()
    stage.open("go")
    assert ended(running)[0].outcome == "succeeded"
    stage.open("fail")
    wait_until(lambda: read(failing).claim_id is None, 10, "its attempt has failed")
    passed(1.5)
    assert (read(failing).state, read(failing).attempt, stage.count("start", "fail")) == ("ready", 1, 1)
    Queue("default").resume()
    wait_until(lambda: stage.count("start", "fail") >= 2, 10, "it is tried again, perhaps twice by now")
    Job.objects.filter(pk=failing.pk).cancel()
    ended(failing)


@pytest.mark.parametrize("kind", ["queue", "job"])
def test_a_pause_ends_by_itself_by_the_databases_clock(worker: Workers, stage: Stage, kind: str) -> None:
    """Nobody resumes; NOTIFY, which nobody sends then, is off. The job comes when the worker knows of the pause."""
    process = worker(conf={"NOTIFY": False})
    state = Queue("default").pause(until=3.0) if kind == "queue" else jobs.effect.pause(until=3.0)
    process.wait_for_log("pauses have changed")
    row = jobs.effect.register("k")
    (after,) = ended(row)
    assert after.claimed_at is not None
    assert state.until is not None
    assert after.claimed_at >= state.until
    assert (after.attempt, stage.count("effect")) == (1, 1)


def test_a_worker_that_starts_knows_of_the_pause_before_its_first_claim(worker: Workers, stage: Stage) -> None:
    """Not one job slips through; a name's jobs are claimed once at most and held with the reason."""
    Queue("mail").pause()
    jobs.effect.pause(by="anna", reason="not today")
    mail = register_many(jobs.aeffect.using(queue="mail").bind(n) for n in range(20))
    named = register_many(jobs.effect.bind(n) for n in range(20))
    worker()
    held = Job.objects.filter(pk__in=named, hold="paused")
    wait_until(lambda: held.count() == 20, 20, "all of the name are held")
    assert set(held.values_list("hold_reason", "attempt", "claim_id")) == {
        ("Jobs of this name are paused by anna: not today", 0, None)
    }
    wait_until(lambda: not Claim.objects.exists(), 10, "no claim is left")
    assert not Job.objects.filter(pk__in=mail).exclude(claimed_at=None).exists(), "never even claimed"
    assert stage.count("effect") == 0


@pytest.mark.parametrize("mode", ["--until-idle", "--inline"])
def test_what_is_paused_is_not_due_for_a_worker_that_leaves_when_idle(worker: Workers, stage: Stage, mode: str) -> None:
    """It leaves, and has run the others."""
    Queue("mail").pause()
    jobs.effect.pause()
    paused = register_many([jobs.aeffect.using(queue="mail").bind("mail"), jobs.effect.bind("named")])
    other = jobs.aeffect.register("other")
    process = worker("--until-idle", *([mode] if mode == "--inline" else []), ready=False)
    assert process.wait(60) == 0, process.log
    assert read(other).outcome == "succeeded"
    assert [Job.objects.get(pk=pk).state for pk in paused] == ["ready", "paused"]
    assert [trace.words[1] for trace in stage.traces("effect")] == ["other"]


@pytest.mark.parametrize("mode", [(), ("--inline",)], ids=["supervisor", "inline"])
def test_a_worker_that_leaves_when_idle_waits_for_a_due_row_that_is_locked(
    worker: Workers, stage: Stage, mode: tuple[str, ...]
) -> None:
    """Its producer or an operator has it open: it is run, once that transaction is over."""
    locked, other = jobs.effect.register("locked"), jobs.effect.register("other")
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=locked.pk)
        process = worker("--until-idle", *mode, ready=False)
        ended(other)
        with pytest.raises(subprocess.TimeoutExpired):
            process.process.wait(2.0)
    assert process.wait(60) == 0, process.log
    assert read(locked).outcome == "succeeded"


@pytest.mark.parametrize("mode", [(), ("--inline",)], ids=["supervisor", "inline"])
@pytest.mark.parametrize("kind", ["queue", "job"])
def test_a_callback_of_a_paused_job_waits_whoever_asked_for_it(
    worker: Workers, stage: Stage, kind: str, mode: tuple[str, ...]
) -> None:
    """No code of it starts: not that of a cancelled job, not that of an abandoned one; and after the pause it does."""
    both = jobs.watched.register("k"), jobs.doomed.register()
    assert (both[0].cancel().changed, both[1].abandon().changed) == (1, 1)
    Queue("default").pause() if kind == "queue" else [j.pause() for j in (jobs.watched, jobs.doomed)]
    process = worker("--until-idle", *mode, ready=False)
    assert process.wait(60) == 0, process.log
    assert stage.count() == 0
    state = "ready" if kind == "queue" else "paused"
    assert set(Job.objects.values_list("ending", "state")) == {("cancelled", state), ("abandoned", state)}
    Queue("default").resume() if kind == "queue" else [j.resume() for j in (jobs.watched, jobs.doomed)]
    worker(*mode, ready=False)
    assert [job.outcome for job in ended(*both)] == ["cancelled", "abandoned"]
    assert (stage.count("on_cancel"), stage.count("on_abandon"), stage.count() - stage.count("ended_by")) == (1, 1, 2)


@pytest.mark.parametrize("mode", [(), ("--inline",)], ids=["supervisor", "inline"])
@pytest.mark.parametrize("kind", ["queue", "job"])
def test_a_callback_waits_whose_job_was_paused_while_it_ran(
    worker: Workers, stage: Stage, kind: str, mode: tuple[str, ...]
) -> None:
    """What runs goes on to its end, and that is all."""
    process = worker(*mode, ready=False)
    registered = jobs.watched.register("k")
    wait_until(lambda: stage.count("start") == 1, 20, "it runs")
    registered.cancel()
    Queue("default").pause() if kind == "queue" else jobs.watched.pause()
    if not mode:
        process.wait_for_log("pauses have changed")
    stage.open("k")
    state = "ready" if kind == "queue" else "paused"
    wait_until(lambda: (read(registered).ending, read(registered).state) == ("cancelled", state), 20, "it waits")
    assert stage.count("on_cancel") == 0
    Queue("default").resume() if kind == "queue" else jobs.watched.resume()
    assert ended(registered)[0].outcome == "cancelled"
    assert stage.count("on_cancel") == 1


def test_due_jobs_of_a_paused_queue_keep_no_worker_awake(worker: Workers) -> None:
    """It sleeps as if there were none, whatever is registered there; far from one claim after the other."""
    Queue("mail").pause()
    register_many(jobs.effect.using(queue="mail").bind(n) for n in range(100))
    process = worker()
    began = time.monotonic()
    for n in range(50):
        jobs.effect.using(queue="mail").register(n)
    passed(4.0)
    assert process.stop() == 0
    seconds = time.monotonic() - began
    statements = int(re.findall(r"worker stopped .* statements=(\d+)", process.log)[0])
    assert statements < 60 + 15 * seconds


@pytest.mark.parametrize("kind", ["queue", "job"])
def test_a_worker_that_is_killed_leaves_nothing_paused_behind(worker: Workers, stage: Stage, kind: str) -> None:
    """Its running jobs are rescued and wait as well; held ones belong to nobody. Another worker runs all of them."""
    conf: dict[str, Any] = {**FAST, "NOTIFY": False}
    victim = worker(conf=conf, threads=1)
    running = jobs.waits.register("k")
    wait_until(lambda: stage.count("start", "k") == 1, 20, "one runs")
    behind = [jobs.waits.register("k") for _ in range(5)]
    Queue("default").pause() if kind == "queue" else jobs.waits.pause()
    victim.wait_for_log("pauses have changed")
    wait_until(lambda: Job.objects.exclude(claim_id=None).count() == 1, 10, "only the running one is claimed")
    for pid in [victim.pid, *victim.executors()]:
        os.kill(pid, signal.SIGKILL)
    victim.wait()
    stage.open("k")
    heir = worker(conf=conf)
    wait_until(lambda: history(running) == [(1, "lost")], 20, "it is rescued")
    passed(1.5)
    assert stage.count("start", "k") == 1
    Queue("default").resume() if kind == "queue" else jobs.waits.resume()
    after = ended(running, *behind)
    assert [(job.outcome, job.attempt) for job in after] == [("succeeded", 2)] + [("succeeded", 1)] * 5
    assert heir.process.poll() is None
