"""Values against types: what a payload lacks, has too much, or has otherwise, and what is let pass."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, Literal, NotRequired, Protocol, TypedDict

import pytest

from django_pgjobs.values.json_types import described, problem_of


class Verdict(TypedDict):
    approved: bool
    note: NotRequired[str]


class Basket(TypedDict, total=False):
    items: list[Verdict]
    by: Literal["web", "phone"] | None
    weights: dict[str, float]


class Sized(Protocol):
    size: int


RIGHT: list[tuple[Any, Any]] = [
    ({"approved": True}, Verdict),
    ({"approved": False, "note": ""}, Verdict),
    ({}, Basket),
    ({"items": [{"approved": True}], "by": None, "weights": {"a": 1, "b": 2.5}}, Basket),
    ("yes", str),
    (1, float),
    (None, str | None),
    ([1, 2], tuple),
    ([1, 2], tuple[int, int]),
    ({"a": 1}, Mapping[str, int]),
    ({"a": 1}, dict[str, Any]),
    (date(2026, 1, 2), date),
    (object(), Any),
    (3, Sized),
    (None, None),
]

WRONG: list[tuple[Any, Any, str]] = [
    ({"ok": True}, Verdict, "payload lacks 'approved', which Verdict has as bool"),
    ({"approved": "yes"}, Verdict, "payload['approved'] is 'yes', not bool"),
    ({"approved": 1}, Verdict, "payload['approved'] is 1, not bool"),
    (
        {"approved": True, "notes": ""},
        Verdict,
        "payload has 'notes', which Verdict does not know (did you mean 'note'?)",
    ),
    (None, Verdict, "payload is None, not Verdict"),
    ({"items": [{"approved": True}, {}]}, Basket, "payload['items'][1] lacks 'approved', which Verdict has as bool"),
    ({"by": "mail"}, Basket, "payload['by'] is 'mail', not Optional[Literal['web', 'phone']]"),
    ({"weights": {"a": "x"}}, Basket, "payload['weights']['a'] is 'x', not float"),
    (True, int, "payload is True, not int"),
    (True, float, "payload is True, not float"),
    ("1", int | None, "payload is '1', not int | None"),
    ([1, "a"], list[int], "payload[1] is 'a', not int"),
    ("x" * 100, int, "payload is '" + "x" * 79 + "…, not int"),
    (0, None, "payload is 0, not None"),
]


@pytest.mark.parametrize(("value", "kind"), RIGHT)
def test_a_value_of_its_type_has_no_problem(value: object, kind: Any) -> None:
    assert problem_of(value, kind, "payload") == ""


@pytest.mark.parametrize(("value", "kind", "words"), WRONG)
def test_another_is_named_with_its_place(value: object, kind: Any, words: str) -> None:
    assert problem_of(value, kind, "payload") == words


def test_a_type_is_described_with_its_fields() -> None:
    assert described(Verdict) == "Verdict: {'approved': bool, 'note': str}, where 'note' may be missing"
    assert described(list[int]) == "list[int]"
