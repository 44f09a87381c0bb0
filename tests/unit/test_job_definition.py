"""``@job``: what a definition is, and what it refuses where it was written."""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import Enum, StrEnum
from types import FunctionType
from typing import Any
from unittest.mock import patch

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

import django_pgjobs
from django_pgjobs import Backoff, JobContext, job
from django_pgjobs import JobContext as Context
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from tests.unit import job_functions
from tests.unit.job_functions import (
    add,
    async_one_argument,
    context_and_argument,
    declare,
    in_context,
    named,
    no_argument,
    one_argument,
    only_rest,
)


@job
async def asynchronous(n: int) -> int:
    await asyncio.sleep(0)
    return n


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> Any:
    yield 1


def keyword_only(*, context: object) -> None: ...


class Shop:
    """A class with functions that are jobs, or cannot be."""

    def method(self, user_id: int) -> None: ...

    @staticmethod
    def static(user_id: int) -> None: ...


@pytest.fixture
def isolated() -> Iterator[None]:
    with registry.isolated():
        yield


def refused(func: Any = one_argument, **options: Any) -> str:
    with registry.isolated():
        registry.is_isolated = False  # as outside of a test, where a worker must find the function
        with pytest.raises(InvalidJob) as caught:
            job(**options)(func)
    return str(caught.value)


# What a definition is


def test_a_job_is_still_the_function() -> None:
    """Rows A1, A2: the function is called with its arguments and may return anything."""
    assert add(1, 2, 3, scale=10, extra=4) == 100
    assert asyncio.run(asynchronous(3)) == 3
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Add numbers.", job_functions.__name__)
    assert repr(add) == f"<job {job_functions.__name__}.add>"


def test_the_name_is_module_and_qualified_name() -> None:
    assert add.name == f"{job_functions.__name__}.add"
    assert declare(Shop.static).name == f"{__name__}.Shop.static"
    assert declare(name="shop.pay").name == "shop.pay"


def test_what_is_not_said_comes_from_the_settings() -> None:
    """Row A20, A36 and the defaults of the design: once, now, queued, five attempts, thirty minutes."""
    definition = declare()
    assert (definition.queue, definition.priority) == ("default", 0)
    assert (definition.max_attempts, definition.timeout) == (5, 1800.0)
    assert definition.backoff == Backoff(15, factor=4, limit=3600, jitter=0.1)
    assert (definition._plan.run_at, definition._plan.delay, definition._plan.database) == (None, None, None)
    assert (definition.store_result, definition.takes_context, definition.is_async) == (True, False, False)
    with override_settings(
        PGJOBS={"DEFAULT_MAX_ATTEMPTS": 3, "DEFAULT_TIMEOUT_SECONDS": None, "DEFAULT_BACKOFF": Backoff(5, factor=2)}
    ):
        assert (definition.max_attempts, definition.timeout, definition.backoff) == (3, None, Backoff(5, factor=2))
    assert definition.max_attempts == 5


def test_what_is_said_wins() -> None:
    definition = declare(
        queue="mail",
        priority=-100,
        max_attempts=1,
        timeout=timedelta(minutes=5),
        backoff=Backoff(1),
        retry_on=OSError,
        give_up_on=[ValueError, KeyError],
        store_result=False,
        sensitive="user_id",
        aliases="old",
    )
    assert (definition.queue, definition.priority, definition.max_attempts) == ("mail", -100, 1)
    assert (definition.timeout, definition.backoff, definition.store_result) == (300.0, Backoff(1), False)
    assert (definition.retry_on, definition.give_up_on) == ((OSError,), (ValueError, KeyError))
    assert (definition.sensitive, definition.aliases) == (frozenset({"user_id"}), ("old",))
    assert declare(timeout=None).timeout is None


def test_members_of_enumerations_are_their_text() -> None:
    class Modern(StrEnum):
        MAIL = "mail"

    class Old(str, Enum):  # noqa: UP042
        MAIL = "mail"

    assert declare(queue=Modern.MAIL).queue == declare(queue=Old.MAIL).queue == "mail"
    assert type(declare(queue=Old.MAIL).queue) is str


def test_async_functions_are_known_as_such() -> None:
    assert asynchronous.is_async


def test_the_context_is_no_argument() -> None:
    assert list(in_context._signature.parameters) == ["path", "more"]
    assert list(declare(only_rest, takes_context=True)._signature.parameters) == ["rest"]
    assert in_context.takes_context


def test_a_definition_is_pickled_and_copied_by_name() -> None:
    assert pickle.loads(pickle.dumps(add)) is add
    assert copy.deepcopy(add) is add


def test_the_fingerprint_changes_with_name_and_parameters_only() -> None:
    """A parked job is tried again by other code, and never by the same code in another process."""

    def fingerprint_of(source: str, **options: Any) -> str:
        namespace: dict[str, Any] = {"__name__": "shop"}
        exec(source, namespace)
        return declare(namespace["pay"], **options)._fingerprint

    pay = fingerprint_of("def pay(user_id, when=object()): ...")
    assert pay == fingerprint_of("def pay(user_id: int, when=object()): return 1")
    assert pay == fingerprint_of("def pay(user_id, when=object()): ...", queue="mail")
    assert pay != fingerprint_of("def pay(user_id, when): ...")
    assert pay != fingerprint_of("def pay(user_id, *, when=object()): ...")
    assert pay != fingerprint_of("def pay(user_id, when=object()): ...", name="shop.other")


def test_importing_the_package_needs_no_settings_and_loads_no_model() -> None:
    code = (
        "import sys, django_pgjobs; assert 'django_pgjobs.models' not in sys.modules;"
        "from django.conf import settings; assert not settings.configured"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_the_public_names_are_few() -> None:
    package = importlib.import_module("django_pgjobs")
    assert len(package.__all__) <= 17
    assert all(hasattr(package, name) for name in package.__all__)


# What is refused where it was written


def test_an_error_names_file_line_and_job() -> None:
    message = refused(max_attempts=0)
    assert f"job_functions.py:{one_argument.__code__.co_firstlineno}: " in message
    assert f"job '{one_argument.__qualname__}': max_attempts must be an integer ≥ 1, not 0" in message


@pytest.mark.parametrize("value", [0, -1, 2.5, "3", True, None])
def test_attempts_are_whole_and_at_least_one(value: object) -> None:
    """Row A31."""
    assert "max_attempts must be an integer ≥ 1" in refused(max_attempts=value)


@override_settings(PGJOBS={"BOUNDS": {"max_attempts": 10, "timeout_seconds": 1800}, "DEFAULT_MAX_ATTEMPTS": 3})
def test_ceilings_are_settings() -> None:
    """Rows A29, A31 with Antikythera's numbers."""
    assert declare().max_attempts == 3
    assert declare(max_attempts=10, timeout=1800).max_attempts == 10
    assert "max_attempts must be between 1 and 10, not 11" in refused(max_attempts=11)
    assert "timeout must be at most 1800 seconds, not 1800.5" in refused(timeout=1800.5)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, timedelta(seconds=-1), "5", True])
def test_timeouts_are_finite_and_positive(value: object) -> None:
    """Row A29."""
    assert "timeout must be" in refused(timeout=value)
    assert "or None for unlimited" in refused(timeout=0)


def test_a_number_too_large_for_seconds_is_refused() -> None:
    assert "timeout is too large" in refused(timeout=10**400)


@pytest.mark.parametrize("value", [-101, 101, 1.0, "1", True])
def test_priorities_are_whole_numbers_of_a_range(value: object) -> None:
    assert "priority must be an integer from -100 to 100" in refused(priority=value)


@pytest.mark.parametrize("value", ["LOUD", "info", True, 15, 2.0, ("INFO",)])
def test_logs_are_levels_of_logging(value: object) -> None:
    assert "logs must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL, or None" in refused(logs=value)


@pytest.mark.parametrize("value", ["", "a b", "ü", "a" * 101, "mail\n", "a/b", None, 3])
def test_queues_have_plain_names(value: object) -> None:
    """Row A17, for queues."""
    assert "queue must be 1 to 100 of the characters" in refused(queue=value)


@override_settings(PGJOBS={"QUEUES": ["default", "mail"]})
def test_a_queue_that_is_not_declared_is_refused() -> None:
    """Row A16."""
    assert declare(queue="mail").queue == "mail"
    assert "queue 'mial' is not in PGJOBS['QUEUES'] (did you mean 'mail'?)" in refused(queue="mial")


def test_an_unknown_option_is_refused_with_the_one_meant() -> None:
    """Row A43."""
    assert "unknown option 'atempts' (did you mean 'max_attempts'?)" in refused(atempts=3)
    assert "unknown option 'zzz'" in refused(zzz=1)


@pytest.mark.parametrize("value", ["", "a" * 201, " pay", "pay\0", "a\nb", 3])
def test_names_are_short_and_printable(value: object) -> None:
    assert "aliases must be" in refused(aliases=[value])
    if value:
        assert "name must be" in refused(name=value)


def test_aliases_are_a_list() -> None:
    assert "aliases must be a list of names" in refused(aliases=3)
    assert declare(name="pay", aliases=["pay", "old", "old"]).aliases == ("old",)


@pytest.mark.parametrize(
    "value", [15, "15", Backoff, None, no_argument, async_one_argument, lambda error: 1, (1, 2)], ids=named
)
def test_a_backoff_is_a_policy_or_takes_error_and_attempt(value: object) -> None:
    """Row A43."""
    assert "backoff" in refused(backoff=value)


@pytest.mark.parametrize("option", ["retry_on", "give_up_on"])
@pytest.mark.parametrize("value", [int, [ValueError, "x"], ValueError(), "ValueError", no_argument, 3], ids=named)
def test_retry_rules_are_exception_types_or_take_the_error(option: str, value: object) -> None:
    assert option in refused(**{option: value})


def test_callables_without_a_readable_signature_are_taken_at_their_word() -> None:
    unreadable = functools.partial(min)
    with patch("inspect.signature", side_effect=ValueError):
        from django_pgjobs.definition.validation import check_rule

        assert check_rule("retry_on", unreadable) is unreadable


@pytest.mark.parametrize("option", ["store_result", "atomic", "takes_context"])
def test_flags_are_true_or_false(option: str) -> None:
    assert f"{option} must be True or False" in refused(**{option: "yes"})


def test_an_atomic_job_is_a_plain_function() -> None:
    """Its whole body runs inside ``transaction.atomic()``, which coroutines have none of."""
    assert "atomic needs a plain function: Django has no transactions in async code" in refused(
        async_one_argument, atomic=True
    )
    assert declare(atomic=True).atomic
    assert not declare(async_one_argument, name="other", atomic=False).atomic


def test_sensitive_names_an_argument() -> None:
    assert "sensitive names no argument: 'user' (did you mean 'user_id'?)" in refused(sensitive=["user"])
    assert "sensitive names no argument: 'context'" in refused(
        context_and_argument, takes_context=True, sensitive=["context"]
    )
    assert declare(add.func, name="other", sensitive=["any"]).sensitive == {"any"}


def test_functions_that_a_worker_cannot_find_are_refused() -> None:
    def nested() -> None: ...

    main = FunctionType(no_argument.__code__, {"__name__": "__main__"}, "main")
    main.__module__, main.__qualname__ = "__main__", "main"
    assert "cannot find a function inside a function" in refused(nested)
    assert "a lambda has no name" in refused(lambda: None)
    assert "__main__ is another module" in refused(main)
    assert "a method has no object" in refused(Shop.method)


@pytest.mark.parametrize("func", [generator, async_generator, functools.wraps(generator)(lambda: None)])
def test_generators_are_refused(func: object) -> None:
    assert "generator function" in refused(func) or "lambda" in refused(func)


@pytest.mark.parametrize("value", ["mail", Shop, functools.partial(one_argument), add, 3])
def test_what_is_no_function_is_refused(value: object) -> None:
    assert "a job is a function" in refused(value)
    with pytest.raises(InvalidJob, match="a job is a function"):
        job(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("func", [no_argument, keyword_only])
def test_a_context_needs_a_place(func: object) -> None:
    assert "there is no first positional parameter for the context" in refused(func, takes_context=True)


def test_a_refused_job_is_not_known(isolated: None) -> None:
    with pytest.raises(InvalidJob):
        job(queue="a b")(one_argument)
    assert registry.names() == []


def test_broken_settings_are_left_to_the_system_checks() -> None:
    with override_settings(PGJOBS={"THREDS": 3}):
        definition = declare()
        with pytest.raises(ImproperlyConfigured):
            _ = definition._plan
    assert definition.max_attempts == 5


def test_without_settings_a_job_can_be_declared() -> None:
    with patch("django_pgjobs.definition.policy.settings") as settings:
        settings.configured = False
        definition = declare(max_attempts=100_000)
    with pytest.raises(InvalidJob, match="between 1 and 1000"):
        _ = definition.max_attempts


# The context


def aliased(context: Context, path: str) -> int:
    return context.attempt


def by_module(running: django_pgjobs.JobContext, path: str) -> int:
    return running.attempt


def plainly(context: str, path: str) -> str:
    return context + path


def late(path: str, context: JobContext) -> None: ...


@functools.wraps(aliased)
def wrapped(*args: Any, **kwargs: Any) -> int:
    return aliased(*args, **kwargs)


@pytest.mark.parametrize("func", [context_and_argument, aliased, by_module, wrapped])
def test_a_first_parameter_annotated_as_the_context_gets_it(func: Callable[..., Any]) -> None:
    definition = declare(func)
    assert definition.takes_context
    assert "context" not in definition._signature.parameters
    assert len(definition._signature.parameters) == 1
    definition._fits("x")


def test_an_annotation_may_be_the_class_itself() -> None:
    evaluated = FunctionType(aliased.__code__, aliased.__globals__, "evaluated")
    evaluated.__annotations__ = {"context": JobContext, "path": str}
    assert declare(evaluated).takes_context


@pytest.mark.parametrize("func", [plainly, late, no_argument, one_argument])
def test_no_other_parameter_does(func: Callable[..., Any]) -> None:
    assert not declare(func).takes_context


def test_the_option_decides_for_code_without_annotations() -> None:
    assert not declare(context_and_argument, takes_context=False).takes_context
    assert declare(one_argument, takes_context=True).takes_context
