"""What the claim thread does when a row fails its claim: it parks that one, and no other."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from django_pgjobs.store import claiming
from django_pgjobs.store.claiming import ClaimedJob, Pair
from django_pgjobs.store.database import is_data_trouble
from django_pgjobs.worker.threads.claimer import Claimer
from django_pgjobs.worker.threads.inbox_messages import Claimed
from tests.unit.claimer_fakes import DB, TOO_LARGE, Ledger, refusing, taking, taking_one
from tests.unit.worker_fakes import Heard, claimed


@pytest.mark.parametrize("turns", [0, 1])
def test_the_row_that_is_parked_is_of_the_claim_that_failed(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """Queues take turns from plan to plan: the first row of another plan's first queue is innocent."""
    failed: list[str] = []
    parked: list[int] = []

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        failed.append(plan[0].queue)
        raise TOO_LARGE

    taking(monkeypatch, take)
    monkeypatch.setattr(claiming, "next_claimable", lambda db, plan, **_: {"a": 7, "b": 8}[plan[0].queue])
    taking_one(monkeypatch, lambda job_id: refusing([], 1))

    def park(db: Any, job_id: int, *_: Any) -> list[int]:
        parked.append(job_id)
        return [job_id]

    monkeypatch.setattr(claiming, "park_unclaimable", park)
    claimer.frontier.rotation = turns
    assert claimer._claim(DB, {False: 4})
    assert len(failed) == 3  # 4, 2, 1
    assert parked == [{"a": 7, "b": 8}[failed[-1]]]
    assert not claimer.busy


def test_a_row_that_can_be_claimed_after_all_is_claimed_and_not_parked(
    claimer: Claimer, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker has parked the one that failed; what is the first now is innocent, and would stay parked."""
    taking(monkeypatch, refusing)
    monkeypatch.setattr(claiming, "next_claimable", lambda db, plan, **_: 9)
    taking_one(monkeypatch, lambda job_id: [claimed(job_id)])
    monkeypatch.setattr(claiming, "park_unclaimable", lambda *_: pytest.fail("parked"))
    assert claimer._claim(DB, {False: 1})
    [message] = heard.of(Claimed)
    assert ([job.id for job in message.jobs], claimer.room.unadopted) == ([9], {False: 1})
    assert claimer.unconfirmed is None


def test_nothing_is_parked_when_no_row_is_left_that_fails(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    taking(monkeypatch, refusing)
    monkeypatch.setattr(claiming, "next_claimable", lambda db, plan, **_: None)
    monkeypatch.setattr(claiming, "park_unclaimable", lambda *_: pytest.fail("parked"))
    assert claimer._claim(DB, {False: 1})
    assert not claimer.busy


def test_a_worker_that_drains_claims_no_row_to_learn_whether_it_fails(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_claimable(db: Any, plan: list[Pair], **_: Any) -> int:
        claimer.halt()
        return 9

    taking(monkeypatch, refusing)
    monkeypatch.setattr(claiming, "next_claimable", next_claimable)
    taking_one(monkeypatch, lambda job_id: pytest.fail("claimed"))
    claimer._claim(DB, {False: 1})
    assert not claimer.busy


def test_other_trouble_parks_nothing(claimer: Claimer, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        raise psycopg.errors.InsufficientPrivilege("permission denied")

    taking(monkeypatch, take)
    monkeypatch.setattr(claiming, "park_unclaimable", lambda *_: pytest.fail("parked"))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        claimer._claim(DB, {False: 1})


def test_a_claim_that_only_we_cannot_read_is_given_back_before_fewer_are_claimed(
    claimer: Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has claimed them: left alone they would all be charged when the lease runs out."""
    ledger = Ledger(monkeypatch)
    taken: list[int] = []

    def take(plan: list[Pair], limit: int) -> list[ClaimedJob]:
        taken.append(limit)
        ledger.jobs = list(range(limit))
        raise psycopg.DataError("timestamp too small (before year 1)")

    taking(monkeypatch, take)
    parked: list[list[int]] = []

    def park(db: Any, job_id: int, reason: str, fingerprints: Any) -> list[int]:
        parked.append(list(ledger.jobs))
        return [job_id]

    monkeypatch.setattr(claiming, "next_claimable", lambda db, plan, **_: 7)
    taking_one(monkeypatch, lambda job_id: take([], 1))
    monkeypatch.setattr(claiming, "park_unclaimable", park)
    assert claimer._claim(DB, {False: 4})
    assert taken == [4, 2, 1, 1]
    assert parked == [[]], "all were free again when the one was parked"
    assert not claimer.busy


@pytest.mark.parametrize(
    ("error", "data"),
    [
        (psycopg.errors.DatetimeFieldOverflow("x"), True),
        (psycopg.errors.ProgramLimitExceeded("x"), True),
        (psycopg.errors.InternalError_("x"), True),
        (psycopg.DataError("NUL"), True),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate"), True),
        (psycopg.errors.QueryCanceled("x"), False),
        (psycopg.OperationalError("x"), False),
        (ValueError("x"), False),
    ],
)
def test_trouble_with_a_row_is_told_from_trouble_with_the_server(error: Exception, data: bool) -> None:
    assert is_data_trouble(error) is data
