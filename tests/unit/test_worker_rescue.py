"""Rescue when nothing can be known: after a look that failed, renewals come before anybody is taken for dead."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.maintenance.rescue import CLAIMS, CONFIRM_SECONDS, Rescuer
from django_pgjobs.store import keeping
from django_pgjobs.store.database import Rows
from django_pgjobs.store.keeping import Rescued


def nobody(rescued: list[Rescued]) -> None:
    raise AssertionError("nothing was rescued here")


class Old:
    """A connection that has been up for long."""

    connected_at = -1e9

    def fetch(self, name: str, params: Any) -> Rows:
        if name == "check_claims":
            return [(datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=clock.monotonic()), True)]
        raise AssertionError(f"{name} is not asked for here")


def asked() -> Rescuer:
    """A rescuer whom that connection has answered before."""
    rescuer = Rescuer(nobody)
    rescuer.checked_on = Old.connected_at
    return rescuer


def slow(monkeypatch: pytest.MonkeyPatch, can: int) -> list[int]:
    """Let rescues of more than so many ledger rows run out of time; return the limits that were tried."""
    tried: list[int] = []

    def rescue_jobs(db: Any, *, limit: int, **_: Any) -> list[Rescued]:
        tried.append(limit)
        if limit > can:
            raise psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
        return []

    monkeypatch.setattr(keeping, "rescue_jobs", rescue_jobs)
    return tried


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The instant of the monotonic clock, to be set."""
    instant = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: instant[0])
    return instant


def look(rescuer: Rescuer, now: list[float], after: float) -> list[Rescued] | None:
    """Look again after so many seconds; None if that failed."""
    now[0] += after
    try:
        return rescuer(Old())
    except psycopg.errors.QueryCanceled:
        return None


def test_trouble_that_says_nothing_of_the_size_makes_no_smaller_batches(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    """A server that is away would else be asked for one ledger row at a time afterwards."""

    def away(db: Any, **_: Any) -> tuple[datetime, bool]:
        raise psycopg.OperationalError("server closed the connection")

    rescuer = asked()
    monkeypatch.setattr(keeping, "check_claims", away)
    with pytest.raises(psycopg.OperationalError):
        rescuer(Old())
    assert (rescuer.size, rescuer.doubtful) == (0, True)


@pytest.mark.parametrize("can", CLAIMS)
def test_as_many_are_taken_back_as_the_server_can_in_time(
    monkeypatch: pytest.MonkeyPatch, now: list[float], can: int
) -> None:
    """C46: the same too large batch would run out of time for ever, and its jobs be stranded."""
    tried = slow(monkeypatch, can)
    rescuer = asked()
    period = get_conf().renew_seconds
    for _ in range(9):
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
    assert look(rescuer, now, 0) == []
    assert look(rescuer, now, CONFIRM_SECONDS) is None
    assert look(rescuer, now, period) is None
    assert tried == [CLAIMS[0], 0], "it only asks whether it would be answered"
    tried = slow(monkeypatch, 1000)
    assert look(rescuer, now, period) == []
    assert look(rescuer, now, period / 2) == []
    assert tried == [0]
    assert look(rescuer, now, period / 2) == []
    assert tried == [0], "what is seen to have expired now is taken a moment later"
    assert look(rescuer, now, CONFIRM_SECONDS) == []
    assert tried == [0, CLAIMS[1]]
    assert look(rescuer, now, period) == []
    assert tried[-1] == CLAIMS[0]


class Keeps:
    """A worker that holds one claim, and what its renewals have gone through."""

    def __init__(self, *silences: tuple[float, float]) -> None:
        self.heard = list(silences)
        self.given_up: list[tuple[int, str]] = []

    def holds(self) -> list[str]:
        return ["mine"]

    def overdue(self) -> list[tuple[int, str]]:
        return self.given_up

    def silences(self, longer_than: float) -> Iterable[tuple[float, float]]:
        return [(ended, seconds) for ended, seconds in self.heard if not seconds or seconds > longer_than]

    def saw_pauses(self, are_any: bool) -> None: ...


def known(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Return by what server time, in seconds of our clock, each rescue takes leases for expired."""
    told: list[float | None] = []

    def rescue_jobs(db: Any, *, limit: int, seen: datetime | None, held: Any, **_: Any) -> list[Rescued]:
        told.append(None if seen is None else (seen - datetime(2030, 1, 1, tzinfo=UTC)).total_seconds())
        assert held == ["mine"]
        return []

    monkeypatch.setattr(keeping, "rescue_jobs", rescue_jobs)
    return told


def of_worker(keeps: Keeps) -> Rescuer:
    rescuer = Rescuer(nobody, keeps)
    rescuer.checked_on = Old.connected_at
    return rescuer


def test_a_lease_is_taken_when_a_second_look_finds_it_expired_as_well(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    """P41: what had expired by the first look, though it is now later; whoever was late has renewed meanwhile."""
    told = known(monkeypatch)
    rescuer = of_worker(Keeps((900.0, 0.0)))
    for after in (0.0, CONFIRM_SECONDS, CONFIRM_SECONDS / 2, CONFIRM_SECONDS / 2):
        look(rescuer, now, after)
    assert told == [1000.0, 1000.0 + CONFIRM_SECONDS]


@pytest.mark.parametrize("seconds", [5.5, 12.0, 29.0, 90.0])
def test_after_a_silence_nobody_is_taken_for_dead_for_as_long(
    monkeypatch: pytest.MonkeyPatch, now: list[float], seconds: float
) -> None:
    """P41: a renewal period at least, a lease at most; looks from before it count for nothing."""
    conf = get_conf()
    told = known(monkeypatch)
    keeps = Keeps((900.0, 0.0))
    rescuer = of_worker(keeps)
    look(rescuer, now, 0.0)
    keeps.heard.append((1000.0 + seconds, seconds))
    quiet = min(conf.lease_seconds, max(conf.renew_seconds, seconds))
    look(rescuer, now, seconds)
    look(rescuer, now, quiet - 0.1)
    assert told == []
    look(rescuer, now, 0.1)
    look(rescuer, now, CONFIRM_SECONDS)
    assert told == [1000.0 + seconds + quiet]


def test_who_cannot_renew_rescues_nobody(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    """P41: without a connection for renewals, and for a renewal period after it has one again."""
    told = known(monkeypatch)
    keeps = Keeps()
    rescuer = of_worker(keeps)
    for _ in range(20):
        keeps.heard = [(now[0], 0.0)]
        look(rescuer, now, 1.0)
    look(rescuer, now, get_conf().renew_seconds - 1.5)
    assert told == []
    look(rescuer, now, 1.5)
    look(rescuer, now, CONFIRM_SECONDS)
    assert len(told) == 1


def test_a_wait_too_short_for_a_lease_to_run_out_in_it_is_no_silence(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    """P41: or on a slow way nobody would ever rescue."""
    told = known(monkeypatch)
    rescuer = of_worker(Keeps((1000.0, 2.0)))
    look(rescuer, now, 0.0)
    look(rescuer, now, CONFIRM_SECONDS)
    assert told == [1000.0]
