"""Claims whose answer was lost are looked up until they are found or can no longer appear."""

from __future__ import annotations

from uuid import UUID

import pytest

from django_pgjobs import clock
from django_pgjobs.worker.threads.claimer import Claimer
from tests.unit.claimer_fakes import DB, Ledger


def test_a_claim_that_its_server_process_commits_late_is_given_back_too(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§3 claim: the way broke, the first look was too early; looked up again, it costs no attempt."""
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    ledger = Ledger(monkeypatch)
    claimer.unconfirmed = UUID(int=9)
    claimer.stopping.set()
    claimer.serve(DB)
    assert not claimer.busy
    assert ledger.reads == 1
    claimer.check_doubts(DB)
    assert ledger.reads == 1, "not at once again"
    now[0] += 1.0
    ledger.jobs, ledger.locked = [1, 2], {2}
    claimer.check_doubts(DB)
    assert (ledger.jobs, claimer.hints.pairs, claimer.hints.released) == ([2], {("a", 0)}, {"a"})
    assert ledger.told == [({("a", 0)}, True)], "this worker may be leaving"
    now[0] += 2.0
    ledger.locked = set()
    claimer.check_doubts(DB)
    assert (ledger.jobs, claimer.in_doubt.doubts) == ([], [])
    assert ledger.deleted[-1] == str(UUID(int=9)), "nobody else would delete its ledger row before the lease is over"


def test_a_claim_that_never_was_is_looked_for_until_its_lease_is_over(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ever more seldom, and once more when the worker leaves."""
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    ledger = Ledger(monkeypatch)
    claimer.in_doubt.resolve(DB, UUID(int=9))
    while claimer.in_doubt.doubts and now[0] < 1000:
        claimer.check_doubts(DB)
        now[0] += 0.25
    assert now[0] >= 130
    assert 5 <= ledger.reads <= 12
    claimer.in_doubt.resolve(DB, UUID(int=9))
    before = ledger.reads
    claimer.halt()
    claimer.check_doubts(DB)
    assert ledger.reads == before + 1
