"""Workers that operators steer: by their rows, at their heartbeats, from the shell."""

from __future__ import annotations

import os
import random
import re
import signal
from contextlib import suppress
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction

from django_pgjobs.embedded import EmbeddedServer
from django_pgjobs.models import Action, Heartbeat, Job
from tests.e2e import jobs
from tests.e2e.elsewhere import ask, call, put
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers, ended, started

QUICK: dict[str, Any] = {"BEAT_SECONDS": 0.2, "STALE_SECONDS": 2.0}


def steer(verb: str, *names: str, status: int = 0) -> str:
    """Ask by the shell; return what it prints."""
    out = StringIO()
    try:
        call_command("pgjobs", "workers", verb, *names, "--by=anna", stdout=out, stderr=out)
        code: Any = 0
    except SystemExit as end:
        code = end.code
    assert code == status, out.getvalue()
    return out.getvalue()


def taken_up(process: WorkerProcess, state: str) -> Heartbeat:
    """Wait until the worker's row says so, and that the last request is taken up."""
    rows = Heartbeat.objects.filter(name=process.name)

    def has() -> bool:
        row = rows.get()
        return row.state == state and not row.is_asked and row.taken_at is not None

    wait_until(has, 20, f"{process.name} is {state}")
    row: Heartbeat = rows.get()
    return row


def test_a_quiet_worker_finishes_what_it_has_and_claims_again_when_it_resumes(worker: Workers, stage: Stage) -> None:
    process = worker(processes=1, threads=2, conf=QUICK)
    running = jobs.waits.register("go")
    started(stage, "go")
    assert steer("quiet", process.name).startswith(f"{process.name} is asked")
    row = taken_up(process, "quiet")
    later = [jobs.effect.register(n) for n in range(3)] + [jobs.aeffect.register(3)]
    stage.open("go")
    assert ended(running)[0].outcome == "succeeded", "its lease was renewed, its end written"
    assert {job.why().code for job in later} == {"quiet"}
    assert stage.count("effect") == 0
    steer("resume", str(row.pk))
    ended(*later)
    assert taken_up(process, "running").control_by == "anna"
    verbs = list(Action.objects.filter(kind="worker").order_by("pk").values_list("verb", "acted_by", "via"))
    assert verbs == [("quiet", "anna", "shell"), ("resume", "anna", "shell")]


def test_of_two_requests_between_two_heartbeats_the_last_one_wins(worker: Workers) -> None:
    process = worker(processes=1, conf=QUICK)
    with transaction.atomic():  # else a heartbeat between them would read the first
        steer("quiet", process.name)
        steer("resume", process.name)
    taken_up(process, "running")
    assert Heartbeat.objects.get(name=process.name).control_number == 2
    assert process.said("takes up the request of an operator: resume")
    assert not process.said("request of an operator: quiet")


def test_a_worker_drains_and_a_new_one_begins_without_a_request(worker: Workers, stage: Stage) -> None:
    process = worker(processes=1, threads=1, conf=QUICK)
    running = jobs.waits.register("go")
    started(stage, "go")
    steer("drain", process.name)
    taken_up(process, "draining")
    assert "is draining" in steer("resume", process.name, status=1)
    stage.open("go")
    assert process.wait() == 0
    assert ended(running)[0].outcome == "succeeded"
    assert "is stopped" in steer("quiet", process.name, status=1)
    again = worker(f"--name={process.name}", processes=1, conf=QUICK)
    ended(jobs.effect.register("again"))
    row = Heartbeat.objects.get(name=process.name, state="running")
    assert (row.control, row.control_number) == ("", 0)
    again.stop()


def test_executors_are_replaced_one_after_the_other_and_nothing_is_charged(worker: Workers, stage: Stage) -> None:
    process = worker(processes=2, threads=2, conf=QUICK).ready(2)
    pids = executors(process)
    load = [jobs.effect.register(n, 0.02) for n in range(100)]
    steer("recycle", process.name)
    process.wait_for_log("executor has been recycled", 60, 2)
    assert {(job.outcome, job.attempt) for job in ended(*load, timeout=60)} == {("succeeded", 1)}
    process.ready(4)
    assert not executors(process) & pids
    assert process.said("executor is recycled, its successor starts first .* an operator asked for it by=anna", 2)


def executors(process: WorkerProcess) -> set[str]:
    """The pids of executors that are ready and have not been recycled."""
    ready = set(re.findall(r"executor is ready pid=(\d+)", process.log))
    return ready - set(re.findall(r"executor has been recycled pid=(\d+)", process.log))


def test_a_worker_that_is_gone_says_so(worker: Workers) -> None:
    process = worker(processes=1, conf=QUICK)
    os.kill(process.pid, signal.SIGSTOP)
    said = steer("quiet", process.name)
    assert "is asked" in said, "it was heard from a moment ago"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    row = Heartbeat.objects.get(name=process.name)
    assert (row.is_asked, row.taken_at) == (True, None)
    Heartbeat.objects.filter(pk=row.pk).update(state="lost")
    assert "is lost, last heard from" in steer("resume", process.name, status=1)
    assert "There is no worker 'nobody'." in steer("drain", "nobody", status=1)


def test_asked_in_one_database_it_holds_for_the_whole_worker(
    worker: Workers, server: EmbeddedServer, stage: Stage
) -> None:
    process = worker(
        "--database=default,second", processes=1, conf=QUICK, env={"PGJOBS_TEST_SECOND_DATABASE_URL": server.url}
    )
    there = "SELECT state, control_number FROM pgjobs_heartbeat"
    wait_until(lambda: len(ask(server.url, there)) == 1, 20, "it has a row there")
    steer("quiet", process.name)
    taken_up(process, "quiet")
    wait_until(lambda: ask(server.url, there) == [("quiet", 0)], 20, "it says so there, too")
    put(server.url, "notes_its_home", call("there"))
    steer("resume", process.name)
    wait_until(lambda: stage.count("home", "there") == 1, 20, "it claims again there")


@pytest.mark.parametrize("seed", range(2))
def test_an_operator_asks_at_random_while_workers_are_killed_and_every_job_runs(
    worker: Workers, stage: Stage, seed: int
) -> None:
    """Whatever is asked of whom, in the end each job has succeeded, and no row says more than its worker did."""
    dice = random.Random(seed)
    conf = {**QUICK, "LEASE_SECONDS": 2.0, "RENEW_SECONDS": 0.5}
    crew = [worker(processes=1, threads=2, conf=conf, ready=False) for _ in range(2)]
    crew[0].ready()
    load = [jobs.effect.using(max_attempts=50).register(n, 0.05) for n in range(120)]
    for _ in range(25):
        process = dice.choice(crew)
        if dice.random() < 0.15:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            crew[crew.index(process)] = worker(processes=1, threads=2, conf=conf, ready=False)
        elif Heartbeat.objects.filter(name=process.name).exists():
            verb = dice.choice(["quiet", "resume", "resume", "recycle", "drain"])
            rows = Heartbeat.objects.filter(name=process.name)
            number = rows.get().control_number
            call_quietly(verb, process.name)
            if verb == "drain" and rows.get().control_number > number:
                assert process.wait(60) == 0
                crew[crew.index(process)] = worker(processes=1, threads=2, conf=conf, ready=False)
        for row in Heartbeat.objects.all():
            assert row.control_taken <= row.control_number
    for process in crew:
        process.ready()
        wait_until(Heartbeat.objects.filter(name=process.name).exists, 20, "it beats")
        call_quietly("resume", process.name)
    after = ended(*load, timeout=90)
    assert {job.outcome for job in after} == {"succeeded"}
    assert Job.objects.filter(finished_at=None).count() == 0


def call_quietly(verb: str, name: str) -> None:
    with suppress(SystemExit):
        call_command("pgjobs", "workers", verb, name, stdout=StringIO(), stderr=StringIO())
