"""Hundreds of interrupts while jobs use what the threads of a process share."""

from __future__ import annotations

import re
import sys
import time
from itertools import cycle

import pytest

from django_pgjobs.models import Job
from tests.e2e import jobs, stormy
from tests.e2e.stage import Stage
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import Workers, ended

STRIKES, NEIGHBOURS, PROCESSES, THREADS = 300, 40, 2, 8
CROWD = PROCESSES * THREADS


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_storm_of_interrupts_harms_no_neighbour(worker: Workers, stage: Stage) -> None:
    """C25: queues, imports, semaphores, logging, connections and files of the process stay usable for the others.

    Each interrupt is one that was raised in a thread. Every neighbour succeeds at its first attempt, nothing is killed,
    and each thread takes the next job.
    """
    began = time.monotonic()
    working = worker(processes=PROCESSES, threads=THREADS)
    ways = cycle(sorted(stormy.WAYS))
    storming: list[Job] = []
    neighbours: list[Job] = []
    left: set[int] = set()
    until = time.monotonic() + patience(400)
    while len(held := held_back(working.log)) < STRIKES and time.monotonic() < until:
        if len(left) < 2 * CROWD:
            batch = [stormy.never_stops.register(next(ways)) for _ in range(CROWD)]
            storming += batch
            left |= {job.pk for job in batch}
            if len(neighbours) < NEIGHBOURS:
                neighbours += [stormy.ends_by_itself.register(100) for _ in range(CROWD // 4)]
        begun = {int(trace.words[1]) for trace in stage.traces("storm")}
        Job.objects.filter(pk__in=left & begun, state="running", cancel_requested_at=None).cancel(mode="interrupt")
        left -= set(Job.objects.filter(pk__in=left).exclude(finished_at=None).values_list("pk", flat=True))
        time.sleep(0.1)
    assert len(held) >= STRIKES
    seconds = time.monotonic() - began
    Job.objects.filter(pk__in=left).cancel(mode="interrupt")
    assert {after.outcome for after in ended(*storming, timeout=90)} == {"cancelled"}
    assert [(job.outcome, job.attempt, job.result) for job in ended(*neighbours, timeout=60)] == [
        ("succeeded", 1, 100)
    ] * len(neighbours)
    assert not working.said("executor killed|does not stop|executor ended|from outside")
    wait_until(lambda: len(working.ready_executors()) == PROCESSES, 30, "no executor is being recycled")
    crowd = [jobs.waits.register("crowd") for _ in range(CROWD)]
    wait_until(lambda: stage.count("start", "crowd") == len(crowd), 30, "each thread runs a job")
    stage.open("crowd")
    ended(*crowd)
    held = held_back(working.log)
    recycled = len(re.findall("executor has been recycled", working.log))
    assert recycled
    print(  # noqa: T201 (the figures)
        f"\npython={sys.version.split()[0]} jobs={len(storming) + len(neighbours)} interrupts={len(held)}"
        f" held_back={sum(map(bool, held))} over_a_second={sum(each > 1 for each in held)} longest={max(held):.3f}s"
        f" recycled={recycled} seconds={seconds:.1f}"
    )


def held_back(log: str) -> list[float]:
    """Return how long each interrupt was held back that was raised in a thread."""
    return [float(seconds) for seconds in re.findall(r"was interrupted pid=\d+ held_back=([\d.]+)s", log)]
