"""Pickles of other queues are data, and none of them takes more memory than its bytes are worth."""

from __future__ import annotations

import gzip
import pickle
import zlib
from typing import Any

import pytest

from django_pgjobs.importing.pickles import MOST, inflate, read_pickle


def shared(made: type[Any], levels: int) -> Any:
    value = made(["x"])
    for _ in range(levels):
        value = made([value, value])
    return value


def endless() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


@pytest.mark.parametrize("pack", [zlib.compress, gzip.compress])
def test_what_is_packed_is_read_up_to_a_bound(pack: Any) -> None:
    assert inflate(pack(b"x" * 1000)) == b"x" * 1000
    with pytest.raises(ValueError, match="too large"):
        inflate(pack(bytes(MOST + 1)))
    with pytest.raises(ValueError, match="cut off"):
        inflate(pack(b"x" * 1000)[:-1])


@pytest.mark.parametrize("data", [b"Np1000000000\n.", b"Nr\x00\x00\x00\x7f."])
def test_a_place_that_no_pickle_of_its_length_needs_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="a place"):
        read_pickle(data)


@pytest.mark.parametrize("value", [shared(list, 60), shared(tuple, 60), [["x" * 100_000] * 1000], endless()])
def test_what_refers_to_its_parts_often_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="once it is written"):
        read_pickle(pickle.dumps(value))


def test_a_long_pickle_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        read_pickle(pickle.dumps(bytes(MOST)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_refers_to_its_parts_a_few_times_is_read(protocol: int) -> None:
    part = {"a": [1, 2.5, None, True], "b": ("x", "y", (3,))}
    assert read_pickle(pickle.dumps([part, part], protocol)) == [part, part]
