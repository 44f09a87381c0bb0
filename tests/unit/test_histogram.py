"""Histograms of waits and runs: bounds, sums and quantiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgjobs.values.histogram import BOUNDS, COUNTS, added, quantile, trimmed

COUNTED = st.lists(st.integers(0, 1000), max_size=COUNTS)


def test_the_bounds_are_powers_of_two_from_a_millisecond_to_nine_hours() -> None:
    assert (BOUNDS[0], BOUNDS[10], len(BOUNDS)) == (0.001, 1.024, 26)
    assert 9.3 < BOUNDS[-1] / 3600 < 9.4


@given(COUNTED, COUNTED)
def test_the_sum_of_trimmed_histograms_is_the_trimmed_sum(one: list[int], other: list[int]) -> None:
    whole = [sum(pair) for pair in zip(_padded(one), _padded(other), strict=True)]
    assert trimmed(added(trimmed(one), trimmed(other))) == trimmed(whole)


def _padded(counts: list[int]) -> list[int]:
    return counts + [0] * (COUNTS - len(counts))


def test_trimmed_keeps_zeros_before_the_last_count() -> None:
    assert trimmed([0, 3, 0, 0]) == [0, 3]
    assert trimmed([0, 0]) == []


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ([], 0.5, None),
        ([0, 0], 0.5, None),
        ([4], 0.5, 0.0005),
        ([0, 10], 0.5, 0.0015),
        ([0, 10], 1.0, 0.002),
        ([90, 0, 0, 10], 0.95, 0.006),
        ([0] * 26 + [5], 0.5, BOUNDS[-1]),
    ],
)
def test_a_quantile_is_interpolated_within_its_count(counts: list[int], share: float, seconds: float | None) -> None:
    assert quantile(counts, share) == (seconds if seconds is None else pytest.approx(seconds))
