"""Tasks in workers of their own: killed, scheduled, limited, logged. Paper §1.6, §3.1, §8.3, §8.9."""

from __future__ import annotations

import json
import signal

import pytest
from django.test import override_settings

from django_pgjobs.models import CronEntry, Job
from django_pgjobs.tasks import enqueue_many
from tests.db.tasks_ground import TASKS
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_tasks import finished
from tests.plugins.fix_worker import Workers, started

with override_settings(TASKS=TASKS):
    from tests.e2e import tasks

ENV = {"PGJOBS_TEST_TASKS": json.dumps(TASKS)}

pytestmark = pytest.mark.usefixtures("our_tasks")


def test_a_killed_worker_costs_an_attempt_and_loses_nothing(worker: Workers, stage: Stage) -> None:
    """§8.3: READY or RUNNING until the next worker has it, then SUCCESSFUL with one error."""
    first = worker(env=ENV, conf={"LEASE_SECONDS": 1.5, "RENEW_SECONDS": 0.5})
    result = tasks.waits.enqueue("k")
    started(stage, "k")
    first.kill()
    stage.open("k")
    worker(env=ENV, conf={"LEASE_SECONDS": 1.5, "RENEW_SECONDS": 0.5})
    finished(result)
    assert (result.return_value, result.attempts) == ("done", 2)
    assert [error.exception_class.__name__ for error in result.errors] == ["AttemptFailed"]
    assert "lease" in result.errors[0].traceback
    assert len(set(result.worker_ids)) == 2


def test_a_schedule_of_a_task_fires_though_nobody_imports_it(worker: Workers, stage: Stage) -> None:
    """§8.9: by discovery."""
    worker(env={**ENV, "PGJOBS_TEST_TASKS_CRON": "1"})
    wait_until(lambda: stage.count("tick") >= 2, 40, "it has ticked twice")
    job = Job.objects.filter(cron_entry="task of every second").order_by("id")[0]
    assert job.name == "tests.e2e.tasks.tick"
    CronEntry.objects.get(pk="task of every second").stop(by="test")


def test_a_limit_of_a_task_holds_with_two_workers(worker: Workers, stage: Stage) -> None:
    """§8.9: by discovery, in the process of the supervisor."""
    for _ in range(2):
        worker(env=ENV)
    ids = enqueue_many(tasks.alone, [(("x", number), {}) for number in range(8)])
    wait_until(lambda: stage.count("ends", "x") == len(ids), 30, "all have run")
    words = [trace.words[0] for trace in stage.traces() if trace.words[1:2] == ("x",)]
    assert words == ["begins", "ends"] * 8


def test_the_log_of_a_worker_is_quiet_about_single_tasks(worker: Workers) -> None:
    """§1.6: a failure is a line of Django's, a success none; with ``-v 2`` all are.

    With DEBUG, as Django's own logging shows them on a console only then.
    """
    process = worker(env={**ENV, "PGJOBS_TEST_DEBUG": "1"})
    good, bad = finished(tasks.effect.enqueue("a"), tasks.returns_no_json.enqueue())
    process.wait_for_log(f"Task id={bad.id} path=tests.e2e.tasks.returns_no_json state=FAILED")
    assert not process.said(f"Task id={good.id} ")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    wordy = worker("-v", "2", env={**ENV, "PGJOBS_TEST_DEBUG": "1"})
    [good] = finished(tasks.effect.enqueue("b"))
    wordy.wait_for_log(f"Task id={good.id} path=tests.e2e.tasks.effect state=SUCCESSFUL")
    assert wordy.said(f"Task id={good.id} path=tests.e2e.tasks.effect state=RUNNING")
