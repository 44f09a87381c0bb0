"""Rescue on a slow server: fewer at a time, and never none at all."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from django_pgjobs import store
from django_pgjobs.maintenance.rescue import CLAIMS, rescue


class Old:
    """A connection that has been up for long."""

    connected_at = -1e9

    def fetch(self, name: str, params: Any) -> store.Rows:
        raise AssertionError(f"{name} is not asked for here")


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


@pytest.mark.parametrize("can", CLAIMS)
def test_as_many_are_taken_back_as_the_server_can_in_time(monkeypatch: pytest.MonkeyPatch, can: int) -> None:
    """The same too large batch would run out of time for ever, and its jobs be stranded."""
    tried = slow(monkeypatch, can)
    assert rescue(Old()) == []
    assert tried == list(CLAIMS[: CLAIMS.index(can) + 1])


def test_a_server_that_can_do_nothing_in_time_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, 0)
    with pytest.raises(psycopg.errors.QueryCanceled):
        rescue(Old())
