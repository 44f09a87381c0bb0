"""Faults of the server: restart, crash, claims lost in a crash, backends ended at random and inside their commit."""

from __future__ import annotations

import pytest
from django.db import connection

from tests.chaos import history as h
from tests.chaos.ground import Ground, text_of
from tests.chaos.jobs import act, called
from tests.chaos.load import meanwhile, recovered, under_load
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ended

pytestmark = pytest.mark.chaos

UNHURRIED = {"LEASE_SECONDS": 6.5, "RENEW_SECONDS": 2.0, "BEAT_SECONDS": 5.0, "STALE_SECONDS": 12.0}


@pytest.mark.parametrize("immediate", [False, True], ids=["restart", "crash"])
def test_the_server_goes_away_under_load(ground: Ground, immediate: bool) -> None:
    """C10 C52 P39 P41: with hundreds of jobs under way and two workers; what had ended meanwhile is written after."""
    two = [ground.workers(), ground.workers()]
    jobs = under_load(ground, 500, done=60)
    with ground.fault(h.CRASH if immediate else "restart"):
        ground.server.restart(immediate=immediate)
    recovered(ground, *jobs, within=30, what="crash" if immediate else "restart")
    assert [worker.process.poll() for worker in two] == [None, None]
    report = ground.check()
    assert report.counts["succeeded"] == 501, report


def test_a_claim_that_was_not_on_disk_is_lost_in_a_crash(ground: Ground) -> None:
    """C44: claims commit asynchronously. The job is run again at the same attempt; the first execution's end counts
    for nothing.
    """
    ground.server.configure(wal_writer_delay="10s", wal_writer_flush_after="1GB")
    try:
        connection.close()
        ground.workers(conf=UNHURRIED)
        for turn in range(6):
            if _lost_in_a_crash(ground, f"turn-{turn}"):
                break
        else:
            pytest.fail("no claim was lost in six crashes")
    finally:
        ground.server.configure(wal_writer_delay=None, wal_writer_flush_after=None)
        connection.close()
    report = ground.check()
    assert report.counts["excused_claim_lost"] >= 1, report


def _lost_in_a_crash(ground: Ground, key: str) -> bool:
    job = ground.register(act, "wait", key=key)
    wait_until(lambda: ground.journal.count("start", key=key) == 1, 10, "it runs")
    ground.crash()
    connection.close()
    (first,) = (line["claim"] for line in ground.journal.lines("start") if line["key"] == key)
    lost = not ground.server.ask("SELECT FROM chaos_job_audit WHERE claim_id = %s", first)
    if lost:
        wait_until(lambda: ground.journal.count("start", key=key) == 2, 20, "it runs again")
    ground.stage.open(key)
    (end,) = ended(job, timeout=30)
    assert (end.outcome, end.attempt) == ("succeeded", 1)
    assert (str(end.claim_id) != first) == lost
    return lost


def test_backends_ended_at_random(ground: Ground) -> None:
    """P39: two a second, those of claims, acks, renewals and of the jobs themselves, while 700 jobs run."""
    ground.workers(processes=2, threads=2)
    ground.workers(processes=2, threads=2)
    with ground.fault("terminate"), meanwhile(lambda: ground.server.terminate(limit=1), 0.5) as ended_backends:
        jobs = under_load(ground, 350, done=0, seconds=0.1)
        jobs += under_load(ground, 350, done=0, seconds=0.05, role="query")
        ended(*jobs, timeout=35)
    recovered(ground, within=10, what="terminate")
    assert sum(ended_backends) >= 15
    report = ground.check()
    assert report.counts["succeeded"] == 701, report


LOST_REPLIES = [
    "claim_jobs", "finalise_success_fast", "finalise_retry", "mark_ending", "renew_claims", "delete_claims",
]  # fmt: skip


@pytest.mark.parametrize("statement", LOST_REPLIES)
def test_the_answer_to_a_commit_is_lost(ground: Ground, statement: str) -> None:
    """C44: twice for each statement. Every commit is resolved as what it was: one end each, nothing runs twice."""
    ground.workers()
    lost = ground.proxy.lose_reply(text_of(statement), times=2)
    with ground.fault("cut"):
        jobs = [ground.register(act, "sleep", seconds=0.5) for _ in range(8)]
        jobs += [ground.register(act, "fail", times=2), ground.register(called, "raise")]
        lost.wait()
        wait_until(lambda: lost.hits == 2, 20, "two answers are lost")
    recovered(ground, *jobs, within=20, what=f"lost reply to {statement}")
    report = ground.check()
    assert (report.counts["succeeded"], report.counts["abandoned"]) == (10, 1), report
    assert report.counts["starts"] == 8 + 3 + 2 + 1 + 1, report


ENDS = {"success": (act, "succeed", 1), "retry": (act, "fail", 2), "mark_ending": (called, "raise", 3)}


@pytest.mark.parametrize("end", ENDS)
def test_a_backend_is_ended_inside_its_commit(ground: Ground, end: str) -> None:
    """C44: commits wait for a standby that does not exist, and the backend is ended there: it has committed.

    What it wrote is known afterwards to have been written: no end twice, no callback twice.
    """
    definition, role, starts = ENDS[end]
    ground.workers(conf=UNHURRIED)
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = local")
    with ground.fault("terminate"):
        _set_standby(ground, "nobody")
        job = ground.register(definition, role)
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name ~ ' finalise$'"
        wait_until(lambda: ground.server.ask(waiting), 10, "the end's commit waits")
        assert ground.server.ask(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS waiting") == [(True,)]
        _set_standby(ground, "")
    recovered(ground, job, within=10, what=f"ended in commit of {end}")
    report = ground.check()
    assert report.counts["starts"] == starts + 1, report


def _set_standby(ground: Ground, name: str) -> None:
    ground.server.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    ground.server.ask("SELECT pg_reload_conf()")
