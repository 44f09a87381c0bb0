"""What a payload or a result cannot hold is refused where it was written: which value, why, what to do instead."""

from __future__ import annotations

import inspect
import math
import sys
from collections import deque, namedtuple
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import QueryDict
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy

from django_pgjobs.exceptions import InvalidJob, UnreadablePayload, UnstorableResult
from django_pgjobs.serialization.encoder import MAX_DEPTH, children
from django_pgjobs.serialization.payload import decode_payload, decode_result, encode_payload, encode_result

MIB = 1024 * 1024


@dataclass
class Address:
    street: str
    since: date


@dataclass
class Customer:
    name: str
    addresses: list[Address] = field(default_factory=list)


class Subfloat(float):
    pass


class Nested(Enum):
    BAD = {"x": {1}}


class Finer(datetime):
    """As pandas' Timestamp: knows more than a datetime can."""

    def isoformat(self, *args: Any, **kwargs: Any) -> str:
        return super().isoformat(*args, **kwargs) + ".123456789"


Point = namedtuple("Point", "x y")


class Numpyish:
    dtype = "int64"

    def item(self) -> int:
        return 1


class Pydanticish:
    def model_dump(self) -> dict[str, Any]:
        return {}


def _never() -> Any:
    raise AssertionError("a lazy object was asked for its value")


def huge(digits: int) -> int:
    return int(10 ** (digits - 1))


REFUSED = [
    (math.nan, "nan, which JSON does not have"),
    (math.inf, "inf, which JSON"),
    (Subfloat("nan"), "nan, which JSON"),
    (Decimal("NaN"), "no finite number"),
    (Decimal("sNaN"), "no finite number"),
    (Decimal("-Infinity"), "no finite number"),
    (huge(4301), "an integer of more than 4300 digits"),
    (-huge(140_000), "an integer of more than"),
    ([1, huge(4301)], "an integer of more than"),
    ("a\0b", "a text with a NUL"),
    ("\\\0", "a text with a NUL"),
    ("\ud800", "a text with a lone surrogate"),
    (gettext_lazy("hello"), "a lazy object"),
    (SimpleLazyObject(_never), "a lazy object"),
    (User(pk=1), "a model instance; pass its primary key"),
    (User.objects.all(), "a queryset; pass a list of primary keys"),
    ({1, 2}, "a set, which has no order"),
    (frozenset(), "a set, which has no order"),
    (Point(1, 2), "a named tuple"),
    (bytearray(b"x"), "a buffer; pass bytes"),
    (memoryview(b"x"), "a buffer; pass bytes"),
    (Numpyish(), "a numpy value; pass .item()"),
    (Pydanticish(), "a pydantic model; pass .model_dump()"),
    (QueryDict("a=1&a=2"), "QueryDict; pass a plain dict"),
    (Finer(2026, 1, 1), "that a datetime cannot hold exactly"),
    ({1: 2}, "a dict with a key of type int"),
    ({None: 2}, "a dict with a key of type NoneType"),
    ({("a",): 2}, "a dict with a key of type tuple"),
    (object(), "of type object, which JSON does not have"),
    (deque(), "of type collections.deque"),
    (range(3), "of type range"),
    (1j, "of type complex"),
    (User, "of type django.db.models.base.ModelBase"),
    (Customer, "of type type"),
    (len, "of type builtin_function_or_method"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_cannot_be_stored_is_refused_with_the_reason(value: Any, reason: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        encode_payload((value,), {}, 10 * MIB)
    assert str(caught.value).startswith("args[0]")
    assert reason in str(caught.value)


def order(user: Any, *lines: Any, rush: Any = False, **extra: Any) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ((object(),), {}, "user"),
        (({"profile": {"name": object()}},), {}, "user.profile.name"),
        (({"first name": object()},), {}, "user['first name']"),
        ((1, 2, [3, (4, object())]), {}, "lines[1][1][1]"),
        ((1,), {"rush": object()}, "rush"),
        ((1,), {"gift": Customer("Ada", [Address("\0", date.min)])}, "gift.addresses[0].street"),
        ((1,), {"gift": Nested.BAD}, "gift.x"),
        ((1,), {"gift": {"a": {"b\0": 1}}}, "gift.a"),
    ],
)
def test_the_path_leads_to_the_value(args: tuple[Any, ...], kwargs: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        encode_payload(args, kwargs, MIB, inspect.signature(order))
    assert str(caught.value).startswith(f"{path} cannot be stored: it is ")


def test_without_a_signature_arguments_are_numbered() -> None:
    with pytest.raises(InvalidJob, match=r"^args\[1\]\.user\.name cannot be stored"):
        encode_payload((1, {"user": {"name": object()}}), {}, MIB)


def test_a_bad_keyword_name_is_a_fault_of_the_arguments() -> None:
    with pytest.raises(InvalidJob, match=r"^The arguments cannot be stored: it is a text with a NUL"):
        encode_payload((), {"a\0": 1}, MIB)


@dataclass
class Broken:
    name: str = field(init=False)


def test_an_error_of_the_value_itself_is_named() -> None:
    with pytest.raises(
        InvalidJob, match=r"^args\[0\]\.x cannot be stored: it is a value that raised AttributeError"
    ) as caught:
        encode_payload(({"x": Broken()},), {}, MIB)
    assert isinstance(caught.value.__cause__, AttributeError)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_depth_is_a_fixed_number() -> None:
    assert decode_payload(encode_payload((nested(MAX_DEPTH),), {}, MIB)) == ([nested(MAX_DEPTH)], {})
    tuples: Any = ()
    for _ in range(MAX_DEPTH - 1):
        tuples = (tuples,)
    assert decode_payload(encode_payload((tuples,), {}, MIB)) == ([tuples], {})
    with pytest.raises(InvalidJob, match=r"^args\[1\] cannot be stored: it is nested deeper than 100 levels"):
        encode_payload((1, nested(MAX_DEPTH + 1)), {}, MIB)


def test_a_container_that_contains_itself_is_refused() -> None:
    knot: list[Any] = []
    knot.append({"again": knot})
    with pytest.raises(InvalidJob, match=r"^loop cannot be stored: it is nested .* or contains itself"):
        encode_payload((), {"loop": knot}, MIB)
    with pytest.raises(UnstorableResult, match=r"^result cannot be stored"):
        encode_result(knot, MIB)


def test_an_interpreter_that_writes_longer_integers_still_refuses_them() -> None:
    """Another process could not read them."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        for value in (huge(5000), [huge(5000)], [-huge(5000), "x"]):
            with pytest.raises(InvalidJob, match="an integer of more than 4300 digits"):
                encode_payload((value,), {}, MIB)
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("value", ["x" * 100, "é" * 50, ["x" * 96]])
def test_the_limit_counts_bytes_and_both_numbers_are_said(value: Any) -> None:
    size = len(encode_payload((value,), {}, MIB).encode())
    assert encode_payload((value,), {}, size)
    with pytest.raises(InvalidJob, match=rf"take {size} bytes and at most {size - 1} "):
        encode_payload((value,), {}, size - 1)


def test_an_unstorable_result_says_where_and_why() -> None:
    with pytest.raises(UnstorableResult, match=r"^result\.user cannot be stored: it is a model instance"):
        encode_result({"user": User(pk=1)}, MIB)
    with pytest.raises(
        UnstorableResult, match=r"takes 12 bytes and at most 11 may be stored \(BOUNDS\['result_bytes'\]\)"
    ):
        encode_result("x" * 10, 11)
    with pytest.raises(UnreadablePayload):
        decode_result("{")


class Hostile(dict):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise RuntimeError("no")

    def items(self) -> Any:
        raise RuntimeError("no")


class HostileList(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise RuntimeError("no")


class Halt(BaseException):
    pass


class Interrupting(Enum):
    X = 1

    @property
    def value(self) -> Any:
        raise Halt


def test_what_ends_an_attempt_is_no_fault_of_the_result() -> None:
    """A timeout injected while a result is encoded must end the attempt, not abandon the job."""
    with pytest.raises(UnstorableResult):
        encode_result(Hostile(a=1), MIB)
    with pytest.raises(UnstorableResult, match=r"^result cannot be stored: it is a value that raised RuntimeError: no"):
        encode_result(HostileList([1]), MIB)
    with pytest.raises(Halt):
        encode_result(Interrupting.X, MIB)


def test_children_of_a_scalar_are_none() -> None:
    assert list(children("x", 1)) == []
