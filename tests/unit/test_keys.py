"""What a declaration may say of keys, and what is wrong with it: said where it was written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_pgjobs import Unique, job
from django_pgjobs.definition.keys import made
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with registry.isolated():
        yield


def work(user_id: int, /, name: str = "anna", *rest: int, shop: str = "here", **more: int) -> None: ...


def key_of(template: Any, *args: Any, **kwargs: Any) -> str | None:
    return made("key", job(name="work", unique=template)(work)._plan.key, args, kwargs)


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
        ({"unique": "{more[x]}"}, "key names no argument: 'more' in '{more[x]}'"),
        ({"unique": "{0}"}, "key names no argument: '0'"),
        ({"unique": "{user_id"}, "unique is no format string"),
        ({"unique": ""}, "unique must be 1 to 200 printable characters"),
        ({"unique": "x" * 201}, "unique must be 1 to 200 printable characters, not 'xxx"),
        ({"unique": 7}, "unique must be a text, or a callable"),
        ({"unique": lambda: "x"}, "must take the job's arguments"),
        ({"idempotency_key": lambda user_id, other: "x"}, "must take the job's arguments"),
        ({"idempotency_key": "{}"}, "idempotency_key names no argument: ''"),
        ({"unique": Unique(on_conflict="raise")}, "unique=Unique(…) of @job needs a key"),
        ({"unique": Unique("{0}", until="started")}, "key names no argument: '0'"),
        ({"unique": Unique("k", window=60, on_conflict="postpone")}, "exclude each other"),
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

    with pytest.raises(InvalidJob, match="unique must not be an async function"):
        job(name="work", unique=key)(work)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(
            ({"window": bad}, "window must be 1 to 315360000 seconds or a timedelta, not ")
            for bad in (0, 0.5, -1, float("nan"), float("inf"), True, "3600", timedelta(0), timedelta(days=4000))
        ),
        ({"until": "window"}, "until must be 'started' or 'finished', not 'window'"),
        ({"until": True}, "until must be 'started' or 'finished', not True"),
        ({"until": "started", "window": 60}, "Unique takes until or window, not both"),
        ({"on_conflict": "ignore"}, "on_conflict must be 'existing', 'replace', 'postpone' or 'raise', not 'ignore'"),
        ({"key": 7}, "key must be a text, or a callable"),
        ({"key": ""}, "key must be 1 to 200 printable characters"),
        ({"key": "pgjobs.x"}, "key must not begin with 'pgjobs.'"),
        ({}, "Unique needs a key, such as Unique('report:{user_id}')"),
    ],
)
def test_what_a_unique_says_has_bounds(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Unique(**given)


def test_a_text_is_a_unique_by_itself() -> None:
    plain = job(name="plain", unique="u{user_id}")(work)._plan
    whole = job(name="whole", unique=Unique("u{user_id}"))(work)._plan
    assert (made("key", plain.key, (7,), {}), plain.scope) == (made("key", whole.key, (7,), {}), whole.scope)
    assert plain.scope == "until_finished"


@pytest.mark.parametrize("window", [timedelta(hours=1), 3600, 3600.0])
def test_windows_of_one_length_are_one_scope(window: Any) -> None:
    assert job(name="work", unique=Unique("k", window=window))(work)._plan.scope == 3600.0


def test_using_changes_what_it_says_and_keeps_what_it_does_not() -> None:
    declared = job(name="work", unique=Unique("u{user_id}", until="started", on_conflict="raise"))(work)
    other = declared._plan_with(unique="fixed")
    assert (other.key, other.scope, other.on_conflict) == ("fixed", "until_started", "raise")
    later = declared._plan_with(unique=Unique(on_conflict="replace"))
    assert (later.key, later.scope, later.on_conflict) == (declared._plan.key, "until_started", "replace")
    assert declared._plan_with(unique=None).key is None
