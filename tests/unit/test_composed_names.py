"""Wherever a name is composed of what users give, two different things never share one.

Each place says what its parts are, how it makes the name, and what the name means. Of many draws at a time those of one
name have one meaning, and those of one meaning one name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgjobs import Event
from django_pgjobs.context import Target
from django_pgjobs.durable import job_event
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.execution.naming import memo_name
from django_pgjobs.serialization.payload import encode_payload
from django_pgjobs.store.notifying import wake_up
from django_pgjobs.values.key_template import Template

HOSTILE = 'a1:[]#"\\%3A'
"""Marks of every place; short texts of few letters, so that names meet if they can."""

AT_ONCE = 500


def text(random: Random, least: int = 1) -> str:
    return "".join(random.choices(HOSTILE, k=random.randint(least, 3)))


def number(random: Random) -> int:
    return random.randint(-1, 3)


def value(random: Random) -> str | int:
    return random.choice((text(random, 0), number(random)))


def event(random: Random) -> tuple[str, list[str | int]]:
    name = random.choice((text(random).replace(":", "a"), "jobs", "job%3A1", "pgjobs"))
    return name, [value(random) for _ in range(random.randint(0, 2))]


def job_s_event(random: Random) -> tuple[int, str]:
    return random.randint(1, 3), text(random)


def step(random: Random) -> tuple[str, str | int | None, int]:
    return text(random), random.choice((None, text(random), number(random))), random.randint(1, 3)


class Place(NamedTuple):
    """``same``: what of the parts the name stands for, if that is not all of them."""

    parts: Callable[[Random], Any]
    name: Callable[[Any], Any]
    same: Callable[[Any], Any] = lambda parts: parts


def filled(text: str) -> Callable[[Any], str]:
    def two(a: Any, b: Any) -> None: ...

    fill = Template(text).bound(inspect.signature(two))
    return lambda parts: fill(*parts)


def as_texts(parts: Any) -> Any:
    """``7`` and ``"7"`` are one part of an event's key and of a format string."""
    return [*map(str, parts)]


PLACES = {
    "a step, by name, key and turn": Place(
        step,
        lambda step: memo_name(step[0], key=step[1], count=step[2] if step[1] is None else 1),
        lambda step: (step[0], type(step[1]), step[1], step[2] if step[1] is None else None),
    ),
    "an event, by name and key": Place(
        event,
        lambda event: Event[Any](event[0]).name_of(*event[1]),
        lambda event: (event[0], as_texts(event[1])),
    ),
    "an event of a job": Place(job_s_event, lambda event: job_event(*event)),
    "any event": Place(
        lambda random: random.choice((event, job_s_event))(random),
        lambda event: job_event(*event) if isinstance(event[0], int) else Event[Any](event[0]).name_of(*event[1]),
        lambda event: event if isinstance(event[0], int) else (event[0], as_texts(event[1])),
    ),
    "what a compensation undoes": Place(
        lambda random: (random.randint(1, 3), text(random, 0)), lambda target: Target(target[0], target[1], None).id
    ),
    "whom a notification wakes": Place(
        lambda random: (text(random), random.choice((None, number(random)))), lambda pair: wake_up(*pair).payload
    ),
    "a call that is gathered": Place(
        lambda random: ([value(random)], {text(random): value(random)}),
        lambda call: encode_payload(tuple(call[0]), dict(sorted(call[1].items())), 10_000),
    ),
    **{
        f"a key of the format string {template}": Place(
            lambda random: (value(random), value(random)), filled(template), as_texts
        )
        for template in ("{a}:{b}", "x{a}/:{b}y", "{a} ab:{b}", "{a!s}:{b}:{a}", "{a}%:{b}")
    },
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@given(seed=st.integers(0, 10**6))
def test_names_of_different_things_never_meet(place: Place, seed: int) -> None:
    random = Random(seed)
    meant: dict[Any, Any] = {}
    named: dict[str, Any] = {}
    for _ in range(AT_ONCE):
        parts = place.parts(random)
        name, meaning = place.name(parts), repr(place.same(parts))
        assert (meant.setdefault(name, meaning), named.setdefault(meaning, name)) == (meaning, name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("job", "events of that name are for single jobs or this package: choose another"),
        ("pgjobs.gathered", "events of that name are for single jobs or this package: choose another"),
        ("job:7", "a colon divides the name from its key: write a dot"),
    ],
)
def test_names_of_events_that_belong_to_others_are_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        Event[Any](name)
