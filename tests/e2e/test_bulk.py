"""A bulk action's job in a real worker: killed half-way it goes on, and changes each job once, as one action says."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_pgjobs.admin import bulk
from django_pgjobs.models import Action, Job
from django_pgjobs.models.operators import ActionPart
from django_pgjobs.queues import Queue
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"threads": 1, "conf": {"POLL_SECONDS": 1}}
MANY = 12_000


def test_a_bulk_action_outlives_its_process(shared_worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 10)
    ended: dict[str, Any] = {"outcome": "abandoned", "finished_at": timezone.now(), "queue": "nobody", "name": "gone"}
    Job.objects.bulk_create([Job(payload={"args": [], "kwargs": {}}, **ended) for _ in range(MANY)], batch_size=5000)
    root = Client()
    root.force_login(User.objects.create_superuser("root"))
    asked = {"action": "retry", "_selected_action": "0", "select_across": "1", "confirmed": "yes"}
    root.post("/admin/pgjobs/job/?state=abandoned&name=gone", asked)
    own = Job.objects.get(name=bulk.STEER)
    wait_until(lambda: ActionPart.objects.count() >= 2, 30, "two thousand are changed")
    for pid in shared_worker.executors():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: Job.objects.get(pk=own.pk).outcome is not None, 60, "it has ended")
    after = Job.objects.get(pk=own.pk)
    assert (after.outcome, after.attempt) == ("succeeded", 2)
    [action] = Action.objects.all()
    changed = [job_id for part in ActionPart.objects.order_by("part") for job_id in part.job_ids]
    assert (action.changed, len(changed), len(set(changed))) == (MANY, MANY, MANY)
    assert Job.objects.filter(name="gone", outcome=None).count() == MANY


def test_a_bulk_action_waits_for_no_pause_and_for_nobody_who_serves_the_queue(
    worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue that it is to clear is paused, the only worker serves another one, and a limit lets nothing start."""
    monkeypatch.setattr(bulk, "AT_ONCE", 10)
    Queue("default").pause(reason="a flood")
    Job.objects.bulk_create([Job(name="flood", payload={"args": [], "kwargs": {}}) for _ in range(3000)])
    worker("--queues", "mail", conf={"POLL_SECONDS": 1, "QUEUE_LIMITS": {"*": {"rate": 1, "per": 86400}}})
    root = Client()
    root.force_login(User.objects.create_superuser("root"))
    asked = {"action": "cancel", "_selected_action": "0", "select_across": "1", "confirmed": "yes", "mode": "ask"}
    root.post("/admin/pgjobs/job/?state=ready&name=flood", asked)
    wait_until(lambda: Job.objects.get(name=bulk.STEER).outcome == "succeeded", 60, "it has ended")
    assert Job.objects.filter(name="flood", outcome="cancelled").count() == 3000
