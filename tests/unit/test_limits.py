"""What a limit accepts, how a key is made, and what is refused: at the declaration, or where a job is registered."""

from __future__ import annotations

import inspect
from datetime import timedelta
from enum import StrEnum
from typing import Any

import pytest

from django_pgjobs import Limit, checks, job
from django_pgjobs.conf import get_conf, problems
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.values.limit import JobLimits, key_of, key_rule


@pytest.fixture(autouse=True)
def isolated() -> Any:
    with registry.isolated():
        yield


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "concurrency, rate or both"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": -1}, "concurrency"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": "5"}, "concurrency"),
        ({"concurrency": 1_000_001}, "concurrency"),
        ({"rate": 0}, "rate"),
        ({"rate": 1_000_001}, "rate"),
        ({"rate": 5, "per": 0}, "per"),
        ({"rate": 5, "per": 0.05}, "per"),
        ({"rate": 5, "per": float("nan")}, "per"),
        ({"rate": 5, "per": float("inf")}, "per"),
        ({"rate": 5, "per": timedelta(days=32)}, "per"),
        ({"rate": 5, "per": "60"}, "per"),
        ({"rate": 5, "per": True}, "per"),
        ({"concurrency": 1, "key": ""}, "names no argument"),
        ({"concurrency": 1, "key": "customer"}, "names no argument"),
        ({"concurrency": 1, "key": "customer:{"}, "Limit: key is no format string"),
        ({"concurrency": 1, "key": 5}, "callable"),
        ({"concurrency": 1, "key": str}, "callable"),
    ],
)
def test_a_limit_that_means_nothing_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Limit(**given)


def test_a_limit_keeps_seconds() -> None:
    assert Limit(rate=5, per=timedelta(minutes=2)).per == 120.0
    assert (Limit(3).concurrency, Limit(3).per, Limit(3).key) == (3, 60.0, None)


def example(customer: int, path: str = "x", **others: Any) -> None: ...


def declare(limits: Any) -> Any:
    return job(name="limited", limits=limits)(example)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (5, r"must be a Limit or a list of them, such as Limit\(5\), not 5"),
        ([5], "must be a Limit"),
        ({"concurrency": 5}, "must be a Limit"),
        ([Limit(1), Limit(2)], "at most one"),
        ([Limit(1, key="{customer}"), Limit(2, key="{path}")], "at most one"),
        (Limit(1, key="{}"), "the key of a limit names no argument: ''"),
        (Limit(1, key="{others}"), "the key of a limit names no argument: 'others'"),
        (Limit(1, key=lambda other: ""), "the job's arguments"),
        (Limit(1, key=lambda: ""), "the job's arguments"),
    ],
)
def test_what_does_not_fit_the_job_is_refused_where_it_is_declared(limits: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        declare(limits)
    assert registry.names() == []


def test_a_key_that_names_no_argument_is_refused_where_it_is_declared() -> None:
    def plain(customer: int) -> None: ...

    plain.__qualname__ = "plain"
    with pytest.raises(InvalidJob, match="the key of a limit names no argument: 'client'"):
        job(name="limited", limits=Limit(1, key="{client}"))(plain)

    async def key(customer: int) -> str:
        return ""

    with pytest.raises(InvalidJob, match="async"):
        job(name="limited", limits=Limit(1, key=key))(plain)  # type: ignore[arg-type]


class Kind(StrEnum):
    A = "a"


@pytest.mark.parametrize(
    ("key", "args", "kwargs", "found"),
    [
        ("customer:{customer}", (7,), {}, "customer:7"),
        ("{path}:{customer:03d}", (7,), {}, "x:007"),
        ("{path}", (), {"customer": 7, "path": "y"}, "y"),
        ("{extra}", (7,), {"extra": "z"}, "z"),
        (lambda customer, path="x", **others: f"{customer}{path}", (7,), {}, "7x"),
        (lambda customer, **others: None, (7,), {}, None),
        (lambda customer, **others: Kind.A, (7,), {}, "a"),
        (lambda customer, **others: "x" * 200, (7,), {}, "x" * 200),
    ],
)
def test_a_key_is_made_of_the_arguments(key: Any, args: Any, kwargs: Any, found: str | None) -> None:
    made = key_of(key_rule(key, inspect.signature(example)), args, kwargs)
    assert made == found
    assert type(made) in (str, type(None))


@pytest.mark.parametrize(
    "key",
    [
        "{path.nothing}",
        "{extra}",
        lambda customer, **others: 1 / 0,
        lambda customer, **others: 7,
        lambda customer, **others: "",
        lambda customer, **others: "x" * 201,
        lambda customer, **others: "a\0b",
        lambda customer, **others: "\ud800",
    ],
)
def test_a_key_that_cannot_be_made_is_said_where_the_job_is_registered(key: Any) -> None:
    definition = declare(Limit(1, key=key))
    with pytest.raises(InvalidJob, match=r"'limited'.*limit"):
        definition._limit_key(definition._plan, (7,), {})


def test_without_a_limit_a_job_has_no_key_and_with_one_without_a_key_an_empty_one(settings: Any) -> None:
    plain = job(name="plain")(example)
    own = job(name="own", limits=Limit(5))(example)
    keyed = job(name="keyed", limits=Limit(5, key=lambda customer, **others: None))(example)
    assert plain.limits == JobLimits()
    assert [each._limit_key(each._plan, (7,), {}) for each in (plain, own, keyed)] == [None, "", None]
    settings.PGJOBS = {"QUEUE_LIMITS": {"default": {"concurrency": 1}}}
    assert [each._limit_key(each._plan, (7,), {}) for each in (plain, own, keyed)] == ["", "", ""]
    settings.PGJOBS = {"QUEUE_LIMITS": {"*": {"concurrency": 1}, "default": None}}
    assert [each._limit_key(each._plan, (7,), {}) for each in (plain, own, keyed)] == [None, "", None]


# Settings and checks


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ({"mail": {"concurrency": 10, "rate": 100, "per": timedelta(minutes=1)}}, []),
        ({"mail": {"rate": 100}, "*": {"concurrency": 1}}, []),
        ({}, []),
        (None, []),
        ([("mail", 1)], ["type"]),
        ({"mail": 5}, ["range"]),
        ({"mail": {}}, ["range"]),
        ({"mail": {"limit": 5}}, ["range"]),
        ({"mail": {"concurrency": 0}}, ["range"]),
        ({"mail": {"concurrency": 5, "per": 60}}, ["range"]),
        ({"mail": {"rate": 5, "key": "{a}"}}, ["range"]),
        ({"no queue": {"rate": 5}}, ["range"]),
        ({5: {"rate": 5}}, ["range"]),
    ],
)
def test_the_setting_says_what_is_wrong_with_it(given: Any, kinds: list[str]) -> None:
    assert [problem.kind for problem in problems({"QUEUE_LIMITS": given})] == kinds


def test_a_wrong_key_of_a_limit_meets_the_right_keys_and_the_unit_of_per() -> None:
    [problem] = problems({"QUEUE_LIMITS": {"mail": {"rate": 5, "seconds": 1}}})
    assert 'a dict such as {"concurrency": 5} or {"rate": 100, "per": 60}, not {' in problem.message


def test_the_setting_is_read_once(settings: Any) -> None:
    settings.PGJOBS = {"QUEUE_LIMITS": {"mail": {"concurrency": 10, "rate": 100}}}
    limits = get_conf().queue_limits
    assert (limits.of("mail"), limits.of("other")) == (Limit(10, 100, 60), None)


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ([Limit(5), Limit(5, key="{customer}")], []),
        ([Limit(5), Limit(6, key="{customer}")], ["pgjobs.W004"]),
        ([Limit(rate=60), Limit(rate=1, per=1, key="{customer}")], []),
        ([Limit(rate=60), Limit(rate=2, per=1, key="{customer}")], []),
        ([Limit(rate=60), Limit(rate=60, per=1, key="{customer}")], []),
        ([Limit(rate=60), Limit(rate=61, per=1, key="{customer}")], ["pgjobs.W004"]),
        ([Limit(rate=60), Limit(rate=120, per=61, key="{customer}")], []),
        ([Limit(rate=60), Limit(rate=121, per=61, key="{customer}")], ["pgjobs.W004"]),
        ([Limit(5), Limit(rate=99, key="{customer}")], []),
    ],
)
def test_a_limit_that_another_makes_pointless_is_warned_of(limits: Any, found: list[str]) -> None:
    declare(limits)
    assert [message.id for message in checks.check_definitions()] == found


def test_a_queue_that_may_not_be_used_has_no_limit(settings: Any) -> None:
    settings.PGJOBS = {"QUEUES": ["default"], "QUEUE_LIMITS": {"mail": {"concurrency": 1}}}
    assert [message.id for message in checks.check_named_queues()] == ["pgjobs.E016"]
