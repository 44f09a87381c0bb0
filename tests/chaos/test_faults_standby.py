"""A standby is promoted that lacks the last commits of its primary: what they said has never been."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_pgjobs.models import Job
from tests.chaos import history as h
from tests.chaos.ground import Ground, django_on
from tests.chaos.jobs import act
from tests.chaos.load import recovered
from tests.chaos.standby import Standby
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ended, history

pytestmark = pytest.mark.chaos

CONF = {"LEASE_SECONDS": 4.0, "RENEW_SECONDS": 1.0, "BEAT_SECONDS": 1.0, "STALE_SECONDS": 6.0}
LOST_REGISTRATIONS = 100
"""More than the 32 that a sequence is ahead of itself in the log: their ids are given out again."""

STUCK = """
SELECT id FROM pgjobs_job AS j WHERE outcome IS NULL AND claim_id IS NOT NULL AND NOT EXISTS (
    SELECT FROM pgjobs_claim AS k WHERE k.claim_id = j.claim_id AND j.id = ANY (k.job_ids)
)
"""


@pytest.fixture
def standby(ground: Ground) -> Iterator[Standby]:
    """A standby of the module's server; once promoted it is the module's server, which ends with the module."""
    with Standby(ground.server) as standby:
        yield standby


@pytest.mark.parametrize("way_first", [False, True], ids=["promoted-first", "way-first"])
def test_a_standby_without_the_last_commits_is_promoted(ground: Ground, standby: Standby, way_first: bool) -> None:
    """C44 P39 P41: claims, ends and registrations of some seconds are lost; whoever runs meanwhile keeps its job.

    Ends of claims that the new primary never saw are refused, and so are those of jobs it never saw, whose ids it
    has given to others. Nobody is rescued whose worker lives, though all leases have expired meanwhile.
    """
    left, right = (ground.workers(f"--queues={name},default", threads=8, conf=CONF) for name in ("left", "right"))
    kept = _running(ground, "kept", ["left", "right"], gate="end")
    undone = _running(ground, "undone", ["left", "right"], gate="split")
    late = _waiting(ground, 4, queue="late")
    ready = ground.register.many([(act, "sleep", "", {"seconds": 0.02})] * 150)
    wait_until(lambda: ground.journal.count("end") >= 20, 20, "some have ended before")
    standby.catch_up()

    standby.leave_behind()
    ground.stage.open("split")
    ended(*undone, *ready)
    third = ground.workers("--queues=late", threads=8, conf=CONF)
    gone = _registered_in_vain(ground)
    wait_until(lambda: _starts(ground, late + gone[-4:]) == 8, 20, "what will be lost is running")

    with ground.fault(h.CRASH):
        ground.server.halt(immediate=True)
        ground.stage.open("dark")
        wait_until(lambda: ground.journal.count("end", key="late-1") == 1, 10, "it ends and cannot be recorded")
        _fail_over(ground, standby, way_first=way_first)
    with django_on(ground.server.url):
        again = ground.register.many([(act.using(queue="late"), "succeed", "", {})] * len(gone))
        assert {job.pk for job in gone[-4:]} <= {job.pk for job in again}, "ids are given out again"
        recovered(ground, *again, *undone, *ready, within=20, what="promoted")
        wait_until(lambda: _starts(ground, late) == 8, 20, "claimed again: here nobody ever has")
        wait_until(lambda: third.said("lease lost, nothing of the job was changed", 8), 20, "eight ends are refused")
        ground.stage.open("end")
        _came_to(kept, attempt=1, before=[])  # nobody has rescued what runs
        assert _starts(ground, kept) == len(kept)
        _came_to(undone, attempt=2, before=[(1, "lost")])
        _came_to(late, attempt=1, before=[])
        assert not Job.objects.filter(payload__kwargs__key__startswith="gone").exists()
        assert ground.server.ask(STUCK) == []
        assert [worker.process.poll() for worker in (left, right, third)] == [None] * 3
        report = ground.check()
    assert report.counts["excused_claim_lost"] >= 8, report
    assert report.counts["attempts_lost"] >= 4, report


def _running(ground: Ground, word: str, queues: list[str], gate: str) -> list[Job]:
    """Two jobs in each queue, which run until the gate is open."""
    jobs = [
        ground.register(act.using(queue=name), "wait", key=f"{word}-{name}-{number}", gate=gate)
        for name in queues
        for number in (1, 2)
    ]
    wait_until(lambda: _starts(ground, jobs) == len(jobs), 20, "they run")
    return jobs


def _waiting(ground: Ground, count: int, queue: str) -> list[Job]:
    """Jobs that nobody serves yet. The first two will end while no server is there, the others still run then."""
    gates = ["dark"] * 2 + ["end"] * (count - 2)
    return [
        ground.register(act.using(queue=queue), "wait", key=f"{queue}-{number}", gate=gate)
        for number, gate in enumerate(gates, 1)
    ]


def _registered_in_vain(ground: Ground) -> list[Job]:
    """Registrations of which the new primary will know nothing; the last four run when it comes."""
    late = act.using(queue="late")
    wanted: list[tuple[Any, str, str, dict[str, Any]]] = [
        (late, "succeed", f"gone-{n}", {}) for n in range(LOST_REGISTRATIONS)
    ]
    wanted += [(late, "wait", f"gone-wait-{n}", {"gate": "dark" if n < 2 else "end"}) for n in range(4)]
    gone = ground.register.many(wanted)
    for _, _, key, _ in wanted:
        ground.journal.note("registered", key=key, fate=h.UNKNOWN)
    return gone


def _starts(ground: Ground, jobs: list[Job]) -> int:
    ids = {job.pk for job in jobs}
    return sum(line["job"] in ids for line in ground.journal.lines("start"))


def _came_to(jobs: list[Job], *, attempt: int, before: list[tuple[int, str]]) -> None:
    """All have succeeded at this attempt, and these were kept of the ones before."""
    found = [(job.outcome, job.attempt, history(job)) for job in ended(*jobs)]
    assert found == [("succeeded", attempt, before)] * len(jobs)


def _fail_over(ground: Ground, standby: Standby, *, way_first: bool) -> None:
    """Make the standby the server, once every lease in it has expired."""
    port = ("127.0.0.1", standby.embedded.port)
    running = "SELECT claim_id FROM pgjobs_claim WHERE lease_expires_at > now()"
    if way_first:
        ground.proxy.upstream = port
    wait_until(lambda: not standby.ask(running), 20, "every lease has expired")
    standby.promote()
    ground.proxy.upstream = port
