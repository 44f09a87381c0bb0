"""How a worker ends: drained by a signal, hurried, killed, idle, or after so many jobs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time

import pytest
from django.db import connection

from django_pgjobs import register_many
from django_pgjobs.models import Heartbeat, Job
from tests.e2e import hard, jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import Workers, age, ended, history, read, started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains(worker: Workers, stage: Stage, number: int) -> None:
    """D9 P41: what runs finishes and is recorded, what was claimed ahead goes back uncharged, exit status 0."""
    process = worker(threads=1)
    ended(*Job.objects.filter(pk__in=register_many(jobs.effect.bind(n) for n in range(100))))
    running, async_one = jobs.waits.register("one"), jobs.awaits.register("loop")
    behind = register_many(jobs.effect.bind(f"behind-{n}") for n in range(50))
    started(stage, "one")
    started(stage, "loop")
    process.signal(number)
    process.wait_for_log(f"worker drains held=.*: {signal.Signals(number).name}")
    wait_until(
        lambda: not Job.objects.filter(pk__in=behind).exclude(claim_id=None).exists(), 5, "those behind are back"
    )
    assert process.process.poll() is None
    stage.open("one")
    stage.open("loop")
    assert process.wait() == 0, process.log
    assert [(job.outcome, job.attempt) for job in (read(running), read(async_one))] == [("succeeded", 1)] * 2
    waiting = Job.objects.filter(pk__in=behind, outcome=None)
    assert {(job.state, job.attempt) for job in waiting} == {("ready", 0)}
    beat = Heartbeat.objects.get(name=process.name)
    assert (beat.state, beat.finished) == ("stopped", 100 + 2 + (50 - waiting.count()))


def test_a_worker_under_nohup_outlives_its_terminal(worker: Workers, stage: Stage) -> None:
    """SIGHUP, inherited as ignored, stays ignored in every process of it."""
    process = worker(program=("/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh", sys.executable, "-m", "django"))
    running = jobs.waits.register("one")
    started(stage, "one")
    for pid in process.processes():
        os.kill(pid, signal.SIGHUP)
    stage.open("one")
    after = ended(running, jobs.effect.register("after"))
    assert [(job.outcome, job.attempt) for job in after] == [("succeeded", 1)] * 2
    assert not process.said("worker drains")


def test_what_a_drain_hands_back_is_taken_at_once_by_a_worker_that_sleeps(worker: Workers, stage: Stage) -> None:
    """Design §3, frontier: nothing ready waits for another worker's poll."""
    leaving = worker(threads=1)
    one = jobs.waits.register("one")
    started(stage, "one")
    behind = jobs.effect.register("behind")
    wait_until(lambda: Job.objects.exclude(claim_id=None).filter(pk=behind.pk).exists(), 10, "it is claimed ahead")
    other = worker(conf={"POLL_SECONDS": 60})
    wait_until(lambda: Heartbeat.objects.filter(name=other.name).exists(), 10, "the other one works")
    leaving.signal(signal.SIGTERM)
    assert ended(behind, timeout=10)[0].attempt == 1
    assert stage.count("effect", "behind") == 1
    stage.open("one")
    assert ended(one)[0].attempt == 1


def test_the_drain_limit_kills_and_hands_back_uncharged(worker: Workers, stage: Stage) -> None:
    """§4 drain: a job that does not end in time is released, and another worker runs it as its first attempt."""
    process = worker(conf={"DRAIN_SECONDS": 1.0})
    slow = jobs.waits.register("slow")
    started(stage, "slow")
    stubborn = jobs.holds_the_gil_for_ever.register()
    started(stage, "gil")
    began = time.monotonic()
    assert process.stop() == 0, process.log
    assert time.monotonic() - began < patience(5)
    assert process.said("drain limit reached")
    for job in (slow, stubborn):
        assert (read(job).state, read(job).attempt, history(job)) == ("ready", 0, [(1, "released")])
    Job.objects.filter(pk=stubborn.pk).cancel()


@pytest.mark.parametrize("kind", ["stops", "astops"])
def test_a_job_hears_of_a_drain_and_gives_itself_back(worker: Workers, stage: Stage, kind: str) -> None:
    """An hour of work is not thrown away: it stores how far it is, and another worker continues, uncharged."""
    process = worker(conf={"DRAIN_SECONDS": 60.0})
    job = getattr(jobs, kind).register("one")
    started(stage, "one")
    began = time.monotonic()
    assert process.stop() == 0, process.log
    assert time.monotonic() - began < patience(10)
    (told,) = stage.traces("stops", "one")
    why, left = told.words[2:]
    assert (why, 50 < float(left) <= 60) == ("drain", True)
    assert (read(job).state, read(job).attempt, history(job)) == ("ready", 0, [])
    worker()
    assert (ended(job)[0].result, ended(job)[0].attempt) == ("continued", 1)


@pytest.mark.parametrize("kind", ["stops", "astops"])
def test_a_job_of_an_inline_worker_hears_of_its_signal(worker: Workers, stage: Stage, kind: str) -> None:
    process = worker("--inline", ready=False)
    job = getattr(jobs, kind).register("one")
    started(stage, "one")
    assert process.stop() == 0, process.log
    (told,) = stage.traces("stops", "one")
    assert told.words[2:] == ("drain", "None"), "nothing kills it"
    assert (read(job).state, read(job).attempt, history(job)) == ("ready", 0, [])


def test_a_job_hears_that_its_executor_is_replaced_and_then_of_a_drain(worker: Workers, stage: Stage) -> None:
    """Nothing hurries it first: the old executor waits for what it runs. A drain does, also of an old executor."""
    process = worker("--executor-max-jobs=1", threads=3, conf={"DRAIN_SECONDS": 60.0})
    stays, leaves = jobs.waits.register("stays"), jobs.stops.register("leaves")
    started(stage, "stays")
    started(stage, "leaves")
    ended(jobs.effect.register("last"))
    assert ended(leaves)[0].result == "continued"
    (told,) = stage.traces("stops", "leaves")
    assert told.words[2:] == ("recycle", "None")
    stage.open("stays")
    assert ended(stays)[0].attempt == 1
    assert process.stop() == 0


def test_a_second_signal_hurries(worker: Workers, stage: Stage) -> None:
    """§4 drain: hand back now, whatever the limit."""
    process = worker(conf={"DRAIN_SECONDS": 60.0})
    slow = jobs.waits.register("slow")
    started(stage, "slow")
    process.signal(signal.SIGTERM)
    process.wait_for_log("worker drains")
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.log
    assert time.monotonic() - began < patience(4)
    assert (read(slow).state, read(slow).attempt) == ("ready", 0)


def test_cancels_and_callbacks_while_draining_come_to_an_end(worker: Workers, stage: Stage) -> None:
    """§4 drain: cancels go on; a callback that cannot start any more is left to the next worker."""
    process = worker()
    watched, doomed = jobs.watched.register("k"), jobs.watched.using(max_attempts=1).register("l")
    started(stage, "k")
    started(stage, "l")
    process.signal(signal.SIGTERM)
    process.wait_for_log("worker drains")
    watched.cancel(by="x")
    stage.open("k")
    stage.open("l")
    assert process.wait() == 0, process.log
    assert read(doomed).outcome == "abandoned"
    next_one = worker("--until-idle", ready=False)
    assert next_one.wait() == 0, next_one.log
    assert read(watched).outcome == "cancelled"
    assert stage.count("on_cancel", watched.pk) == 1
    assert stage.count("start", "k") == 1


def test_a_signal_while_it_starts_ends_it(worker: Workers) -> None:
    """W6: an executor that is still importing is not waited for."""
    process = worker(ready=False, env={"PGJOBS_TEST_BOOT": "sleeps"})
    process.wait_for_log("worker starts")
    began = time.monotonic()
    assert process.stop() == 0, process.log
    assert time.monotonic() - began < patience(4)


@pytest.mark.slow
def test_a_signal_while_it_waits_for_the_database_ends_it(worker: Workers) -> None:
    """P41 W6: nobody there, or somebody who accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for address in (f"127.0.0.1:{port}", "127.0.0.1:1"):
            process = worker(ready=False, env={"DATABASE_URL": f"postgres://nobody@{address}/nothing"})
            with contextlib.ExitStack() as stack:
                if address.endswith(":1"):
                    process.wait_for_log("database cannot be reached, waiting")
                else:
                    stack.enter_context(silent.accept()[0])
                began = time.monotonic()
                assert process.stop() == 0, process.log
                assert time.monotonic() - began < patience(15), address


def test_a_killed_supervisor_leaves_no_process_behind(worker: Workers, stage: Stage) -> None:
    """C12 D11: before its lease ends, a job that keeps the interpreter included; another worker takes the jobs over."""
    conf = {"LEASE_SECONDS": 3.0, "RENEW_SECONDS": 1.0, "BEAT_SECONDS": 1.0, "STALE_SECONDS": 3.0}
    process = worker(processes=2, conf=conf)
    stubborn = jobs.holds_the_gil_for_ever.register()
    started(stage, "gil")
    wait_until(lambda: age(stubborn) > 2, 10, "the worker has noticed that one of its processes is mute")
    running, program = jobs.waits.register("one"), jobs.starts_a_program.register(300)
    started(stage, "one")
    ended(program)
    os.kill(process.pid, signal.SIGKILL)
    process.process.wait(patience(10))
    wait_until(lambda: not process.processes(), 4, "no process is left")
    Job.objects.filter(pk=stubborn.pk).cancel()
    worker(conf=conf)
    wait_until(lambda: stage.count("start", "one") == 2, 20, "another worker runs it")
    stage.open("one")
    after = ended(running, stubborn)
    assert [(job.outcome, job.attempt) for job in after] == [("succeeded", 2), ("cancelled", 1)]
    assert history(running) == [(1, "lost")]


def test_until_idle_ends_when_nothing_is_due(worker: Workers, stage: Stage) -> None:
    """§4: it waits for the last job, for retries that are due at once, and not for the poll or for later ones."""
    later = jobs.effect.using(delay=600).register("later")
    doomed, slow = jobs.doomed.register(), jobs.effect.register("slow", seconds=1.5)
    process = worker("--until-idle", ready=False, conf={"POLL_SECONDS": 60})
    process.wait_for_log("worker drains held=.*: nothing is due")
    assert process.wait() == 0, process.log
    assert [read(job).outcome for job in (doomed, slow, later)] == ["abandoned", "succeeded", None]
    (trace,) = stage.traces("effect", "slow")
    assert time.monotonic() - trace.at < patience(5)


def test_until_idle_ends_at_once_on_an_empty_table(worker: Workers) -> None:
    """§4."""
    assert worker("--until-idle", ready=False).wait(20) == 0


def test_max_jobs_ends_after_just_so_many(worker: Workers, stage: Stage) -> None:
    """§4: nothing more is claimed, whatever the prefetch."""
    register_many(jobs.effect.bind(n) for n in range(30))
    process = worker("--max-jobs=7", ready=False)
    assert process.wait() == 0, process.log
    assert stage.count("effect") == 7
    assert Job.objects.filter(outcome="succeeded").count() == 7
    assert Job.objects.filter(claim_id=None, attempt=0).count() == 23


def test_queues_are_served_as_told(worker: Workers, stage: Stage) -> None:
    """A67: --queues, --exclude-queues, and both together refused."""
    for queue in ("a", "b", "c"):
        jobs.effect.using(queue=queue).register(queue)
    assert worker("--until-idle", "--queues=a", ready=False).wait() == 0
    assert [trace.words[1] for trace in stage.traces("effect")] == ["a"]
    without = worker("--until-idle", "--exclude-queues=b", ready=False)
    assert without.wait() == 0
    assert without.said("worker starts .* queue=-b,all ")
    assert [trace.words[1] for trace in stage.traces("effect")] == ["a", "c"]
    refused = worker("--queues=a", "--exclude-queues=b", ready=False)
    assert refused.wait() == 1
    assert refused.said("Use either --queues or --exclude-queues, not both.")
    twice = worker("--queues=a", "--queues=b", ready=False)
    assert twice.wait() == 2
    assert twice.said("argument --queues: give it once")


def test_a_name_with_everything_in_it(worker: Workers, stage: Stage) -> None:
    """D24, C66: a worker's label is on its attempts, and data where a killed executor's connections are looked up."""
    name = "o'brien; -- wörker %s"
    process = worker(f"--name={name}")
    job = jobs.sleeps_in_the_database.using(timeout=60, max_attempts=1).register()
    wait_until(lambda: Job.objects.get(pk=job.pk).state == "running" and age(job) > 0.5, 15, "it sleeps")
    job.cancel(mode="kill")
    (after,) = ended(job)
    assert after.attempts.get().worker_name == name
    assert Heartbeat.objects.get(name=name).state == "running"
    process.wait_for_log("executor is ready", times=2)
    assert process.stop() == 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(60)%%' AND state = 'active'"
                       " AND datname = current_database() AND pid <> pg_backend_pid()")  # fmt: skip
        assert cursor.fetchone() == (0,)


def test_a_process_whose_interpreter_is_held_gets_no_more_jobs(worker: Workers, stage: Stage) -> None:
    """C25 A68: after a second or two it is known to be mute; others run what comes."""
    worker(processes=2)
    stubborn = jobs.holds_the_gil_for_ever.register()
    wait_until(lambda: stage.count("start", "gil") and age(stubborn) > 2, 15, "it has been mute for a while")
    ids = register_many(jobs.effect.bind(n) for n in range(40))
    assert {job.outcome for job in ended(*Job.objects.filter(pk__in=ids), timeout=10)} == {"succeeded"}
    stubborn.cancel(mode="kill")
    ended(stubborn)


def test_one_thread_picks_up_the_next_job_at_once(worker: Workers, stage: Stage) -> None:
    """A68: each claim takes all there is room for, so the worker is never sure to have seen everything."""
    worker(threads=1, conf={"POLL_SECONDS": 60})
    ended(jobs.effect.register("warm", seconds=0.2))
    for n in range(4):
        registered_at = time.monotonic()
        ended(jobs.effect.register(f"next-{n}", seconds=0.2))
        assert stage.traces("effect", f"next-{n}")[0].at - registered_at < patience(0.2 + 0.2)


def test_a_watcher_whose_terminal_is_closed_takes_its_worker_along(worker: Workers) -> None:
    """Else a worker with old code would go on claiming, unseen, beside the one that is started next."""
    process = worker("--reload")
    process.signal(signal.SIGHUP)
    assert process.wait() == 0, process.log
    wait_until(lambda: not process.processes(), 15, "nobody of it is left")


@pytest.mark.parametrize("mode", ["ask", "interrupt", "kill"])
def test_a_cancel_is_heard_while_draining_and_without_notify(worker: Workers, stage: Stage, mode: str) -> None:
    """D22 X10 §4: within a second by the flags alone, while a stop is already under way."""
    process = worker(threads=2, conf={"NOTIFY": False, "POLL_SECONDS": 0.2, "DRAIN_SECONDS": 60.0})
    job = jobs.obedient.register("fail") if mode == "ask" else hard.goes_on.register("sleeps", "drained")
    (pid,) = process.executors()
    started(stage, str(job.pk) if mode == "ask" else "drained")
    process.signal(15)
    process.wait_for_log("worker drains")
    asked_at = time.monotonic()
    job.cancel(mode=mode)
    if mode == "kill":
        wait_until(lambda: pid not in process.executors(), 5, "its process is dead")
        seen_at = time.monotonic()
    else:
        wait_until(lambda: stage.count("saw" if mode == "ask" else "stopped"), 5, "the job has seen it")
        seen_at = stage.traces("saw" if mode == "ask" else "stopped")[0].at
    assert seen_at - asked_at < patience(1)
    assert process.wait() == 0, process.log
    assert read(job).outcome == "cancelled"


def test_an_idle_worker_drains_at_once(worker: Workers, stage: Stage) -> None:
    """§4 drain: nothing is waited for that is not there; alone on a machine it takes half a second to a second."""
    process = worker(processes=2)
    assert ended(jobs.effect.register("warm"))[0].outcome == "succeeded"
    began = time.monotonic()
    assert process.stop() == 0, process.log
    took = time.monotonic() - began
    assert took < patience(4), f"{took:.2f} s"


def test_a_worker_whose_watcher_was_killed_stops(worker: Workers, stage: Stage) -> None:
    """Nobody is left to restart it with new code, or to stop it."""
    process = worker("--reload")
    running = jobs.waits.register("one")
    started(stage, "one")
    os.kill(process.pid, signal.SIGKILL)
    process.process.wait(patience(10))
    wait_until(lambda: process.said("worker drains held=.*: SIGTERM"), 10, "the worker has noticed")
    stage.open("one")
    wait_until(lambda: not process.processes(), 15, "nobody of it is left")
    assert (read(running).outcome, read(running).attempt) == ("succeeded", 1)


def test_a_worker_stops_though_nobody_reads_what_it_says(worker: Workers, stage: Stage) -> None:
    """A pipe to a log collector that hangs: it blocks the log thread only, and the interpreter's end not at all."""
    fifo = stage.path / "log-fifo"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    process = worker(
        program=("/bin/sh", "-c", f'exec "$0" "$@" >{fifo} 2>&1', sys.executable, "-m", "django"), ready=False
    )
    assert ended(jobs.effect.register("first"))[0].outcome == "succeeded"
    with open(fifo, "wb", buffering=0) as filling:
        os.set_blocking(filling.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            while filling.write(b"x" * 4096):
                pass
    assert process.stop() == 0
    os.close(reading)
    assert Heartbeat.objects.get(name=process.name).state == "stopped"
