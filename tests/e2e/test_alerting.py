"""Whoever alerts on ERROR hears once of each job that is abandoned; whoever reads WARNING hears why a job is parked."""

from __future__ import annotations

import re
from datetime import timedelta

from django.utils import timezone

from django_pgjobs.models import Job
from tests.e2e import hostile, jobs
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended, read


def errors(log: str, job: Job) -> list[str]:
    return [line for line in log.splitlines() if re.search(rf" ERROR .* job={job.pk} ", line)]


def test_each_job_that_is_abandoned_is_one_error_whatever_ended_it(worker: Workers) -> None:
    """P38: its own failure, a crash, a kill at its deadline, no attempt or no time left at its start."""
    started = worker(threads=1)
    abandoned = [
        jobs.dies_once.register("exit"),
        jobs.doomed.using(max_attempts=1).register(),
        jobs.holds_the_gil.register(),
    ]
    exhausted = jobs.effect.using(delay=60, max_attempts=1).register("never")
    Job.objects.filter(pk=exhausted.pk).update(attempt=1)
    Job.objects.filter(pk=exhausted.pk).reschedule(delay=0)
    late = jobs.effect.using(delay=60).register("late")
    Job.objects.filter(pk=late.pk).update(deadline=timezone.now() - timedelta(days=2))
    Job.objects.filter(pk=late.pk).reschedule(delay=0)
    for job in ended(*abandoned, exhausted, late, timeout=40):
        assert job.outcome == "abandoned"
        assert len(errors(started.log, job)) == 1, errors(started.log, job)


def test_a_parked_job_is_a_warning_that_names_the_cure(worker: Workers) -> None:
    """P30: a job in a module that workers do not import, say; once for each name."""
    unknown = [jobs.effect.using(delay=60).register(n) for n in range(3)]
    Job.objects.filter(pk__in=[job.pk for job in unknown]).update(name="shop.tasks.send")
    started = worker()
    Job.objects.filter(name="shop.tasks.send").reschedule(delay=0)
    wait_until(lambda: all(read(job).state == "parked" for job in unknown), 10, "they are parked")
    lines = re.findall(r"WARNING job parked name=shop\.tasks\.send .*", started.log)
    assert len(lines) == 1
    assert "Worker code knows no job of this name; workers import jobs.py of each app and the modules of" in lines[0]


def test_what_a_project_logs_in_a_job_is_visible_and_names_the_job(worker: Workers) -> None:
    """Where nobody has configured logging, as after startproject."""
    started = worker()
    (said,) = ended(hostile.says.register("two parcels sent"))
    started.wait_for_log(rf"INFO shop two parcels sent job={said.pk} attempt=1 queue=default")
    assert len(re.findall("executor is ready", started.log)) == 1, "nothing of ours is said twice"
