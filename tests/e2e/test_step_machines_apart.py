"""Step machines on several workers: steps by queue, workers that die or lose a step, code that knows no such step."""

from __future__ import annotations

import os
import signal

from django_pgjobs.models import Job
from tests.e2e import machines
from tests.e2e.machine_traces import finished, started, starts
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, wait_for_age, wait_until
from tests.plugins.fix_worker import Workers, ended, history, read

QUICK = {"LEASE_SECONDS": 2.0, "RENEW_SECONDS": 0.5, "BEAT_SECONDS": 0.5, "STALE_SECONDS": 2.0}


def test_steps_run_on_the_workers_of_their_queues(worker: Workers, stage: Stage) -> None:
    """P33: woken by a notification, since nobody polls."""
    one = worker("--queues=default", conf={"POLL_SECONDS": 60})
    other = worker("--queues=other", conf={"POLL_SECONDS": 60})
    (after,) = ended(machines.first.register("both"))
    names = list(after.steps.order_by("pk").values_list("worker_name", flat=True))
    assert (after.outcome, names) == ("succeeded", [one.name, other.name])
    [first], [second], [third] = (stage.traces(step, "both") for step in ("first", "second", "third"))
    assert first.pid in one.executors()
    assert {second.pid, third.pid} <= {*other.executors()}


def test_another_worker_resumes_a_machine_at_its_current_step(worker: Workers, stage: Stage, raw: RawDatabase) -> None:
    """P32, P33: kill -9 of the whole worker in the third step."""
    wait_for_age(raw, 3)
    dying = worker(conf=QUICK)
    machine = machines.first.register("waits-rescue", queue="default")
    started(stage, "third", "waits-rescue")
    dying.kill()
    stage.open("waits-rescue")
    heir = worker(conf=QUICK)
    (after,) = ended(machine, timeout=40)
    assert starts(stage, "waits-rescue") == ["first", "second", "third", "third"]
    assert (after.outcome, history(after)) == ("succeeded", [(1, "lost")])
    assert heir.stop() == 0


def test_a_worker_without_executors_runs_machines(worker: Workers, stage: Stage) -> None:
    """P29, P33."""
    machine = machines.first.register("inline", queue="default")
    assert worker("--inline", "--until-idle", ready=False).wait() == 0
    assert (read(machine).outcome, starts(stage, "inline")) == ("succeeded", ["first", "second", "third"])


def test_the_next_step_of_a_lost_job_is_refused(worker: Workers, stage: Stage, raw: RawDatabase) -> None:
    """P35, P36, C40: the claim is another's when the step ends; nothing of the row changes."""
    process = worker(threads=1)
    machine = machines.first.register("lost", 0, "lost", queue="default")
    started(stage, "first", "lost")
    with raw.raw.transaction():
        raw.query("UPDATE pgjobs_job SET claim_id = gen_random_uuid() WHERE id = %s", [machine.pk])
        before = raw.row(machine.pk)
        stage.open("lost")
    process.wait_for_log(f"lease lost, nothing of the job was changed .*job={machine.pk} ")
    assert raw.row(machine.pk) == before
    assert not machine.steps.exists()
    raw.query("UPDATE pgjobs_job SET claim_id = NULL, outcome = 'cancelled', finished_at = now()")


def test_a_step_that_a_worker_does_not_know_is_parked_there(worker: Workers, stage: Stage) -> None:
    """§11: it goes on where newer code runs."""
    worker("--queues=default", env={"PGJOBS_TEST_NEWER": "1"})
    older = worker("--queues=other")
    machine = machines.first.register("deployed", then="newer")
    wait_until(lambda: read(machine).state == "parked", 20, "the older worker has parked it")
    assert (read(machine).name, read(machine).attempt, finished(machine)) == ("e2e.newer", 0, [("machines.first", 1)])
    assert older.stop() == 0
    worker("--queues=other", env={"PGJOBS_TEST_NEWER": "1"})
    (after,) = ended(machine, timeout=60)
    assert (after.outcome, after.result, stage.count("newer", "deployed")) == ("succeeded", "deployed", 1)


def test_steps_go_on_whoever_is_killed(worker: Workers, stage: Stage) -> None:
    """P32: a hundred machines, executors killed in their midst; no step runs after its successor has begun."""
    process = worker(processes=2, threads=2)
    all_of_them = [machines.first.register(f"m{number}", queue="default") for number in range(100)]
    left = Job.objects.filter(finished_at=None)
    for _ in range(3):
        count = stage.count("third")
        wait_until(lambda: stage.count("third") > count or not left.exists(), 60, "some go on")  # noqa: B023
        for pid in process.ready_executors()[:1]:
            os.kill(pid, signal.SIGKILL)
    order = {"first": 1, "second": 2, "third": 3}
    found = ended(*all_of_them, timeout=60)
    for job in found:
        begun = [order[step] for step in starts(stage, job.payload["args"][0])]
        assert begun == sorted(begun), (job.pk, begun)
        assert job.outcome == "succeeded" or "crashed" in {cause for _, cause in history(job)}
    process.wait_for_log("executor ended, replaced")
