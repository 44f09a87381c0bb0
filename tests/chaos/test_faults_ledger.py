"""Ledger rows that somebody deletes: the leader's audit gives running jobs new ones.

Leases of 1.5 s, renewed each 0.4 s (``helping.FAST``). No other worker may lead, or take the jobs, meanwhile.
"""

from __future__ import annotations

import pytest

from django_pgjobs.models.attempts import Claim
from tests.chaos.helping import FAST, LEASE, Record, Recovery, running
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_worker import Workers, age, ended, history

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("alive", [True, False], ids=["the owner lives", "the owner is dead"])
def test_running_jobs_whose_ledger_rows_are_deleted_are_found_by_the_audit(
    worker: Workers, stage: Stage, raw: RawDatabase, record_property: Record, alive: bool
) -> None:
    """D13 C42 I4 I18: a leader audits as soon as it leads, then once a minute; so the first leader leaves.

    A living owner runs its jobs on, and renews the rows it is given; those of a dead one run elsewhere.
    """
    leader = worker("--queues=nobody", conf=FAST)
    leader.wait_for_log("worker leads now")
    owner = worker(conf=FAST)
    taken = running(stage, "k", 4)
    heir = worker(conf=FAST)
    fault = Recovery(record_property)
    raw.query("DELETE FROM pgjobs_claim")
    if alive:
        wait_until(lambda: age(taken[0]) > 3 * LEASE, 20, "three leases have passed")
        assert ([history(job) for job in taken], Claim.objects.count()) == ([[]] * 4, 0)
        fault = Recovery(record_property)
    else:
        owner.kill()
    assert leader.stop() == 0
    audited = "running jobs without a claim got one jobs=4"
    wait_until(lambda: owner.said(audited) or heir.said(audited), 20, "the new leader has found them")
    if alive:
        fault.check(10)
        given = raw.value("SELECT max(lease_expires_at) FROM pgjobs_claim")
        renewed = "SELECT count(*) FROM pgjobs_claim WHERE lease_expires_at > %s + interval '3 s'"
        wait_until(lambda: raw.value(renewed, [given]) == raw.value("SELECT count(*) FROM pgjobs_claim"), 20, "renewed")
    else:
        wait_until(lambda: stage.count("start", "k") == 8, 20, "they run elsewhere")
        fault.check(10 + LEASE + 2, max(trace.at for trace in stage.traces("start", "k")))
    stage.open("k")
    after = {(job.outcome, job.attempt, tuple(history(job))) for job in ended(*taken)}
    assert after == {("succeeded", 1, ()) if alive else ("succeeded", 2, ((1, "lost"),))}
    assert stage.count("start", "k") == (4 if alive else 8)
    wait_until(lambda: not Claim.objects.exists(), 10, "no claim is left")
