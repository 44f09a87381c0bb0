"""Atomic jobs whose COMMIT is cut, or whose executor is killed around it: effects and end agree, whatever was lost."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connection, connections

from django_pgjobs import Backoff, current_context, job, register_many
from django_pgjobs import decisions as decide
from django_pgjobs.execution import attempt
from django_pgjobs.execution.prepared import Prepared
from django_pgjobs.execution.single_job import Performer
from django_pgjobs.models import Job
from tests.chaos.failpoints import armed
from tests.chaos.ground import Ground
from tests.e2e import atomic
from tests.plugins.fix_db import AUTHOR, RawDatabase, claim, patience, wait_until

pytestmark = pytest.mark.chaos
log = logging.getLogger(__name__)

CUTS = int(os.environ.get("PGJOBS_TEST_CUTS", "1000"))
KILLS = int(os.environ.get("PGJOBS_TEST_KILLS", "200"))
CUT = "cut"
EXECUTORS = "^$"
"""The connections of jobs get their name once they are made, so the proxy knows none."""

PATIENT = {"LEASE_SECONDS": 10.0, "RENEW_SECONDS": 3.0}
WORKERS = 6
"""Each waits up to 15 s before it starts an executor again whose predecessors died soon."""

LATEST_CUT = 0.004
"""Seconds after the COMMIT was sent within which the first one is cut; then as the machine is fast, see ``CLOSER``."""

CLOSER = 0.95
"""A COMMIT that was answered lets the next cuts come so much earlier, one in doubt so much later."""


@job(name="faults.pays", atomic=True, max_attempts=50, backoff=Backoff(0))
def pays() -> None:
    words = (current_context().id, current_context().attempt, str(current_context().id))
    with connections[CUT].cursor() as cursor:
        cursor.execute("INSERT INTO atomic_effect (job_id, attempt, note) VALUES (%s, %s, %s)", words)


@contextmanager
def alias_through(url: str) -> Iterator[Any]:
    """Have another connection of Django to the same database, through the proxy."""
    parts = urlsplit(url)
    where = {"HOST": parts.hostname, "PORT": parts.port}
    connections.settings[CUT] = {**connections.settings["default"], **connection.settings_dict, **where}
    try:
        yield connections[CUT]
    finally:
        connections[CUT].close()
        del connections[CUT]
        del connections.settings[CUT]


def disagreeing(ids: list[int]) -> list[tuple[int, str | None, int]]:
    """Return the jobs whose end and effects do not agree: (id, outcome, effects)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT j.id, j.outcome, count(e.job_id) FROM pgjobs_job AS j"
            " LEFT JOIN atomic_effect AS e ON e.job_id = j.id WHERE j.id = ANY (%s) GROUP BY j.id"
            " HAVING count(e.job_id) <> (j.outcome IS NOT DISTINCT FROM 'succeeded')::integer",
            [ids],
        )
        return list(cursor.fetchall())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_commit_that_is_cut_at_any_instant(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    """P35 X8: 1,000 of them. What came through is recognised and not run again; what did not is an ordinary failure."""
    seed = int(os.environ.get("PGJOBS_TEST_SEED") or random.SystemRandom().randrange(2**32))
    log.warning("seed %d: PGJOBS_TEST_SEED=%d repeats the instants", seed, seed)
    dice, found, latest = random.Random(seed), Counter[str](), LATEST_CUT
    with (
        atomic.laid_out(),
        alias_through(ground.proxy.url) as cut,
        psycopg.connect(ground.server.url, autocommit=True) as plain,
        ground.fault("cut"),
    ):
        db, kind = RawDatabase(plain), cast(Any, type(cut))
        commit = kind._commit

        def commit_and_be_cut(self: Any) -> None:
            cutter = threading.Timer(dice.uniform(0.0, latest), ground.proxy.cut)
            if self.alias == CUT:
                cutter.start()
            try:
                commit(self)
            finally:
                if self.alias == CUT:
                    cutter.join()

        monkeypatch.setattr(kind, "_commit", commit_and_be_cut)

        def run(prepared: Prepared) -> decide.Decision:
            nonlocal latest
            decision = attempt.run_here(prepared)
            doubtful = isinstance(decision, decide.InDoubt)
            found["in doubt" if doubtful else "answered"] += 1
            latest *= 1 / CLOSER if doubtful else CLOSER
            return decision

        ids = register_many(pays.bind() for _ in range(CUTS))
        for _ in range(CUTS):
            taken = claim(db)
            [one] = taken.jobs
            Performer(db, AUTHOR, run, using=CUT).perform(one)
            assert disagreeing([one.id]) == []
            cut.close()
        assert disagreeing(ids) == []
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM atomic_effect")
            [came_through] = cursor.fetchone()
    figures = {"seed": seed, "in doubt": found["in doubt"], "answered": found["answered"], "committed": came_through}
    log.warning("%s", figures)
    record_property("atomic_cuts", figures)
    assert found["in doubt"] > CUTS / 10
    assert found["answered"] < came_through < CUTS, "some came through unanswered, some did not"


@pytest.mark.parametrize("what", ["lose_request", "lose_reply"])
def test_a_worker_whose_commit_is_lost(ground: Ground, what: str) -> None:
    """The COMMIT never arrives, or its answer does not: the supervisor asks the row, and each job has one effect."""
    worker = ground.workers(conf={"LEASE_SECONDS": 5.0})
    with atomic.laid_out(), ground.fault("cut", worker.pid):
        rule = getattr(ground.proxy, what)("^COMMIT", EXECUTORS, times=5)
        jobs = [atomic.does.using(max_attempts=20).register("succeeds") for _ in range(10)]
        called = [atomic.tells.using(max_attempts=20).register("succeeds") for _ in range(10)]
        stepping = [atomic.does.using(max_attempts=20).register("goes on", f"first {n}") for n in range(10)]
        ids = [each.pk for each in (*jobs, *called)]
        wait_until(lambda: not Job.objects.filter(outcome=None).exists(), 60, "all have ended")
        assert rule.hits == 5
        assert disagreeing(ids) == []
        assert [(len(atomic.effects(each.pk)), each.steps.count()) for each in stepping] == [(2, 1)] * 10
        assert set(Job.objects.values_list("outcome", flat=True)) == {"succeeded"}
        assert [ground.stage.count("on_success", each.pk) for each in called] == [1] * 10
        if what == "lose_reply":
            worker.wait_for_log("end in doubt was committed by the job's own transaction")
            assert set(Job.objects.values_list("attempt", flat=True)) == {1}
        ground.workers.close()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_executors_that_are_killed_around_the_commit(ground: Ground, record_property: Any) -> None:
    """P36 X8: 200 of them, in the body, closing, at the COMMIT and behind it; one effect for each success, no other."""
    points = ("body", "closing", "committing", "finished")
    each = KILLS // len(points)
    deadly = armed(**{point: {"do": "kill", "after": 2 + place, "times": each} for place, point in enumerate(points)})
    with atomic.laid_out(), ground.fault("kill"):
        ids = register_many(atomic.survives_crashes.using(max_attempts=1000).bind() for _ in range(KILLS * 6))
        for _ in range(WORKERS):
            ground.workers(
                env={**deadly, "DATABASE_URL": ground.server.url},
                conf={"LEASE_SECONDS": 10.0, "RENEW_SECONDS": 3.0},
                threads=2,
            )
        struck = lambda: Counter(line["name"] for line in ground.journal.lines("failpoint"))  # noqa: E731
        until = time.monotonic() + patience(2400)
        while struck().total() < KILLS and time.monotonic() < until:
            assert disagreeing(ids) == []
            if Job.objects.filter(outcome=None).count() < KILLS:
                ids += register_many(atomic.survives_crashes.using(max_attempts=1000).bind() for _ in range(KILLS))
            threading.Event().wait(0.2)
        figures = dict(struck())
        log.warning("%s", figures)
        record_property("atomic_kills", figures)
        wait_until(lambda: not Job.objects.filter(outcome=None).exists(), 120, "all have ended")
        assert disagreeing(ids) == []
        assert sum(figures.values()) == KILLS
        ground.workers.close()
