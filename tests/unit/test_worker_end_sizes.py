"""How many ends one statement takes."""

from __future__ import annotations

import pytest

from django_pgjobs.decisions import Failure
from django_pgjobs.store.finalising import End
from django_pgjobs.worker.threads.finaliser import fitting, sizes_of


@pytest.mark.parametrize(
    ("ids", "sizes", "count"),
    [
        ([], [], 0),
        ([1, 2, 3], [0, 0, 0], 3),
        ([1, 2, 3], [4, 4, 2], 3),
        ([1, 2, 3, 4], [4, 7, 0, 0], 2),
        ([1, 2, 3, 4], [11, 0, 0, 0], 1),
        ([1, 2, 1, 3], [0, 0, 0, 0], 2),
        ([1, 1], [20, 0], 1),
    ],
)
def test_a_statement_takes_no_job_twice_and_ends_with_the_one_that_fills_it(
    ids: list[int], sizes: list[int], count: int
) -> None:
    assert fitting(ids, sizes, 10) == count


def test_the_size_of_an_end_is_that_of_its_long_texts() -> None:
    failed = End(3, "claim", failure=Failure("ValueError", "no", (), "trace"))
    assert sizes_of([End(1, "claim"), End(2, "claim", result="[1]"), failed]) == [0, 3, 7]
