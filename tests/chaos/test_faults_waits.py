"""Jobs that begin to wait for an event while somebody sends it, thousands of them, each pair at its own speed.

In each round a job runs its body and is suspended as by a finaliser, while another thread sends the event, at READ
COMMITTED or at REPEATABLE READ. Nobody may be asleep afterwards, and each job must end with what was sent to it.
``PGJOBS_TEST_PAIRS`` says how many pairs there are.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
import pytest
from django.db import OperationalError, connection, transaction

from django_pgjobs import Event, JobContext, job, register_many
from django_pgjobs.execution.single_job import Performer
from django_pgjobs.models import Job
from django_pgjobs.store.claiming import ClaimedJob
from tests.chaos.wait_judging import ASLEEP
from tests.plugins.fix_db import AUTHOR, Background, RawDatabase, claim, patience

pytestmark = [pytest.mark.chaos, pytest.mark.usefixtures("committed")]
log = logging.getLogger(__name__)

PAIRS = int(os.environ.get("PGJOBS_TEST_PAIRS", "10000"))
SEED = int(os.environ.get("PGJOBS_TEST_SEED", "0")) or random.SystemRandom().randrange(2**32)
AT_ONCE = 500
SPREAD = 0.006
"""Seconds within which the two of a pair begin."""

approval: Event[int] = Event("faults.approval")


@job(name="faults.waits", takes_context=True, max_attempts=3)
def waits(context: JobContext) -> int:
    return context.wait_for(approval, context.id, timeout=3600)


def send(job_id: int) -> str:
    """Send as anybody does."""
    assert approval.send(job_id, payload=job_id)
    return "sent"


def send_at_repeatable_read(job_id: int) -> str:
    """Send in a transaction that sees the tables as they were; if it cannot be serialized, once more."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM pgjobs_memo WHERE job_id = %s", [job_id])
            assert approval.send(job_id, payload=job_id)
    except OperationalError as error:
        if not isinstance(error.__cause__, psycopg.errors.SerializationFailure):
            raise
        assert send(job_id)
        return "sent again"
    return "sent"


@dataclass
class Meeting:
    """Two threads that begin each round together, up to some milliseconds apart."""

    raw: RawDatabase
    jobs: list[ClaimedJob]
    send: Callable[[int], str]
    round: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=patience(60)))
    found: Counter[str] = field(default_factory=Counter)

    def begin(self, chance: random.Random) -> None:
        self.round.wait()
        until = time.perf_counter() + chance.random() * SPREAD
        while time.perf_counter() < until:
            pass

    def wait(self, chance: random.Random) -> None:
        """Run the jobs one by one, and suspend them."""
        for each in self.jobs:
            self.begin(chance)
            ended = Performer(self.raw, AUTHOR).perform(each)
            assert ended.recorded
            self.found[f"{ended.kind} recorded"] += 1

    def send_all(self, chance: random.Random) -> None:
        """Send the events one by one."""
        for each in self.jobs:
            self.begin(chance)
            self.found[self.send(each.id)] += 1


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sender", [send, send_at_repeatable_read], ids=lambda sender: sender.__name__)
def test_waits_beside_sends_leave_nobody_asleep(
    raw: RawDatabase,
    background: Background,
    record_property: Callable[[str, object], None],
    sender: Callable[[int], str],
) -> None:
    found: Counter[str] = Counter()
    for start in range(0, PAIRS // 2, AT_ONCE):
        register_many(waits.bind() for _ in range(min(AT_ONCE, PAIRS // 2 - start)))
        taken = claim(raw, AT_ONCE, lease=600.0)
        meeting = Meeting(raw, taken.jobs, sender)
        waiting = background(meeting.wait, random.Random(SEED + start))
        sending = background(meeting.send_all, random.Random(SEED + start + 1))
        sending.result(), waiting.result()
        found += meeting.found
        assert raw.query(ASLEEP) == [], f"seed {SEED}"
        taken = claim(raw, AT_ONCE)
        for each in taken.jobs:
            assert Performer(raw, AUTHOR).perform(each).recorded
    log.warning("pairs=%d %s seed=%d", PAIRS // 2, dict(found), SEED)
    record_property("waits", dict(found))
    assert min(found["await recorded"], found["success recorded"]) > PAIRS // 200, "both orders have been met"
    ends = Job.objects.filter(name=waits.name).values_list("pk", "outcome", "result")
    assert [end for end in ends if end[1:] != ("succeeded", end[0])] == []
    assert len(ends) == PAIRS // 2
