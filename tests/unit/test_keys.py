"""What a declaration may say of keys, and what is wrong with it: said where it was written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_pgjobs import Window, job
from django_pgjobs.definition.keys import made
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with registry.isolated():
        yield


def work(user_id: int, /, name: str = "anna", *rest: int, shop: str = "here", **more: int) -> None: ...


def key_of(template: Any, *args: Any, **kwargs: Any) -> str | None:
    return made("key", job(name="work", key=template)(work).plan.key, args, kwargs)


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("fixed", "fixed"),
        ("{{7}}", "{7}"),
        ("u{user_id}", "u7"),
        ("{name}/{shop!r:>8}", "anna/ 'there'"),
        ("{name[0]}", "a"),
        ("{user_id.real}", "7"),
        (lambda user_id, /, name="", *rest, shop="", **more: f"{user_id}{shop}{sorted(more)}", "7there['x']"),
    ],
)
def test_a_key_is_made_of_the_arguments(template: Any, key: str) -> None:
    """A format string of the arguments with their defaults, or a callable that gets them as they were given."""
    assert key_of(template, 7, shop="there", x=1) == key


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": "{more[x]}"}, "key names no argument: 'more' in '{more[x]}'"),
        ({"key": "{0}"}, "key names no argument: '0'"),
        ({"key": "{user_id"}, "key is no format string"),
        ({"key": ""}, "key must be 1 to 200 printable characters"),
        ({"key": "x" * 201}, "key must be 1 to 200 printable characters, not 'xxx"),
        ({"key": 7}, "key must be a text, or a callable"),
        ({"key": lambda: "x"}, "must take the job's arguments"),
        ({"idempotency_key": lambda user_id, other: "x"}, "must take the job's arguments"),
        ({"idempotency_key": "{}"}, "idempotency_key names no argument: ''"),
        ({"key_scope": "for ever"}, "key_scope must be"),
        ({"key_scope": timedelta(microseconds=1)}, "key_scope: Window needs 1 to 315360000 seconds"),
        ({"on_conflict": None}, "on_conflict must be"),
    ],
)
def test_what_is_wrong_is_said_at_the_declaration(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        job(name="work", **options)(work)
    assert words in str(caught.value)
    assert __file__ in str(caught.value)


def test_an_async_function_makes_no_key() -> None:
    async def key(user_id: int) -> str:
        return "x"

    with pytest.raises(InvalidJob, match="key must not be an async function"):
        job(name="work", key=key)(work)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0, 0.5, -1, float("nan"), float("inf"), True, "3600", None, timedelta(days=4000)])
def test_a_window_has_bounds(bad: Any) -> None:
    with pytest.raises(ValueError, match="Window needs 1 to 315360000 seconds or a timedelta"):
        Window(bad)


def test_windows_of_one_length_are_one_scope() -> None:
    assert Window(timedelta(hours=1)).length == Window(3600).length == 3600.0
