"""What jobs log, kept with them by real workers that roll back, are killed, and lose their claims."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.db.models import F

from django_pgjobs.models import Job, LogLine
from tests.e2e import logging_jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended, started


def messages(job: Job, **of: object) -> list[str]:
    return list(job.logs.filter(**of).order_by("claimed_at", "number").values_list("message", flat=True))


ways = pytest.mark.parametrize("inline", [False, True], ids=["executor", "inline"])


@ways
def test_each_job_keeps_its_lines_and_no_others(worker: Workers, inline: bool) -> None:
    """By any logger, by threads and tasks that run it; what cannot be stored or formatted is kept as far as it goes."""
    worker("--inline", ready=False) if inline else worker()
    jobs = [logging_jobs.plain.register("one"), logging_jobs.plain.register("two")]
    others = [logging_jobs.quiet.register(), logging_jobs.off.register()]
    loops = [logging_jobs.coroutine.register("three"), logging_jobs.coroutine.register("four")]
    ended(*jobs, *others, *loops)
    for job, name in zip(jobs, ("one", "two"), strict=True):
        # Handlers format a record once more, and then its text logs for itself.
        found = [line for line in messages(job) if line != "a text that logs"]
        assert found[:4] == [
            f"hello {name}", "%s %d (TypeError)", "text %s (ValueError)", r"nul \0 and \ud800",
        ]  # fmt: skip
        assert found[4].startswith("caught\nTraceback")
        assert found[4].endswith("LookupError: it is gone")
        assert len(found) == 5
        last = job.logs.latest("number")
        assert (last.level, last.logger, last.attempt) == (40, "shop.orders", 1)
        assert abs((last.written_at - last.logged_at).total_seconds()) < 30
    for loop, name in zip(loops, ("three", "four"), strict=True):
        found = messages(loop)
        assert found[0] == f"first of {name}"
        assert sorted(found[1:]) == [f"in a task of {name}", f"in a thread of {name}"]
    assert not LogLine.objects.filter(job__in=others).exists()


@ways
def test_lines_stay_when_an_atomic_job_is_rolled_back(worker: Workers, inline: bool) -> None:
    """And of the attempt that has ended the job in its own transaction."""
    worker("--inline", ready=False) if inline else worker()
    job = logging_jobs.rolled_back.register()
    ended(job)
    wait_until(lambda: len(messages(job)) == 2, 20, "the last lines are written behind the job's own COMMIT")
    assert [messages(job, attempt=number) for number in (1, 2)] == [["attempt 1"], ["attempt 2"]]
    left = Group.objects.filter(name__startswith="attempt ")
    assert [each.name[:9] for each in left] == ["attempt 2"]
    left.delete()


@ways
def test_an_atomic_step_keeps_the_lines_that_come_behind_it(worker: Workers, inline: bool) -> None:
    """Its own transaction has entered the next step, which has a claim of its own."""
    worker("--inline", ready=False) if inline else worker()
    job = logging_jobs.steps.register()
    ended(job)
    wait_until(lambda: messages(job) == ["of the first step", "line 0"], 20, "both steps keep their lines, in order")
    assert job.logs.values("claim_id").distinct().count() == 2


def test_the_setting_is_for_all_jobs_but_those_that_say_otherwise(worker: Workers) -> None:
    """The executor takes the level of the setting."""
    worker(conf={"JOB_LOGS": "ERROR"})
    jobs = [logging_jobs.quiet.register(), logging_jobs.off.register()]
    ended(*jobs)
    assert [messages(job) for job in jobs] == [["of a job whose lines nobody keeps"], []]


@ways
def test_a_flood_is_bounded_and_says_so(worker: Workers, inline: bool) -> None:
    """By lines, and by bytes."""
    conf = {"BOUNDS": {"log_lines": 50, "log_bytes": 1000}}
    worker("--inline", ready=False, conf=conf) if inline else worker(conf=conf)
    few, many = logging_jobs.flood.register(50), logging_jobs.flood.register(300_000)
    ended(few, many, timeout=60)
    assert messages(few) == [f"line {number}" for number in range(50)]
    assert messages(many)[-2:] == [
        "line 49", "299950 more lines were left out: an attempt keeps 50 lines and 1000 bytes",
    ]  # fmt: skip


def test_a_killed_executor_loses_at_most_its_last_second(worker: Workers, stage: Stage) -> None:
    """A line is in the table while the job runs; the next attempt continues behind it."""
    process = worker()
    job = logging_jobs.held.register("held")
    started(stage, "held")
    wait_until(lambda: messages(job) == ["before the gate"], 20, "a line is kept while its job runs")
    os.kill(process.executors()[0], signal.SIGKILL)
    started(stage, "held", 2)
    stage.open("held")
    ended(job)
    assert messages(job) == ["before the gate", "before the gate", "behind the gate"]
    assert messages(job, attempt=2) == ["before the gate", "behind the gate"]


def test_late_lines_of_an_attempt_that_lost_its_claim_are_refused(worker: Workers, stage: Stage) -> None:
    """It continues to log after its job was taken from it."""
    worker()
    job = logging_jobs.held.register("held")
    started(stage, "held")
    wait_until(lambda: messages(job) == ["before the gate"], 20, "a line is kept while its job runs")
    Job.objects.filter(pk=job.pk).update(claim_id="00000000-0000-4000-8000-000000000000")
    stage.open("held")
    wait_until(lambda: stage.count("end", "held") > 0, 20, "its body has returned")
    after = logging_jobs.flood.register(1)  # its lines and its end are written after those of the late one
    ended(after)
    assert messages(job) == ["before the gate"]


def test_a_job_without_retention_keeps_its_lines_until_both_are_pruned(worker: Workers) -> None:
    """Its end does not delete it under its lines."""
    process = worker(conf={"RETENTION": {"succeeded": 0}})
    job = logging_jobs.flood.register(2)
    ended(job)
    assert messages(job) == ["line 0", "line 1"]
    assert process.stop() == 0
    Job.objects.update(finished_at=F("finished_at") - timedelta(days=1))
    worker(conf={"RETENTION": {"succeeded": 0}})
    wait_until(lambda: not Job.objects.exists(), 20, "the next leader prunes it")
    assert not LogLine.objects.exists()
