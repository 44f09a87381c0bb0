"""Liveness: one status for every reader, *lost* by a rescue, and since when a job has been ready."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db.models.functions import Now

from django_pgjobs.maintenance.unparking import unpause
from django_pgjobs.models import Heartbeat, Job, QueueState
from django_pgjobs.models.attempts import Claim
from django_pgjobs.presentation.job_rows import fate
from django_pgjobs.queues import Queue, pauses
from django_pgjobs.states import JobState
from django_pgjobs.store import admitting, counting, explaining, finalising, keeping, schemas, steering
from django_pgjobs.store.keeping import Rescued
from django_pgjobs.testing import backdate
from tests.db.test_why import worker
from tests.plugins.fix_db import AUTHOR, FAILURE, WORKER, RawDatabase, claim, job, register, wait_until
from tests.plugins.shell import BEAT

pytestmark = pytest.mark.usefixtures("committed")


@pytest.mark.parametrize(
    ("state", "heard", "status"),
    [
        ("running", 1, "running"),
        ("draining", 19, "draining"),
        ("running", 21, "silent"),
        ("draining", 59, "silent"),
        ("running", 61, "lost"),
        ("lost", 1, "lost"),
        ("stopped", 100, "stopped"),
    ],
)
def test_the_status_of_a_worker_is_the_same_for_every_reader(
    raw: RawDatabase, state: str, heard: float, status: str
) -> None:
    """With heartbeats each 10 s: two that do not come make a worker silent, 60 s lost."""
    worker("web-1", id=WORKER, state=state, heard=heard)
    register()
    [held] = claim(raw).ids
    listed = counting.list_workers(raw, silent_seconds=20, stale_seconds=60)
    assert [each.status for each in listed] == ([] if status == "stopped" else [status])
    facts = explaining.read_why(raw, held, silent_seconds=20, stale_seconds=60)
    assert facts is not None
    assert facts.worker_status == status
    assert Heartbeat.objects.all().with_status().get().status == status
    live = status in ("running", "draining")
    assert facts.live == live
    assert Heartbeat.objects.all().live().count() == live
    assert Job.objects.annotate(fate=fate()).values_list("fate", flat=True).get() == ("" if live else "silent")


def test_a_worker_that_leaves_a_schema_is_forgotten_unless_it_has_claims_there(raw: RawDatabase) -> None:
    """Whoever rescues these says whose they were."""
    worker("web-1", id=WORKER)
    worker("web-2")
    register()
    [held] = claim(raw).ids
    assert not schemas.remove_worker(raw, WORKER)
    assert Heartbeat.objects.count() == 2
    Claim.objects.all().delete()
    assert schemas.remove_worker(raw, WORKER)
    assert [each.name for each in Heartbeat.objects.all()] == ["web-2"]
    assert Job.objects.get(pk=held).claim_id is not None


def test_a_heartbeat_that_comes_late_does_not_bring_a_worker_back_that_has_stopped(raw: RawDatabase) -> None:
    """It was held up by the network or by a row's lock, and its worker has said farewell since."""
    keeping.beat(raw, {**facts_of("web-1"), "running": 3})
    keeping.beat(raw, {**facts_of("web-1"), "state": "stopped", "finished": 9})
    before = Heartbeat.objects.values().get()
    assert before["state"] == "stopped"
    for state in ("running", "draining"):
        keeping.beat(raw, {**facts_of("web-1"), "state": state, "running": 3})
        assert Heartbeat.objects.values().get() == before


def test_a_lost_worker_that_beats_again_is_back(raw: RawDatabase) -> None:
    keeping.beat(raw, facts_of("web-1"))
    Heartbeat.objects.update(state="lost")
    keeping.beat(raw, facts_of("web-1"))
    assert Heartbeat.objects.get().state == "running"


def facts_of(name: str) -> dict[str, Any]:
    return {**dict.fromkeys(("queues", "excluded_queues")), **BEAT, "name": name}


def test_a_running_job_without_a_lease_is_lost_and_no_other_has_a_fate(raw: RawDatabase) -> None:
    worker(id=WORKER)
    register(4)
    ended, lost, unnamed = claim(raw), claim(raw), claim(raw)
    finalising.finalise_success(raw, ended.ends(), AUTHOR)
    backdate(job(lost.ids[0]), lease=60)
    Claim.objects.filter(claim_id=unnamed.claim_id).delete()
    fates = dict(Job.objects.annotate(fate=fate()).order_by("pk").values_list("pk", "fate"))
    assert list(fates.values()) == ["", "lost", "lost", ""]


# A rescuer marks the heartbeat


def taken_back(raw: RawDatabase, overdue: Sequence[tuple[int, str]] = ()) -> list[Rescued]:
    """Rescue the jobs of dead workers, or as their own worker those that it could not stop."""
    found: list[Rescued] = []

    def read_status() -> bool:
        without: dict[str, Any] = {"without_on_cancel": [], "without_on_abandon": [], "overdue": overdue}
        found.extend(keeping.rescue_jobs(raw, limit=5, quiet_seconds=0, grace_seconds=0, stale_seconds=20, **without))
        return bool(found)

    wait_until(read_status, 5, "the job is taken back")
    return found


def states() -> dict[str, str]:
    return dict(Heartbeat.objects.values_list("name", "state"))


def test_a_rescue_marks_the_worker_as_lost_and_its_next_heartbeat_clears_it(raw: RawDatabase) -> None:
    worker("web-1", id=WORKER, heard=8)
    worker("other", heard=8)
    register()
    [held] = claim(raw).ids
    backdate(job(held), lease=31)
    rescued = taken_back(raw)
    assert keeping.mark_lost(raw, rescued, quiet_seconds=7) == ["web-1"]
    assert states() == {"web-1": "lost", "other": "running"}
    assert keeping.mark_lost(raw, rescued, quiet_seconds=7) == []
    facts = {"name": "web-1", "host": "h", "pid": 1, "queues": None, "excluded_queues": None, "processes": 1}
    facts |= {"threads": 1, "async_slots": 1, "version": "1", "release": "", "running": 0, "finished": 0, "protocol": 1}
    keeping.beat(raw, {"id": WORKER, "state": "running", **facts})
    assert states()["web-1"] == "running"


@pytest.mark.parametrize(
    "alive", ["it beat a moment ago", "it has another lease", "it has stopped", "it was a deadline"]
)
def test_a_worker_that_may_live_is_not_marked(raw: RawDatabase, alive: str) -> None:
    """A lock on one row of the ledger lets one lease run out; its worker lives."""
    worker("web-1", id=WORKER, heard=1 if alive == "it beat a moment ago" else 8)
    register(2, timeout_seconds=1.0)
    claimed = claim(raw)
    [held] = claimed.ids
    if alive == "it was a deadline":
        backdate(job(held), overdue_at=60)
    else:
        backdate(job(held), lease=31)
    if alive == "it has another lease":
        claim(raw)
    if alive == "it has stopped":
        Heartbeat.objects.update(state="stopped")
    before = states()
    own = claimed.fences() if alive == "it was a deadline" else []
    assert keeping.mark_lost(raw, taken_back(raw, own), quiet_seconds=7) == []
    assert states() == before


def test_a_heartbeat_that_somebody_holds_keeps_no_rescue_waiting(raw: RawDatabase, other: RawDatabase) -> None:
    worker("web-1", id=WORKER, heard=8)
    register()
    [held] = claim(raw).ids
    backdate(job(held), lease=31)
    other.query("SELECT FROM pgjobs_heartbeat FOR UPDATE")
    assert keeping.mark_lost(raw, taken_back(raw), quiet_seconds=7) == []
    other.rollback()
    assert states() == {"web-1": "running"}


# Since when a job has been ready


def waited(raw: RawDatabase) -> float:
    """Seconds that the oldest due job has waited, by the statement behind ``stats`` and ``check``; ``why`` agrees."""
    [found] = counting.count_due(raw, most=100, budget=1000)
    assert found.oldest_seconds is not None
    [ready] = Job.objects.filter(state=JobState.READY).values_list("pk", flat=True)
    facts = explaining.read_why(raw, ready, silent_seconds=20, stale_seconds=60)
    assert facts is not None
    assert (facts.now - facts.ready_since).total_seconds() == pytest.approx(found.oldest_seconds, abs=2)
    return found.oldest_seconds


def old(raw: RawDatabase, **fields: Any) -> int:
    """Register a job that has been due for an hour."""
    [one] = register(**fields)
    backdate(job(one), run_at=3600)
    return one


def test_a_job_that_is_registered_for_a_time_long_gone_waits_since_then_only(raw: RawDatabase) -> None:
    register(delay_seconds=-3600)
    assert waited(raw) < 60
    Job._base_manager.all().delete()
    old(raw)
    assert waited(raw) >= 3600


@pytest.mark.parametrize("how", ["rescue", "release", "retry", "snooze"])
def test_a_job_that_comes_back_waits_since_then(raw: RawDatabase, how: str) -> None:
    old(raw)
    held = claim(raw)
    if how == "rescue":
        backdate(job(held.ids[0]), lease=60)
        taken_back(raw)
    elif how == "release":
        finalising.release_jobs(raw, held.ends(), AUTHOR)
    elif how == "retry":
        ends = held.ends(delay=0.0, cause="failed", seconds=1.0, outcome="abandoned", failure=FAILURE)
        finalising.finalise_retry(raw, ends, AUTHOR)
    else:
        finalising.finalise_snooze(raw, held.ends(delay=0.0))
    assert waited(raw) < 60


@pytest.mark.parametrize("kind", ["queue", "job"])
def test_a_job_that_was_paused_waits_since_that_was_over(raw: RawDatabase, kind: str) -> None:
    one = old(raw)
    QueueState.objects.create(kind=kind, name="default" if kind == "queue" else "test.job")
    if kind == "queue":
        assert Queue("default").resume()
    else:
        Job.objects.filter(pk=one).update(hold="paused")
        assert pauses.resume("job", "test.job")
        assert unpause(raw) == 1
    assert waited(raw) < 60


@pytest.mark.parametrize("how", ["let in", "unparked", "run now", "moved", "cancelled", "abandoned"])
def test_a_job_that_somebody_unblock_waits_since_then(raw: RawDatabase, how: str) -> None:
    one = old(raw)
    if how == "let in":
        Job.objects.filter(pk=one).update(hold="limited", limit_key="")
        admitting.admit_one(raw, one)
    elif how == "unparked":
        Job.objects.filter(pk=one).update(hold="parked")
        assert keeping.unpark_jobs(raw, {"test.job": "new"}, limit=5)
    elif how == "run now":
        job(one).reschedule(delay=0)
    elif how == "moved":
        job(one).reschedule(queue="mail")
    elif how == "cancelled":
        steering.cancel_jobs(raw, [one], mode="ask", by="", reason="", with_callback=["test.job"])
    else:
        steering.abandon_jobs(raw, [one], reason="", with_callback=["test.job"])
    assert waited(raw) < 60


def test_another_priority_is_no_new_wait(raw: RawDatabase) -> None:
    job(old(raw)).reschedule(priority=5)
    assert waited(raw) >= 3600


def test_a_job_that_waits_is_found_behind_those_that_just_came_back(raw: RawDatabase) -> None:
    """The order of the index is that of ``run_at``: the one that has waited longest need not be the first."""
    for _ in range(5):
        old(raw)
    finalising.release_jobs(raw, claim(raw, 5).ends(), AUTHOR)
    backdate(job(register()[0]), run_at=600)
    [found] = counting.count_due(raw, most=100, budget=1000)
    assert found.oldest_seconds is not None
    assert 600 <= found.oldest_seconds < 3600


def test_a_worker_of_another_id_is_not_mixed_up(raw: RawDatabase) -> None:
    """Two workers of one name: each has a row of its own."""
    worker("web-1", id=uuid4(), heard=30)
    worker("web-1", id=WORKER)
    register()
    [held] = claim(raw).ids
    assert job(held).why().code == "running"
    Heartbeat.objects.filter(pk=WORKER).update(last_beat_at=Now() - timedelta(seconds=30))
    assert job(held).why().code == "silent"
