"""Numbers over time, as real workers write them: each end once, whatever dies."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

from django.db.models import F

from django_pgjobs import register_many
from django_pgjobs.models import Job
from django_pgjobs.models.numbers import Depth, Minute, Total
from django_pgjobs.models.workers import Statistic
from django_pgjobs.states import FLEET
from tests.e2e import jobs
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import Workers, ended

CONF: dict[str, Any] = {"BEAT_SECONDS": 0.5, "POLL_SECONDS": 60}


def counted() -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for row in Minute.objects.all():
        found[row.name.removeprefix("tests.e2e.jobs."), row.outcome] += row.jobs
    return found


def test_what_ends_is_in_the_minutes_of_its_worker(worker: Workers) -> None:
    """With what its waits and runs add up to; jobs that keep no row count too."""
    running = worker(processes=2, conf={**CONF, "RETENTION": {"succeeded": 0}, "RELEASE": "r7"})
    register_many(jobs.no_op.bind() for _ in range(500))
    ended(*[jobs.doomed.register() for _ in range(3)])
    wait_until(lambda: counted()["no_op", "succeeded"] == 500, 20, "the jobs are counted")
    wait_until(lambda: counted()["doomed", "abandoned"] == 3, 20, "the failures are counted")
    assert counted()["doomed", "retried"] == 3
    row = Minute.objects.filter(name="tests.e2e.jobs.no_op").first()
    assert row is not None
    assert (row.queue, row.release, row.worker == FLEET) == ("default", "r7", False)
    for row in Minute.objects.all():
        assert sum(row.run_histogram) == sum(row.wait_histogram) == row.jobs
        assert row.wait_seconds > 0
    assert running.stop() == 0


def test_a_worker_that_leaves_writes_what_it_has_ended_last(worker: Workers) -> None:
    running = worker("--until-idle", conf={**CONF, "BEAT_SECONDS": 60.0, "STALE_SECONDS": 600.0}, ready=False)
    register_many(jobs.no_op.bind() for _ in range(50))
    assert running.wait() == 0
    wait_until(lambda: not Job.objects.filter(finished_at=None).exists(), 10, "all have ended")
    assert counted()["no_op", "succeeded"] == 50


def test_each_end_counts_once_though_executors_are_killed(worker: Workers) -> None:
    """The supervisor counts what is stored: an executor that dies takes no figure along and brings none twice."""
    running = worker(processes=2, conf=CONF)
    ids = register_many(jobs.effect.bind(n, 0.01) for n in range(1500))
    for reached in (100, 250, 400):
        wait_until(lambda at=reached: counted()["effect", "succeeded"] >= at, 40, f"{reached} are counted")  # type: ignore[misc]
        wait_until(running.ready_executors, 30, "an executor is ready")
        os.kill(running.ready_executors()[0], signal.SIGKILL)
    ended(*Job.objects.filter(pk__in=ids), timeout=60)
    assert running.stop() == 0
    outcomes = Counter(Job.objects.filter(pk__in=ids).values_list("outcome", flat=True))
    assert outcomes == {"succeeded": 1500}
    again = sum(Job.objects.filter(pk__in=ids).values_list(F("attempt") - 1, flat=True))
    found = counted()
    assert found["effect", "succeeded"] == 1500
    assert found["effect", "retried"] + found["effect", "released"] == again


def test_the_leader_adds_the_minutes_of_workers_up(worker: Workers) -> None:
    Minute.objects.create(
        worker="00000000-0000-4000-8000-000000000009", minute="2026-01-01T00:00Z", queue="default", name="old.job",
        outcome="succeeded", release="", jobs=7, run_seconds=1.0, wait_seconds=1.0, run_histogram=[7],
        wait_histogram=[7],
    )  # fmt: skip
    worker(conf=CONF)
    wait_until(lambda: Total.objects.filter(name="old.job", jobs=7).exists(), 30, "the leader has added it up")


def test_an_inline_worker_that_leads_measures_and_counts_as_any_leader(worker: Workers) -> None:
    """Its own ends are in its minutes, with what they waited and ran."""
    worker("--inline", conf=CONF, ready=False)
    register_many(jobs.no_op.bind() for _ in range(20))
    wait_until(lambda: counted()["no_op", "succeeded"] == 20, 20, "the jobs are counted")
    wait_until(lambda: Statistic.objects.exists(), 20, "the queues are measured")
    wait_until(lambda: Depth.objects.exists(), 20, "so are the charts of depths")
    rows = Minute.objects.filter(name="tests.e2e.jobs.no_op")
    assert sum(sum(row.run_histogram) for row in rows) == sum(sum(row.wait_histogram) for row in rows) == 20
