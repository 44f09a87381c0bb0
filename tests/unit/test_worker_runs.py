"""What a worker holds: claims count down, leases are to be looked at in time, sizes bound a frame."""

from __future__ import annotations

import pytest

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.states import ON_ABANDON, Outcome
from django_pgjobs.worker.shared.runs import (
    ALLOWANCE_SECONDS,
    DUE_SECONDS,
    ENDING,
    ERROR_CHARS,
    FRESH_SECONDS,
    NEVER_SECONDS,
    RunTable,
)
from tests.unit.worker_fakes import claimed, under


def test_a_claim_is_left_with_its_last_job() -> None:
    table = RunTable()
    one, two = table.adopt(5.0, under("a", [claimed(1), claimed(2)]))
    assert table.fences() == [(1, "a"), (2, "a")]
    assert one.fresh_until == 5.0 + FRESH_SECONDS
    assert table.remove([one]) == []
    assert table.remove([two]) == ["a"]
    assert (table.held, table.claims) == ({}, {})


def test_flags_are_read_of_what_has_not_ended_and_is_not_too_young() -> None:
    """At full speed nearly all that is held has ended by the time of the answer."""
    table = RunTable()
    table.adopt(5.0, under("a", [claimed(1), claimed(2)]))[1].state = ENDING
    table.adopt(6.0, under("b", [claimed(3)]))
    assert table.fences(5.0) == [(1, "a")]
    assert table.fences(6.0) == [(1, "a"), (3, "b")]


def test_striking_an_earlier_run_of_a_job_leaves_the_later_one() -> None:
    """Its lease was lost, and the same worker has claimed it again."""
    table = RunTable()
    [lost] = table.adopt(0.0, under("a", [claimed(1)]))
    [again] = table.adopt(0.0, under("b", [claimed(1)]))
    assert table.remove([lost]) == ["a"]
    assert table.held == {1: again}
    assert again.fence == (1, "b")


def test_a_worker_gives_a_job_up_when_it_could_not_stop_it_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted from the start: a job may have waited before it, and one that has not started has no deadline yet."""
    monkeypatch.setattr(clock, "monotonic", lambda: 1000.0)
    table = RunTable()
    jobs = [claimed(id, timeout_seconds=seconds) for id, seconds in enumerate((60.0, 30.0, 30.0, None))]
    late, early, waiting, endless = table.adopt(0.0, under("a", jobs))
    for run in (late, early, endless):
        run.started_at = 990.0
    [over] = table.adopt(0.0, under("b", [claimed(5, timeout_seconds=1.0)]))
    over.started_at = 1.0
    table.adopt(0.0, under("c", [claimed(6)]))
    grace = get_conf().rescue_grace_seconds
    assert waiting.started_at == 0.0
    assert table.check_ins() == {
        "a": pytest.approx(20.0 + ALLOWANCE_SECONDS + grace),
        "b": -DUE_SECONDS,
        "c": NEVER_SECONDS,
    }
    assert table.overdue() == [(5, "b")]
    over.state = early.state = ENDING
    assert table.overdue() == [], "what has stopped is only being written, however long that takes"
    assert table.check_ins() == {
        "a": pytest.approx(50.0 + ALLOWANCE_SECONDS + grace),
        "b": NEVER_SECONDS,
        "c": NEVER_SECONDS,
    }


def test_a_job_that_its_worker_does_not_hold_is_given_up_too() -> None:
    table = RunTable()
    table.adopt(10.0, under("a", [claimed(1)]))
    table.adopt(20.0, under("b", [claimed(2)]))
    table.unheld = frozenset({(7, "a"), (8, "gone")})
    assert table.check_ins() == {"a": -DUE_SECONDS, "b": NEVER_SECONDS}
    assert set(table.overdue()) == {(7, "a"), (8, "gone")}
    assert table.claimed_before(10.0) == ["a"]


def test_a_job_that_starts_after_its_own_deadline_has_its_time_to_be_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long ago that was: the paused queue was resumed, the worker came back after a weekend."""
    now = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    table = RunTable()
    [run] = table.adopt(999.0, under("a", [claimed(1, extras={"until": -5000.0})]))
    run.started_at = 999.5
    patience = ALLOWANCE_SECONDS + get_conf().rescue_grace_seconds
    assert table.check_ins() == {"a": pytest.approx(patience - 0.5)}
    assert not table.overdue()
    now[0] = 999.5 + patience
    assert table.overdue() == [(1, "a")]


def test_a_callback_has_a_time_limit_of_its_own() -> None:
    assert claimed(timeout_seconds=30.0).timeout == 30.0
    assert claimed(timeout_seconds=30.0, ending="abandoned").timeout == get_conf().callback_seconds


def test_the_size_of_a_run_is_what_travels_to_its_executor() -> None:
    facts = {"payload": None, "headers": "h" * 7, "description": "d", "error": "e" * 1000}
    [run] = RunTable().adopt(0.0, under("a", [claimed(1, **facts)]))
    body = 7 + 1 + len("fakes.unknown") + len("default")
    assert run.size == body
    run.error = "x" * (ERROR_CHARS + 1)
    run.becomes_callback("abandoned")
    assert (run.kind, run.job.error) == (ON_ABANDON, "x" * ERROR_CHARS)
    assert run.size == body + ERROR_CHARS
    [claimed_so] = RunTable().adopt(0.0, under("b", [claimed(2, error="e" * 1000)]))
    claimed_so.becomes_callback(Outcome.ABANDONED)
    assert (claimed_so.job.error, type(claimed_so.job.ending)) == ("e" * 1000, str)
