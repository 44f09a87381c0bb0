"""Sequences with real workers that are killed, beside an operator who cancels and retries: triggers judge."""

from __future__ import annotations

import os
import random
import signal

import pytest

from django_pgjobs import register_many
from django_pgjobs.maintenance.gates import open_due_gates
from django_pgjobs.models import Job
from tests.db.sequences_ground import broken, judged, stuck
from tests.e2e import jobs
from tests.plugins.fix_db import RawDatabase, patience, wait_until
from tests.plugins.fix_worker import Workers

SEQUENCES = int(os.environ.get("PGJOBS_TEST_SEQUENCES", "5"))
EACH = int(os.environ.get("PGJOBS_TEST_SEQUENCE_JOBS", "40"))
"""50 and 2000 are the size of the full proof."""

QUICK = {"LEASE_SECONDS": 2.0, "RENEW_SECONDS": 0.5, "BEAT_SECONDS": 0.5, "STALE_SECONDS": 2.0}


@pytest.mark.timeout(patience(120 + SEQUENCES * EACH / 10))
def test_no_order_breaks_whoever_is_killed(worker: Workers, raw: RawDatabase) -> None:
    """Half of the jobs fail at first; a worker is killed now and then; the operator cancels, retries, unblocks."""
    luck = random.Random(7)
    total = SEQUENCES * EACH
    with judged():
        calls = [(sequence, number) for number in range(EACH) for sequence in range(SEQUENCES)]
        for begin in range(0, total, 1000):
            register_many(jobs.in_order.bind(*call) for call in calls[begin : begin + 1000])
        alive = [worker(processes=2, conf=QUICK) for _ in range(2)]
        unfinished = Job.objects.filter(finished_at=None)
        kills = 0

        def left() -> int:
            return unfinished.count()

        def moves() -> bool:
            """Do as an operator does; tell whether all has ended."""
            nonlocal kills
            some = list(unfinished.order_by("?").values_list("pk", flat=True)[:2])
            if luck.random() < 0.1:
                Job.objects.filter(pk__in=some).cancel(by="anna")
            Job.objects.filter(outcome="abandoned", flow__lt=128).retry(by="anna")
            if luck.random() < 0.1:
                Job.objects.filter(hold="blocked").order_by("pk")[:3].unblock(by="anna")
            if kills < 3 and left() < total * (4 - kills) / 5:
                kills += 1
                lost = alive.pop(0)
                os.kill(lost.pid, signal.SIGKILL)
                lost.kill()
                alive.append(worker(processes=2, conf=QUICK))
            return not left()

        wait_until(moves, 100 + total / 10, "all have ended")
        assert kills
        open_due_gates(raw)
        assert (broken(), stuck()) == ([], [])
        assert Job.objects.filter(outcome="succeeded").count() > total / 2
