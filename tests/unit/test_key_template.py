"""The format strings of keys: one set of rules for a job's own keys and those of its limits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from django_pgjobs.values.key_template import Template


def plain(user_id: int, name: str = "anna", width: int = 5) -> None: ...


def wide(user_id: int, /, name: str = "anna", *rest: int, shop: str = "here", **more: Any) -> None: ...


def filled(text: str, function: Callable[..., None], *args: Any, **kwargs: Any) -> str:
    inspect.signature(function).bind(*args, **kwargs)  # what is filled in fits
    return Template(text).bound(inspect.signature(function))(*args, **kwargs)


@pytest.mark.parametrize(
    ("text", "args", "kwargs", "key"),
    [
        ("u{user_id}", (7,), {}, "u7"),
        ("u{user_id}", (), {"user_id": 7}, "u7"),
        ("{name}", (7,), {}, "anna"),
        ("{name}", (7, "bob"), {}, "bob"),
        ("{name}", (7,), {"name": "bob"}, "bob"),
        ("{name!r:>8}|{name[0]}|{user_id.real}", (7,), {}, "  'anna'|a|7"),
        ("{user_id:{width}}", (7,), {}, "    7"),
        ("{user_id:0{width}d}", (7,), {"width": 3}, "007"),
        ("{{{user_id}}}", (7,), {}, "{7}"),
    ],
)
def test_it_is_filled_in_with_the_arguments_and_their_defaults(text: str, args: Any, kwargs: Any, key: str) -> None:
    assert filled(text, plain, *args, **kwargs) == key


@pytest.mark.parametrize(
    ("text", "args", "kwargs", "key"),
    [
        ("{user_id}", (7,), {"user_id": 8}, "7"),
        ("{shop}", (7,), {"shop": "there"}, "there"),
        ("{rest}", (7, "bob", 1, 2), {}, "(1, 2)"),
        ("{rest[1]}", (7, "bob", 1, 2), {}, "2"),
        ("{rest}", (7,), {}, "()"),
        ("{tenant}", (7,), {"tenant": "acme"}, "acme"),
        ("{user_id:{width}}", (7,), {"width": 3}, "  7"),
    ],
)
def test_arguments_of_every_kind_can_be_named(text: str, args: Any, kwargs: Any, key: str) -> None:
    """Those of ``**more`` by their own names."""
    assert filled(text, wide, *args, **kwargs) == key


def test_an_argument_of_others_that_is_not_given_is_missed_when_it_is_filled_in() -> None:
    with pytest.raises(KeyError, match="tenant"):
        filled("{tenant}", wide, 7)


@pytest.mark.parametrize(
    "text", ["{user}", "{}", "{0}", "{user_id:{precision}}", "{user_id:{}}", "{user.id}", "{user[0]}"]
)
def test_a_name_that_is_no_argument_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^names no argument: '(user|precision|0|)' in '"):
        Template(text).bound(inspect.signature(plain))


@pytest.mark.parametrize("text", ["{more}", "{more[x]}", "{}", "{0}", "{user_id:{more}}"])
def test_nor_may_it_name_the_others_as_a_whole_or_by_place(text: str) -> None:
    with pytest.raises(ValueError, match=r"^names no argument: '(more|0|)' in '"):
        Template(text).bound(inspect.signature(wide))


@pytest.mark.parametrize("text", ["{", "}", "{user_id", "{user_id!x}", "{user_id!}", "{user_id:{width:{name}}}"])
def test_what_no_arguments_could_fill_in_is_refused_where_it_is_written(text: str) -> None:
    """As Python does, when it is filled in."""
    with pytest.raises(ValueError, match=r"^is no format string: "):
        Template(text)
    with pytest.raises(ValueError, match=r"."):
        text.format(user_id=7, name="", width=5)


def test_a_text_without_names_says_so() -> None:
    assert Template("fixed {{7}}").names == ()
    assert Template("{a}{b:{a}}").names == ("a", "b")


def two(a: Any, b: Any = "") -> None: ...


@pytest.mark.parametrize("text", ["{a}{b}", "{a}and{b}", "{a}%{b}", "{a}:{b}{a}"])
def test_fields_that_would_run_together_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="needs a mark between two fields"):
        Template(text).bound(inspect.signature(two))
