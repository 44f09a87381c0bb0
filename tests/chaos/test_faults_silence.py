"""Silence is no death: the way to the server goes silent and comes back, and nobody who lives loses a job by it.

Each worker has a way of its own. An outage holds everything back, one way or both, and delivers it all at its end: so
statements that were sent before arrive after it, in any order. It lasts for half a lease to three. Under it run jobs
with ``max_attempts=1``: one that is rescued has ended for good.

* Silent for everybody: no job is rescued at all.
* Silent for one of several: its neighbours may take its jobs once its lease has run out, for to them it is dead. It
  takes nobody's, and its late ends change nothing.

``PGJOBS_SILENCES=50`` sets how many outages each case has, ``PGJOBS_SILENCE_SEED`` which; a line says how they went.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

import pytest

from django_pgjobs.models import Attempt, Job
from django_pgjobs.models.attempts import Claim
from tests.chaos.ground import Ground
from tests.chaos.jobs import act
from tests.chaos.proxy import Direction, Proxy
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, ended

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

LEASE, RENEW = 2.5, 0.8
CONF: dict[str, object] = {"LEASE_SECONDS": LEASE, "RENEW_SECONDS": RENEW}
SILENCES = int(os.environ.get("PGJOBS_SILENCES", "3"))
SEED = int(os.environ.get("PGJOBS_SILENCE_SEED", "12"))
THREADS = 4
DIRECTIONS: tuple[Direction, ...] = ("both", "up", "down")

once = act.using(max_attempts=1)


@dataclass
class Figures:
    """What a case has seen."""

    outages: int = 0
    jobs: int = 0
    longer_than_a_lease: int = 0
    lost_alive: list[str] = field(default_factory=list)
    taken_by_neighbours: int = 0


@pytest.fixture
def ways(ground: Ground) -> Iterator[list[Proxy]]:
    """A way to the server for each of four workers."""
    with ExitStack() as stack:
        yield [stack.enter_context(Proxy.before(ground.server.url)) for _ in range(4)]


@pytest.mark.parametrize("who", ["all", "one"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_silent_way_charges_no_worker_that_lives(
    ground: Ground, ways: list[Proxy], count: int, who: Literal["all", "one"]
) -> None:
    """P39 P41 D16 C41 I2: silent for all, nothing is rescued; for one, only by others, and only past its lease."""
    chance = random.Random(f"{SEED} {count} {who}")
    workers = [
        ground.workers(processes=1, threads=THREADS, conf=CONF, env={"DATABASE_URL": way.url}).ready()
        for way in ways[:count]
    ]
    figures = Figures()
    for _ in range(SILENCES):
        _outage(ground, dict(zip(ways, workers, strict=False)), who, chance, figures)
    sys.stdout.write(
        f"silence: {count} workers, silent for {who}, seed {SEED}: outages={figures.outages} jobs={figures.jobs} "
        f"longer than a lease={figures.longer_than_a_lease} charged though alive={len(figures.lost_alive)} "
        f"taken by neighbours past the lease={figures.taken_by_neighbours}\n"
    )
    assert figures.lost_alive == []
    ground.check()


def _outage(
    ground: Ground,
    workers: dict[Proxy, WorkerProcess],
    who: Literal["all", "one"],
    chance: random.Random,
    figures: Figures,
) -> None:
    """One silence under running jobs; jobs end before it, in it and after it."""
    lasts = chance.uniform(0.5, 3.0) * LEASE
    direction = chance.choice(DIRECTIONS)
    silent = list(workers) if who == "all" else [chance.choice(list(workers))]
    alone = who == "one" and len(workers) > 1
    before = {worker.name: worker.log.count("job rescued") for worker in workers.values()}
    jobs = ground.register.many(
        [
            (once, "sleep", "", {"seconds": round(chance.uniform(0.5, 1.2) * (lasts + 1.0), 2)})
            for _ in range(THREADS * len(workers))
        ]
    )
    keys = [job.pk for job in jobs]
    wait_until(lambda: _started(ground, keys), 30, "all of them run")
    time.sleep(chance.uniform(0.0, RENEW))  # the outage begins anywhere in the worker's rounds
    with ground.fault("blackhole"):
        holes = [way.blackhole(direction=direction) for way in silent]
        until = time.monotonic() + lasts
        wait_until(lambda: time.monotonic() >= until, lasts + 1, "the silence is over")
        healed = list(zip(silent, holes, strict=True))
        chance.shuffle(healed)
        for way, hole in healed:
            way.heal(hole)
    ended(*jobs, timeout=40)
    figures.outages += 1
    figures.jobs += len(jobs)
    figures.longer_than_a_lease += lasts > LEASE
    lost = list(Attempt.objects.filter(job_id__in=keys, cause__in=("lost", "timeout")))
    told = {worker.name: worker.log.count("job rescued") - before[worker.name] for worker in workers.values()}
    quiet = {workers[way].name for way in silent}
    for attempt in lost:
        fair = alone and lasts > LEASE - RENEW and attempt.worker_name in quiet
        figures.taken_by_neighbours += fair
        if not fair:
            figures.lost_alive.append(f"{attempt.worker_name} lost {attempt.job_id} in {lasts:.2f} s {direction}")
    if alone:
        robbers = [name for name in quiet if told[name]]
        figures.lost_alive += [f"{name} took {told[name]} jobs after {lasts:.2f} s {direction}" for name in robbers]
    assert Job.objects.filter(pk__in=keys, outcome="succeeded").count() + len(lost) == len(jobs)
    wait_until(lambda: not Claim.objects.exists(), 20, "no claim is left")


def _started(ground: Ground, keys: list[int]) -> bool:
    return {line["job"] for line in ground.journal.lines("start")} >= set(keys)
