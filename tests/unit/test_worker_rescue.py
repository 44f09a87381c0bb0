"""Rescue when nothing can be known: after a look that failed, renewals come before anybody is taken for dead."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from django_pgjobs import clock, store
from django_pgjobs.conf import get_conf
from django_pgjobs.maintenance.rescue import CLAIMS, Rescuer


def nobody(rescued: list[store.Rescued]) -> None:
    raise AssertionError("nothing was rescued here")


class Old:
    """A connection that has been up for long."""

    connected_at = -1e9

    def fetch(self, name: str, params: Any) -> store.Rows:
        raise AssertionError(f"{name} is not asked for here")


def asked() -> Rescuer:
    """A rescuer whom that connection has answered before."""
    rescuer = Rescuer(nobody)
    rescuer.asked_on = Old.connected_at
    return rescuer


def slow(monkeypatch: pytest.MonkeyPatch, can: int) -> list[int]:
    """Let rescues of more than so many ledger rows run out of time; return the limits that were tried."""
    tried: list[int] = []

    def rescue_jobs(db: Any, *, limit: int, **_: Any) -> list[store.Rescued]:
        tried.append(limit)
        if limit > can:
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return []

    monkeypatch.setattr(store, "rescue_jobs", rescue_jobs)
    return tried


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The instant of the monotonic clock, to be set."""
    instant = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: instant[0])
    return instant


def look(rescuer: Rescuer, now: list[float], after: float) -> list[store.Rescued] | None:
    """Look again after so many seconds; None if that failed."""
    now[0] += after
    try:
        return rescuer(Old())
    except psycopg.errors.QueryCanceled:
        return None


@pytest.mark.parametrize("can", CLAIMS)
def test_as_many_are_taken_back_as_the_server_can_in_time(
    monkeypatch: pytest.MonkeyPatch, now: list[float], can: int
) -> None:
    """C46: the same too large batch would run out of time for ever, and its jobs be stranded."""
    tried = slow(monkeypatch, can)
    rescuer = asked()
    period = get_conf().renew_seconds
    for _ in range(6):
        look(rescuer, now, period + 1)
    wanted: list[int] = []
    for size in CLAIMS[: CLAIMS.index(can)]:
        wanted += [size, 0]
    assert tried[: len(wanted) + 1] == [*wanted, can]


def test_after_a_look_that_failed_renewals_come_first(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    """D3 P41: whatever held it up has held up the renewals of the living; one whole period is theirs."""
    tried = slow(monkeypatch, -1)
    rescuer = asked()
    period = get_conf().renew_seconds
    assert look(rescuer, now, 0) is None
    assert look(rescuer, now, period) is None
    assert tried == [CLAIMS[0], 0], "it only asks whether it would be answered"
    tried = slow(monkeypatch, 1000)
    assert look(rescuer, now, period) == []
    assert look(rescuer, now, period / 2) == []
    assert tried == [0]
    assert look(rescuer, now, period / 2) == []
    assert tried == [0, CLAIMS[1]]
    assert look(rescuer, now, period) == []
    assert tried[-1] == CLAIMS[0]
