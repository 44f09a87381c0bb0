"""Backoff: base × factor^(attempt − 1), limit, jitter; never an error, never anything but finite seconds ≥ 0."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgjobs.values.backoff import LONGEST_SECONDS, Backoff


def test_the_delay_grows_by_the_factor() -> None:
    """Rows A34, C34, X5: attempts 1 to 6."""
    assert [Backoff(10, factor=2).delay(n) for n in range(1, 7)] == [10, 20, 40, 80, 160, 320]


def test_factor_one_is_constant() -> None:
    """Row A35."""
    assert {Backoff(7).delay(n) for n in range(1, 7)} == {7.0}


def test_the_limit_caps_the_delay() -> None:
    assert [Backoff(15, factor=4, limit=3600).delay(n) for n in range(1, 8)] == [15, 60, 240, 960, 3600, 3600, 3600]


def test_a_limit_of_zero_means_at_once() -> None:
    assert Backoff(15, limit=0).delay(3) == 0


@pytest.mark.parametrize("attempt", [1, 0, -1, -1000])
def test_the_exponent_is_never_negative(attempt: int) -> None:
    """Row C34."""
    assert Backoff(10, factor=3).delay(attempt) == 10


@pytest.mark.parametrize("backoff", [Backoff(0.001, factor=5), Backoff(1e300, factor=1e300), Backoff(1e308, factor=2)])
def test_an_overflow_is_the_longest_delay(backoff: Backoff) -> None:
    assert backoff.delay(1000) == LONGEST_SECONDS


def test_an_overflow_under_a_limit_is_the_limit() -> None:
    assert Backoff(1, factor=5, limit=60).delay(1000) == 60


@pytest.mark.parametrize("factor", [1.0, 5.0, 1e308])
def test_a_base_of_zero_stays_zero(factor: float) -> None:
    assert Backoff(0, factor=factor).delay(1000) == 0


def test_a_factor_below_one_shrinks_the_delay() -> None:
    assert Backoff(8, factor=0.5).delay(4) == 1
    assert Backoff(8, factor=0.5).delay(10_000) == 0


def test_durations_may_be_timedelta() -> None:
    backoff = Backoff(timedelta(minutes=1), limit=timedelta(hours=1))
    assert (backoff.base, backoff.limit) == (60.0, 3600.0)
    assert backoff == Backoff(60, limit=3600)


def test_it_is_a_frozen_value() -> None:
    backoff = Backoff(1)
    assert {backoff: 1}[Backoff(1.0)] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        backoff.base = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("base", {"base": -1}),
        ("base", {"base": math.nan}),
        ("base", {"base": math.inf}),
        ("base", {"base": 10**400}),
        ("base", {"base": True}),
        ("base", {"base": "15"}),
        ("base", {"base": None}),
        ("base", {"base": timedelta(seconds=-1)}),
        ("factor", {"factor": 0}),
        ("factor", {"factor": -2}),
        ("factor", {"factor": math.nan}),
        ("factor", {"factor": timedelta(1)}),
        ("limit", {"limit": -1}),
        ("limit", {"limit": math.inf}),
        ("limit", {"limit": "1h"}),
        ("jitter", {"jitter": -0.1}),
        ("jitter", {"jitter": 1.1}),
        ("jitter", {"jitter": math.nan}),
    ],
)
def test_a_bad_field_is_named(field: str, options: dict[str, Any]) -> None:
    """A33: numbers out of range are refused, naming the one that is."""
    with pytest.raises(ValueError, match=f"Backoff: {field} must be a finite number"):
        Backoff(**{"base": 1, **options})


@pytest.mark.parametrize(("random", "delay"), [(lambda: 0.0, 90.0), (lambda: 0.5, 100.0), (lambda: 1.0, 110.0)])
def test_jitter_spreads_around_the_delay(random: Callable[[], float], delay: float) -> None:
    assert Backoff(100, jitter=0.1).jittered(1, random) == pytest.approx(delay)


def test_jitter_spreads_jobs_that_have_reached_the_limit() -> None:
    """Were it cut at the limit, half of all such jobs would come back in one moment."""
    backoff = Backoff(100, limit=50, jitter=0.2)
    assert (backoff.jittered(1, lambda: 0.0), backoff.jittered(1, lambda: 1.0)) == pytest.approx((40, 60))


def test_without_jitter_chance_changes_nothing() -> None:
    assert Backoff(3, factor=2).jittered(3, lambda: 0.9) == 12


numbers = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@given(
    base=numbers,
    factor=numbers.filter(bool),
    limit=st.none() | numbers,
    jitter=st.floats(0, 1),
    attempt=st.integers(-10, 10**7),
)
def test_every_answer_is_a_storable_delay(
    base: float, factor: float, limit: float | None, jitter: float, attempt: int
) -> None:
    backoff = Backoff(base, factor, limit, jitter)
    delay, moved = backoff.delay(attempt), backoff.jittered(attempt)
    assert 0 <= delay <= (LONGEST_SECONDS if limit is None else min(limit, LONGEST_SECONDS))
    assert 0 <= moved <= LONGEST_SECONDS
    assert delay * (1 - jitter) * 0.999 <= moved <= delay * (1 + jitter) * 1.001
