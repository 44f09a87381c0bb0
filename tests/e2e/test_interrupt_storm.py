"""Hundreds of interrupts while jobs use what the threads of a process share."""

from __future__ import annotations

import re
import time

import pytest

from django_pgjobs.models import Job
from tests.e2e import jobs, stormy
from tests.e2e.stage import Stage
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import Workers, ended

STORM, NEIGHBOURS, PROCESSES, THREADS = 300, 40, 2, 8


@pytest.mark.slow
def test_a_storm_of_interrupts_harms_no_neighbour(worker: Workers, stage: Stage) -> None:
    """B5, C25: queues, imports, semaphores, logging, connections and files of the process stay usable for the others.

    Every neighbour succeeds at its first attempt, nothing is killed, and each thread takes the next job.
    """
    began = time.monotonic()
    working = worker(processes=PROCESSES, threads=THREADS)
    ways = sorted(stormy.WAYS)
    storming, neighbours = [], []
    for number in range(STORM):
        storming.append(stormy.never_stops.register(ways[number % len(ways)]))
        if number % (STORM // NEIGHBOURS) == 0:
            neighbours.append(stormy.ends_by_itself.register(100))
    left = {job.pk for job in storming}
    until = time.monotonic() + patience(300)
    while left and time.monotonic() < until:
        running = Job.objects.filter(pk__in=left, state="running", cancel_requested_at=None)
        running.cancel(mode="interrupt")
        left -= set(Job.objects.filter(pk__in=left).exclude(finished_at=None).values_list("pk", flat=True))
        time.sleep(0.1)
    assert {after.outcome for after in ended(*storming)} == {"cancelled"}
    assert [(job.outcome, job.attempt, job.result) for job in ended(*neighbours, timeout=60)] == [
        ("succeeded", 1, 100)
    ] * len(neighbours)
    assert not working.said("executor killed|does not stop|executor ended")
    wait_until(lambda: len(working.ready_executors()) == PROCESSES, 30, "no executor is being recycled")
    crowd = [jobs.waits.register("crowd") for _ in range(PROCESSES * THREADS)]
    wait_until(lambda: stage.count("start", "crowd") == len(crowd), 30, "each thread runs a job")
    stage.open("crowd")
    ended(*crowd)
    held = [float(seconds) for seconds in re.findall(r"held_back=([\d.]+)s", working.log)]
    recycled = len(re.findall("executor has been recycled", working.log))
    assert held
    assert recycled
    print(  # noqa: T201 (the figures)
        f"\njobs={STORM + len(neighbours)} interrupts={len(held)} held_back={sum(map(bool, held))}"
        f" longest={max(held):.3f}s recycled={recycled} seconds={time.monotonic() - began:.1f}"
    )
