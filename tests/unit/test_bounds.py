"""The bounds of options with Antikythera's numbers set: just inside is taken, just outside is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_pgjobs import Backoff, checks, job
from django_pgjobs.definition import allowed
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.jobs import JobDefinition

ANTIKYTHERA = {
    "BOUNDS": {
        "ahead_seconds": timedelta(days=50),
        "past_seconds": 0,
        "timeout_seconds": 1800,
        "max_attempts": 10,
        "backoff_base_seconds": 300,
        "backoff_factor": (1, 5),
    },
    "DEFAULT_TIMEOUT_SECONDS": 300,
    "DEFAULT_MAX_ATTEMPTS": 3,
    "DEFAULT_BACKOFF": Backoff(5, factor=2),
}

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture(autouse=True)
def _profile(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.PGJOBS = ANTIKYTHERA
    monkeypatch.setattr(allowed, "wall_clock", lambda: NOW)
    with registry.isolated():
        yield


def pay(user_id: int) -> None: ...


def declare(**given: Any) -> JobDefinition[..., Any]:
    definition: JobDefinition[..., Any] = job(name="shop.pay", **given)(pay)
    return definition


def refusal(**given: Any) -> str:
    with pytest.raises(InvalidJob) as caught, registry.isolated():
        declare(**given)
    return str(caught.value)


def refused_using(**given: Any) -> str:
    with registry.isolated():
        definition = declare()
    with pytest.raises(InvalidJob) as caught:
        definition.using(**given)
    return str(caught.value)


def test_the_profile_is_without_contradictions() -> None:
    assert list(checks.check_settings()) == []
    assert list(checks.check_defaults()) == []


@pytest.mark.parametrize("after", [timedelta(), MILLISECOND, timedelta(days=50)])
def test_a_start_from_now_to_fifty_days_is_taken(after: timedelta) -> None:
    """A21."""
    definition = declare()
    assert definition.using(run_at=NOW + after).options["run_at"] == NOW + after
    assert definition.using(delay=after).options["delay"] == after.total_seconds()


def test_a_start_in_the_past_or_beyond_fifty_days_is_refused() -> None:
    """A21: a millisecond is enough."""
    assert "run_at must be at most 0 seconds ago" in refused_using(run_at=NOW - MILLISECOND)
    assert "run_at must be at most 50 days ahead" in refused_using(run_at=NOW + timedelta(days=50) + MILLISECOND)
    assert "delay must be a finite number of seconds ≥ 0" in refused_using(delay=-MILLISECOND)
    assert "delay must be at most 50 days" in refused_using(delay=timedelta(days=50) + MILLISECOND)


@pytest.mark.parametrize("value", ["2026-11-21", 1_795_262_400, NOW.date(), timedelta(1), True])
def test_a_start_of_another_type_is_refused(value: object) -> None:
    """A21."""
    assert "run_at must be a datetime" in refused_using(run_at=value)


def test_a_start_is_checked_at_each_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A21: what was ahead when it was bound is past when it is registered."""
    bound = declare().using(run_at=NOW).bind(7)
    monkeypatch.setattr(allowed, "wall_clock", lambda: NOW + MILLISECOND)
    with pytest.raises(InvalidJob, match="run_at must be at most 0 seconds ago"):
        bound.register()


def test_by_default_the_past_is_taken(settings: Any) -> None:
    """A21: ours runs it at once."""
    settings.PGJOBS = {}
    assert declare().using(run_at=NOW - timedelta(days=20_000)).options
    settings.PGJOBS = {"BOUNDS": {"past_seconds": 60}}
    assert declare().using(run_at=NOW - timedelta(seconds=60)).options
    assert "run_at must be at most 60 seconds ago" in refused_using(run_at=NOW - timedelta(seconds=60) - MILLISECOND)


def test_a_timeout_is_five_minutes_by_default_and_thirty_at_most() -> None:
    """A29."""
    assert declare().timeout == 300
    assert declare(timeout=timedelta(minutes=30)).timeout == 1800
    assert declare(timeout=MILLISECOND).timeout == 0.001
    for value in (timedelta(minutes=30) + MILLISECOND, 1800.001):
        assert "timeout must be at most 1800 seconds" in refusal(timeout=value)
        assert "timeout must be at most 1800 seconds" in refused_using(timeout=value)
    for value in (0, 0.0009, -1):
        assert "timeout must be" in refusal(timeout=value)
        assert "timeout must be" in refused_using(timeout=value)


def test_attempts_are_three_by_default_and_ten_at_most() -> None:
    """A31."""
    assert declare().max_attempts == 3
    assert [declare(max_attempts=number).max_attempts for number in (1, 10)] == [1, 10]
    for value in (0, 11, 2.5, "3"):
        assert "max_attempts must be" in refusal(max_attempts=value)
        assert "max_attempts must be" in refused_using(max_attempts=value)


def test_a_backoff_is_five_seconds_doubled_by_default() -> None:
    """A32: the stored default."""
    assert declare().backoff == Backoff(5, factor=2)
    assert [declare()._default_delay(attempt) for attempt in (1, 2, 3)] == [5, 10, 20]


@pytest.mark.parametrize("backoff", [Backoff(0), Backoff(300, factor=5), Backoff(1, factor=1.0), Backoff(1, factor=2)])
def test_a_backoff_within_bounds_is_taken(backoff: Backoff) -> None:
    """A33: a base of 0 to 300 s, a factor from 1 to 5, whole or not."""
    assert declare(backoff=backoff).backoff == backoff


def test_a_backoff_out_of_bounds_is_refused() -> None:
    """A33."""
    assert "backoff must begin with at most 300 seconds, not 300.001" in refusal(backoff=Backoff(300.001))
    for factor in (0.999, 5.001):
        assert f"backoff must have a factor from 1 to 5, not {factor}" in refusal(backoff=Backoff(1, factor=factor))
    wrong: list[tuple[Any, Any]] = [(-0.001, 1), (1, 0), ("5", 1), (1, "2")]
    for base, factor in wrong:
        with pytest.raises(ValueError, match="Backoff: "):
            Backoff(base, factor)
    assert callable(declare(backoff=lambda error, attempt: 10_000).backoff)


def test_a_declaration_that_new_settings_forbid_is_found_by_the_check(settings: Any) -> None:
    settings.PGJOBS = {}
    declare(backoff=Backoff(301))
    settings.PGJOBS = ANTIKYTHERA
    [found] = checks.check_definitions()
    assert found.id == "pgjobs.E015"
    assert "backoff must begin with at most 300 seconds" in found.msg


def test_an_unknown_option_is_refused_with_the_one_that_was_meant() -> None:
    """A43."""
    assert "unknown option 'atempts' (did you mean 'max_attempts'?)" in refusal(atempts=3)
    assert "unknown option 'by_pass' (did you mean 'bypass'?)" in refused_using(by_pass=True)
