"""Sequences, limits and places together, while workers are killed and an operator does everything at random.

Triggers judge whose turn it is and how many are admitted; the jobs' own journal judges places.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_pgjobs import register_many
from django_pgjobs.maintenance.gates import open_due_gates
from django_pgjobs.models import Heartbeat, Job
from django_pgjobs.queues import Queue
from django_pgjobs.steering import workers as steering
from tests.db.sequences_ground import broken, judged, stuck
from tests.db.test_limits_at_random import CODE, GONE, WATCH
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers

SEQUENCES, EACH = 8, 14
QUEUES = ("default", "side")
"""The first has a limit, of the code or of the operator; in the other a worker has one place."""

CONF = {
    "LEASE_SECONDS": 2.0, "RENEW_SECONDS": 0.5, "BEAT_SECONDS": 0.3, "STALE_SECONDS": 2.0,
    "QUEUE_LIMITS": {"default": {"concurrency": CODE}},
}  # fmt: skip


@pytest.fixture
def watched(committed: None, settings: Any) -> Iterator[None]:
    settings.PGJOBS = {"QUEUE_LIMITS": CONF["QUEUE_LIMITS"]}
    with connection.cursor() as cursor:
        cursor.execute(WATCH)
    try:
        yield
        with connection.cursor() as cursor:
            cursor.execute("SELECT admitted, allowed FROM limit_breach")
            assert cursor.fetchall() == []
    finally:
        with connection.cursor() as cursor:
            cursor.execute(GONE)


class Fleet:
    """Two workers, one of which is replaced whenever it has been killed or drained."""

    def __init__(self, worker: Workers) -> None:
        self.start = partial(worker, "--places=side=1", processes=1, threads=4, conf=CONF)
        self.crew = [self.start() for _ in range(2)]
        self.replaced = Counter[str]()

    def ask(self, process: WorkerProcess, verb: str) -> bool:
        ids = list(Heartbeat.objects.filter(name=process.name).values_list("pk", flat=True))
        return any(found.was for found in steering.ask("default", ids, verb, by="anna"))

    def lose(self, process: WorkerProcess) -> None:
        for pid in [process.pid, *process.processes()]:
            os.kill(pid, signal.SIGKILL)
        process.kill()
        self.replace(process, "killed")

    def replace(self, process: WorkerProcess, why: str) -> None:
        self.replaced[why] += 1
        self.crew[self.crew.index(process)] = self.start(ready=False)


class Operator:
    """Does one thing at a time, as dice say."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.dice = fleet, random.Random(seed)
        self.moves: list[Callable[[], object]] = [
            self.cancel, self.retry, self.retry, self.unblock, self.limit, self.limit, self.pause, self.resume,
            self.resume, self.steer, self.steer, self.kill,
        ]  # fmt: skip

    def some(self, **conditions: Any) -> Any:
        ids = Job.objects.filter(**conditions).order_by("?").values_list("pk", flat=True)[: self.dice.randint(1, 3)]
        return Job.objects.filter(pk__in=list(ids))

    def cancel(self) -> None:
        self.some(finished_at=None).cancel(by="anna")

    def retry(self) -> None:
        Job.objects.filter(outcome="abandoned", flow__lt=128).retry(by="anna")

    def unblock(self) -> None:
        self.some(hold="blocked").unblock(by="anna")

    def limit(self) -> None:
        queue = Queue("default")
        if self.dice.random() < 0.3:
            queue.restore_limit(by="anna")
        else:
            queue.limit(self.dice.randrange(1, 9), by="anna")

    def pause(self) -> None:
        Queue(self.dice.choice(QUEUES)).pause(by="anna")

    def resume(self) -> None:
        for name in QUEUES:
            Queue(name).resume(by="anna")

    def steer(self) -> None:
        process, verb = self.dice.choice(self.fleet.crew), self.dice.choice(["quiet", "resume", "recycle", "drain"])
        if self.fleet.ask(process, verb) and verb == "drain":
            assert process.wait(60) == 0, process.log
            self.fleet.replace(process, verb)

    def kill(self) -> None:
        if self.dice.random() < 0.3:
            self.fleet.lose(self.dice.choice(self.fleet.crew))

    def settles(self) -> bool:
        """Let all come to its end; tell whether it has."""
        for process in self.fleet.crew:
            self.fleet.ask(process, "resume")
        self.resume()
        self.retry()
        return not Job.objects.filter(finished_at=None).exists()


def most_at_once(stage: Stage, queue: str) -> int:
    """Return how many jobs of a queue one worker has run at once, at most."""
    running, most = Counter[str](), 0
    for trace in stage.traces():
        what, worker, of = trace.words[:3]
        if of == queue:
            running[worker] += 1 if what == "begin" else -1
            most = max(most, running[worker])
    return most


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.timeout(patience(180))
def test_no_turn_limit_or_place_is_given_twice(worker: Workers, stage: Stage, raw: RawDatabase, seed: int) -> None:
    with judged():
        operator = Operator(Fleet(worker), seed)
        for number in range(EACH):
            calls = [(sequence, number, operator.dice.choice(QUEUES)) for sequence in range(SEQUENCES)]
            register_many(jobs.in_turn.using(queue=call[2]).bind(*call) for call in calls)
            for _ in range(4):
                operator.dice.choice(operator.moves)()
        wait_until(operator.settles, 120, "all have ended")
        open_due_gates(raw)
        assert (broken(), stuck()) == ([], [])
    assert most_at_once(stage, "side") == 1
    assert Job.objects.filter(outcome="succeeded").count() > SEQUENCES * EACH / 3
    assert operator.fleet.replaced
