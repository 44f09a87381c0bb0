"""Limits that operators set while workers run: what starts and what does not, by the jobs' own journal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_pgjobs.models import Job
from django_pgjobs.queues import Queue, limits
from tests.db.test_limits_at_random import GONE, WATCH
from tests.e2e import jobs, limited
from tests.e2e.test_limits import LIMITED, QUICK, all_ended, at_once
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers, ended, read

CHANGED = "limits set by operators have changed"


def known_to(crew: list[WorkerProcess], times: int = 1) -> None:
    for process in crew:
        process.wait_for_log(CHANGED, times=times)


def running(worker: Workers) -> int:
    return worker.stage.count("start", "held") - worker.stage.count("end", "held")


def open_jobs() -> Any:
    return Job.objects.filter(finished_at=None)


def _goes_on(worker: Workers, most: int) -> bool:
    return worker.stage.count("end", "k") > most or not open_jobs().exists()


def test_a_limit_where_the_code_has_none_counts_what_runs_what_waits_and_what_comes(worker: Workers) -> None:
    """In web processes and workers that knew of no limit; after it everything runs as before."""
    crew = [worker(processes=1, threads=4) for _ in range(2)]
    held = [jobs.waits.register("gate") for _ in range(3)]
    wait_until(lambda: worker.stage.count("start", "gate") == 3, 20, "three run")
    worker.stage.open("k")
    Queue("default").limit(2, by="anna")
    known_to(crew)
    ids = jobs.waits.register_many([("k",) for _ in range(40)])
    counted = Job.objects.filter(pk__in=[each.pk for each in held], limit_key="")
    wait_until(lambda: counted.count() == 3, 20, "those that run are counted")
    limited_now = Job.objects.filter(pk__in=ids, hold="limited")
    wait_until(lambda: limited_now.count() == 40, 30, "all others are held")
    assert worker.stage.count("start", "k") == 0, "three run, and two may"
    worker.stage.open("gate")
    all_ended(ids)
    assert at_once([trace for trace in worker.stage.traces() if trace.words[1:2] == ("k",)]) <= 2
    assert worker.stage.count("start", "k") == 40
    assert set(Job.objects.filter(pk__in=ids).values_list("attempt", flat=True)) == {1}, "to be held costs no attempt"
    assert Queue("default").restore_limit()
    known_to(crew, 2)
    more = jobs.waits.register_many([("k",) for _ in range(10)])
    all_ended(more)
    assert set(Job.objects.filter(pk__in=more).values_list("limit_key", flat=True)) == {None}


def test_another_number_is_in_force_within_two_seconds(worker: Workers, record_property: Any) -> None:
    """More are admitted at once, by the database's clock; with fewer none is stopped, and none is admitted."""
    crew = [worker(processes=1, threads=4, env=LIMITED) for _ in range(2)]
    held = [limited.holds.register("held", n) for n in range(10)]
    wait_until(lambda: running(worker) == 1, 20, "the code lets one run")
    limit = limited.holds.limit(4, by="anna")
    wait_until(lambda: running(worker) == 4, 20, "four run")
    known_to(crew)
    admitted = Job.objects.filter(pk__in=[each.pk for each in held], hold=None)
    # An admission that had begun before the limit was set, and reads it, is dated at its beginning.
    last = max(at for at in admitted.values_list("ready_at", flat=True) if at is not None)
    seconds = (last - limit.set_at).total_seconds()
    record_property("seconds until it is in force", seconds)
    assert seconds <= patience(2.0)
    limited.holds.limit(2)
    known_to(crew, 2)
    assert running(worker) == 4, "none is stopped"
    worker.stage.open("held")
    all_ended([each.pk for each in held])
    assert at_once([trace for trace in worker.stage.traces() if trace.words[1:2] == ("held",)]) == 4


def test_the_code_applies_again_when_the_time_is_over(worker: Workers) -> None:
    worker(processes=1, threads=4, env=LIMITED)
    limited.holds.limit(3, until=patience(1.5))
    held = [limited.holds.register("held", n) for n in range(5)]
    wait_until(lambda: not limits.current().exists(), 30, "its time is over")
    again = [limited.holds.register("later", n) for n in range(3)]
    worker.stage.open("held")
    all_ended([each.pk for each in held])
    wait_until(lambda: worker.stage.count("start", "later") == 1, 20, "one of them runs")
    admitted = Job.objects.filter(pk__in=[each.pk for each in again], hold=None, finished_at=None)
    assert admitted.count() == 1
    worker.stage.open("later")
    ended(*again)


@pytest.fixture
def breaches(worker: Workers) -> Iterator[list[tuple[int, int]]]:
    """What a trigger finds at each admission: more admitted than any number in force meanwhile allows."""
    found: list[tuple[int, int]] = []
    with connection.cursor() as cursor:
        cursor.execute(WATCH)
    try:
        yield found
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT admitted, allowed FROM limit_breach")
            found += cursor.fetchall()
            cursor.execute(GONE)
        assert found == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_limit_changed_a_hundred_times_under_load_and_kills_is_never_passed(
    worker: Workers, breaches: list[tuple[int, int]], settings: Any
) -> None:
    """Three workers, whose leader and admitter is killed again and again; each job ends."""
    settings.PGJOBS = {"QUEUE_LIMITS": {"default": {"concurrency": 4}}}
    conf = {**QUICK, **settings.PGJOBS}
    start = partial(worker, processes=1, threads=4, conf=conf, env=LIMITED)
    crew = [start() for _ in range(3)]
    ids = limited.plain.register_many([("k", n, 0.02) for n in range(1000)])
    queue = Queue("default")
    for change in range(100):
        done = worker.stage.count("end", "k")
        if change % 4 == 3:
            queue.restore_limit()
        else:
            queue.limit(1 + change * 7 % 8)
        wait_until(partial(_goes_on, worker, done + 2), 30, "some have run")
        if not open_jobs().exists():
            ids += limited.plain.register_many([("k", n, 0.02) for n in range(500)])
        if change % 25 == 24:
            killed = crew.pop(0)
            for pid in [killed.pid, *killed.executors()]:
                os.kill(pid, signal.SIGKILL)
            killed.process.wait()
            worker.started.remove(killed)
            crew.append(start())
    queue.restore_limit()
    all_ended(ids, timeout=120)
    assert Job.objects.filter(pk__in=ids, outcome="succeeded").count() == len(ids)


@pytest.mark.parametrize("arguments", [("--inline",), ()], ids=["inline", "executor"])
def test_a_job_that_the_code_does_not_know_is_parked_and_not_held(worker: Workers, arguments: tuple[str, ...]) -> None:
    """It would wait for a slot that no worker gives it."""
    Queue("default").limit(1)
    ids = jobs.effect.register_many([(n,) for n in range(3)])
    Job.objects.filter(pk=ids[1]).update(name="shop.gone")
    assert worker("--until-idle", *arguments, ready=False).wait(60) == 0
    found = [(each.state, each.limit_key) for each in Job.objects.filter(pk__in=ids).order_by("pk")]
    assert found == [("succeeded", ""), ("parked", None), ("succeeded", "")]


@pytest.mark.parametrize("arguments", [("--inline",)])
def test_an_inline_worker_goes_by_it_too(worker: Workers, arguments: tuple[str, ...]) -> None:
    Queue("default").limit(1)
    ids = jobs.effect.register_many([(n,) for n in range(5)])
    started = worker("--until-idle", *arguments, ready=False)
    assert started.wait(60) == 0
    assert Job.objects.filter(pk__in=ids, outcome="succeeded", limit_key="").count() == 5
    assert read(Job.objects.get(pk=ids[0])).attempt == 1
