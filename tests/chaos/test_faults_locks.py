"""Locks of others: tables, rows, deadlocks. Workers wait for nobody's lock longer than a statement may take.

Leases of 1.5 s, renewed each 0.4 s (``helping.FAST``).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from django_pgjobs import register_many
from django_pgjobs.models import Job
from django_pgjobs.models.attempts import Claim
from tests.chaos.helping import FAST, LEASE, Record, Recovery, open_jobs, running
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import TABLES, Background, RawDatabase, wait_until
from tests.plugins.fix_worker import Workers, ended, history, read

pytestmark = pytest.mark.chaos


def until_passed(seconds: float) -> None:
    """Let a fault last so long."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, seconds + 5, f"{seconds:g} s have passed")


@pytest.mark.parametrize(
    ("tables", "seconds"),
    [*(((table,), 3 * LEASE) for table in TABLES), (TABLES, 3 * LEASE), (TABLES, 30)],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else f"{value:g} s",
)
def test_a_locked_table_is_waited_for_and_nothing_is_lost_or_done_twice(
    worker: Workers,
    stage: Stage,
    other: RawDatabase,
    background: Background,
    record_property: Record,
    tables: tuple[str, ...],
    seconds: float,
) -> None:
    """C46 P35 P41: jobs run, end and are registered while an exclusive lock is held; two workers go on after it."""
    crew = [worker(conf=FAST, threads=2) for _ in range(2)]
    short, long = running(stage, "short", 2), running(stage, "long", 2)
    other.query(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
    stage.open("short")
    registered = background(lambda: register_many(jobs.effect.bind(n) for n in range(50)))
    until_passed(seconds)
    fault = Recovery(record_property)
    other.rollback()
    ended(*short, *Job.objects.filter(pk__in=registered.result(30)))
    fault.check(10)
    stage.open("long")
    after = ended(*short, *long)
    assert {job.outcome for job in after} == {"succeeded"}
    assert all(job.attempt == 1 + job.attempts.count() for job in after)
    assert stage.count("effect") == 50
    assert {(job.pk, *history(job)) for job in after} == {(job.pk,) for job in after}, "a living worker lost its jobs"
    assert (stage.count("start", "short"), stage.count("start", "long")) == (2, 2)
    assert [process.stop() for process in crew] == [0, 0]
    assert not Claim.objects.exists()


def test_one_row_that_an_admin_locks_for_three_leases_harms_no_lease_and_ends_after_it(
    worker: Workers, stage: Stage, raw: RawDatabase, other: RawDatabase, record_property: Record
) -> None:
    """C46 W20 P35: leases are on the claims, ends skip a busy row and come again."""
    holder, rival = worker(conf=FAST), worker(conf=FAST)
    locked, *others = running(stage, "k", 4)
    other.lock(locked.pk)
    expires_at = "SELECT lease_expires_at FROM pgjobs_claim WHERE %s = ANY (job_ids)"
    first_expiry = raw.value(expires_at, [locked.pk])
    stage.open("k")
    assert {(job.outcome, job.attempt) for job in ended(*others)} == {("succeeded", 1)}
    more = register_many(jobs.effect.bind(n) for n in range(20))
    until_passed(3 * LEASE)
    assert {(job.outcome, job.attempt) for job in ended(*Job.objects.filter(pk__in=more))} == {("succeeded", 1)}
    assert read(locked).state == "running"
    assert raw.value(expires_at, [locked.pk]) > first_expiry
    fault = Recovery(record_property)
    other.rollback()
    (after,) = ended(locked)
    fault.check(2)
    assert (after.outcome, after.attempt, history(after)) == ("succeeded", 1, [])
    assert stage.count("start", "k") == 4
    assert not any("job rescued" in process.log for process in (holder, rival))


class Clumsy(threading.Thread):
    """An admin who updates pairs of rows in one transaction, in whatever order; deadlocks are his to try again."""

    def __init__(self, connect: Callable[..., RawDatabase], ids: list[int], seed: int) -> None:
        super().__init__(daemon=True)
        self.db = connect(autocommit=False, pins=False)
        self.db.query("SET deadlock_timeout = '20ms'")
        self.db.commit()
        self.ids = ids
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.deadlocks = 0
        self.updated = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                for job_id in self.random.sample(self.ids, 6):
                    self.db.query("UPDATE pgjobs_job SET description = 'seen' WHERE id = %s", [job_id])
                self.db.commit()
                self.updated += 6
            except psycopg.errors.DeadlockDetected:
                self.db.rollback()
                self.deadlocks += 1


def test_admins_who_deadlock_with_each_other_and_with_operators_stop_no_worker(
    worker: Workers, stage: Stage, db_connection: Callable[..., RawDatabase], record_property: Record
) -> None:
    """C46 C53 P35 P37: rows updated in opposite orders while they are claimed, ended and steered: one end each."""
    count = 600
    ids = register_many(jobs.effect.bind(n, seconds=0.01) for n in range(count))
    admins = [Clumsy(db_connection, ids[:40], seed) for seed in range(3)]
    for admin in admins:
        admin.start()
    crew = [worker(conf=FAST, processes=1, threads=2) for _ in range(2)]
    asked: set[int] = set()
    chance = random.Random(4)
    while open_jobs(Job.objects.filter(pk__in=ids)) > count // 10:
        some = chance.sample(ids, 12)
        asked.update(some)
        Job.objects.filter(pk__in=some).cancel(by="an operator", reason="chance")
        Job.objects.filter(pk__in=chance.sample(ids, 12)).reschedule(delay=0)
    fault = Recovery(record_property)
    for admin in admins:
        admin.stopping.set()
        admin.join(20)
    after = ended(*Job.objects.filter(pk__in=ids))
    fault.check(10)
    record_property("deadlocks", sum(admin.deadlocks for admin in admins))
    assert sum(admin.deadlocks for admin in admins) > 0
    for job in after:
        effects = stage.count("effect", job.payload["args"][0])
        if job.outcome == "succeeded":
            assert effects == 1
        else:
            assert (job.outcome, effects, job.pk in asked) == ("cancelled", 0, True)
        assert not history(job)
    assert [process.stop() for process in crew] == [0, 0]
    assert not any("deadlock" in process.log for process in crew)
