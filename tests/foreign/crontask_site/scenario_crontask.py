"""django-crontask as the clock, our workers behind it (tasks-front paper 5.2, and 8, point 13)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.core.checks import run_checks

from django_pgjobs.models import Job
from tests.e2e.stage import Stage
from tests.foreign.fixtures import StartWorker
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import ROOT, database_url, ended

HERE = "tests.foreign.crontask_site.tasks"


@pytest.fixture
def clock(stage: Stage) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``manage.py crontask``."""
    environment = {**os.environ, "DATABASE_URL": database_url(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "django", "crontask", "--no-heartbeat"]
    running = subprocess.Popen(command, cwd=ROOT, env=environment)
    yield running
    running.kill()
    running.wait(patience(30))


def test_the_system_checks_have_nothing_to_say_of_the_site() -> None:
    assert [str(each) for each in run_checks()] == []


def test_each_tick_is_one_job_that_runs_once(clock: subprocess.Popen[bytes], worker: StartWorker, stage: Stage) -> None:
    """Sentry's monitor makes a second Task of the path of ``watched``; what runs is the module's."""
    worker()
    ticks = Job.objects.filter(name=f"{HERE}.tick")
    watched = Job.objects.filter(name=f"{HERE}.watched")
    wait_until(lambda: ticks.count() >= 3 and watched.count() >= 3, 60, "the clock has ticked three times")
    clock.send_signal(signal.SIGTERM)
    assert clock.wait(patience(30)) == 0
    jobs = ended(*Job.objects.all())
    assert {(job.state, job.attempt) for job in jobs} == {("succeeded", 1)}
    assert {job.priority for job in watched} == {10}
    assert (stage.count("tick"), stage.count("watched")) == (ticks.count(), watched.count())
    seconds = [job.created_at.replace(microsecond=0) for job in ticks.order_by("id")]
    assert seconds == sorted(set(seconds))
