"""Workers whose clock is an hour off, either way: every stored instant and every comparison is the database's."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.db import transaction
from django.db.models import F

from django_pgjobs.models import CronEntry, Job
from django_pgjobs.store import firing
from django_pgjobs.store.database import on
from django_pgjobs.store.firing import DeclaredCron
from tests.chaos.ground import Ground
from tests.chaos.jobs import aact, act, patient
from tests.chaos.load import needs, recovered, unless
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ended, read

pytestmark = pytest.mark.chaos

LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1")


@pytest.fixture(params=[3600, -3600], ids=["ahead", "behind"])
def clock(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a process whose wall clock is an hour off; the monotonic ones are right."""
    needs("faketime")
    found = [path for pattern in LIBRARIES for path in Path("/").glob(pattern[1:])]
    unless(not found, "libfaketime.so.1 is not where Debian has it")
    return {"LD_PRELOAD": str(found[0]), "FAKETIME": f"{request.param:+d}", "DONT_FAKE_MONOTONIC": "1"}


def test_the_clock_of_a_worker_is_an_hour_off(ground: Ground, clock: dict[str, str]) -> None:
    """C7 C35 P25: a lease, a due instant and a retry's delay are what the database's clock says."""
    worker = ground.workers(env=clock)
    off = int(clock["FAKETIME"])
    wait_until(lambda: abs(_wall_clock(worker.log) - time.time() - off) < 120, 10, "its clock is wrong")

    later = ground.register(act.using(delay=3))
    again = ground.register(patient, "fail")
    snoozed = ground.register(act, "snooze", seconds=2)
    held = ground.register(aact, "wait", gate="held")
    wait_until(lambda: ground.journal.count("start") == 3, 10, "the three that are due run")
    assert read(later).claim_id is None
    _leases_are_right(ground)
    ended(later, again, snoozed)
    for job, least in ((later, 3), (again, 2), (snoozed, 2)):
        found = read(job)
        assert found.finished_at
        waited = (found.finished_at - found.created_at).total_seconds()
        assert least <= waited < least + 3
        assert abs(found.finished_at.timestamp() - time.time()) < 60
    ground.stage.open("held")
    recovered(ground, held, within=10, what=f"clock {off:+d} s")
    assert "attempts_lost" not in ground.check().counts


def _wall_clock(log: str) -> float:
    """When a worker says that it is ready, by its own clock."""
    line = next(line for line in log.splitlines() if "executor is ready" in line)
    return time.mktime(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S"))


def _leases_are_right(ground: Ground) -> None:
    ((left,),) = ground.server.ask(
        "SELECT extract(epoch FROM max(lease_expires_at) - statement_timestamp())::float8 FROM pgjobs_claim"
    )
    assert 0 < left <= 1.5


def test_among_two_workers_one_clock_is_an_hour_off(ground: Ground, clock: dict[str, str]) -> None:
    """D6: the wrong one rescues nobody who lives, and is rescued by nobody while it lives; after its death it is.

    A job's deadline comes when it is due, whoever holds it.
    """
    wrong = ground.workers(env=clock)
    held = [ground.register(aact, "sleep", seconds=4) for _ in range(2)]
    wait_until(lambda: ground.journal.count("start") == 2, 10, "the wrong one runs them")
    right = ground.workers()
    held += [ground.register(aact, "sleep", seconds=4) for _ in range(4)]
    late = ground.register(aact.using(timeout=1, max_attempts=1), "sleep", seconds=20)
    ended(*held, late, timeout=20)
    assert [job.attempt for job in ended(*held)] == [1] * 6
    (over,) = ended(late)
    assert over.outcome == "abandoned"
    assert over.finished_at
    assert over.claimed_at
    assert 1 <= (over.finished_at - over.claimed_at).total_seconds() < 4
    assert right.stop() == 0
    begun = ground.journal.count("start")
    doomed = [ground.register(aact, "wait", gate="killed") for _ in range(4)]
    wait_until(lambda: ground.journal.count("start") == begun + 4, 10, "the wrong one runs them")
    rescuer = ground.workers()
    with ground.fault("kill", wrong.pid, *wrong.executors()):
        wrong.kill()
    ground.stage.open("killed")
    recovered(ground, *doomed, within=15, what=f"worker {clock['FAKETIME']} s killed")
    ground.workers.started.remove(wrong)
    assert rescuer.said("job rescued")
    report = ground.check(recovery_seconds=4)
    assert report.counts["attempts_lost"] >= 1, report


def test_the_clock_of_the_leader_is_an_hour_off(ground: Ground, clock: dict[str, str]) -> None:
    """W52 C35: what is due within that hour does not fire early, what was due in the last one fires once."""
    worker = ground.workers(env=clock)
    off = int(clock["FAKETIME"])
    wait_until(lambda: abs(_wall_clock(worker.log) - time.time() - off) < 120, 10, "its clock is wrong")
    [(now,)] = ground.server.ask("SELECT statement_timestamp()")
    past, future = (now + timedelta(minutes=minutes) for minutes in (-20, 20))
    # At once: a leader that has read an entry of just now plans it for tomorrow, whatever becomes of the row meanwhile.
    with transaction.atomic():
        for name, due in (("past", past), ("future", future)):
            _declare_at(name, due)
        CronEntry.objects.update(created_at=F("created_at") - timedelta(minutes=40))
    wait_until(lambda: Job.objects.filter(cron_entry="past").exists(), 20, "what was due is fired")
    wait_until(lambda: CronEntry.objects.filter(pk="future", next_fire_at__isnull=False).exists(), 20, "both are seen")
    later = ground.register(act.using(delay=3))
    ended(later)
    made = Job.objects.get(cron_entry__isnull=False)
    assert (made.cron_entry, made.fire_at) == ("past", past.replace(second=0, microsecond=0))
    assert CronEntry.objects.get(pk="future").next_fire_at == future.replace(second=0, microsecond=0)


def _declare_at(name: str, due: datetime) -> None:
    declared = DeclaredCron(
        name=name,
        job_name="tests.e2e.jobs.effect",
        expression=f"{due:%M %H} * * *",
        zone="UTC",
        payload='{"args": ["fired"], "kwargs": {}}',
        options=json.dumps({"queue": "default", "priority": 0, "max_attempts": 3, "description": "", "key_scope": ""}),
        misfire="once",
        overlap="allow",
    )
    firing.declare_cron(on("default"), declared, overwrite=True, fresh_seconds=0)
