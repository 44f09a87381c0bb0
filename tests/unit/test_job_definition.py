"""``@job``: what a definition is, what it refuses where it was written, and what it says about retries."""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib
import logging
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum, StrEnum
from types import FunctionType
from typing import Any
from unittest.mock import patch

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django.utils.functional import SimpleLazyObject

from django_pgjobs import Backoff, BoundJob, JobContext, JobDefinition, job
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob, UnreadablePayload


@job
def add(one: int, other: int = 2, /, *rest: int, scale: int = 1, **names: int) -> int:
    """Add numbers."""
    return (one + other + sum(rest) + sum(names.values())) * scale


@job(takes_context=True)
def in_context(context: JobContext, /, path: str, **more: str) -> tuple[int, str]:
    return context.attempt, path


@job
async def asynchronous(n: int) -> int:
    await asyncio.sleep(0)
    return n


def one_argument(user_id: int) -> None: ...


def context_and_argument(context: JobContext, user_id: int) -> None: ...


async def async_one_argument(user_id: int) -> str:
    return ""


def no_argument() -> None: ...


def only_rest(*rest: Any) -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> Any:
    yield 1


def any_name(context: JobContext, **names: str) -> None: ...


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


def declare(func: Callable[..., Any] = one_argument, **options: Any) -> JobDefinition[..., Any]:
    with registry.isolated():
        definition: JobDefinition[..., Any] = job(**options)(func)
    return definition


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
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Add numbers.", __name__)
    assert repr(add) == f"<job {__name__}.add>"


def test_the_name_is_module_and_qualified_name() -> None:
    assert add.name == f"{__name__}.add"
    assert declare(Shop.static).name == f"{__name__}.Shop.static"
    assert declare(name="shop.pay").name == "shop.pay"


def test_what_is_not_said_comes_from_the_settings() -> None:
    """Row A20, A36 and the defaults of the design: once, now, queued, five attempts, thirty minutes."""
    definition = declare()
    assert (definition.queue, definition.priority) == ("default", 0)
    assert (definition.max_attempts, definition.timeout) == (5, 1800.0)
    assert definition.backoff == Backoff(15, factor=4, limit=3600, jitter=0.1)
    assert (definition.plan.run_at, definition.plan.delay, definition.plan.database) == (None, None, None)
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
    assert list(in_context.signature.parameters) == ["path", "more"]
    assert list(declare(only_rest, takes_context=True).signature.parameters) == ["rest"]
    assert in_context.takes_context


def test_a_definition_is_pickled_and_copied_by_name() -> None:
    assert pickle.loads(pickle.dumps(add)) is add
    assert copy.deepcopy(add) is add


def test_the_fingerprint_changes_with_name_and_parameters_only() -> None:
    """A parked job is tried again by other code, and never by the same code in another process."""

    def fingerprint_of(source: str, **options: Any) -> str:
        namespace: dict[str, Any] = {"__name__": "shop"}
        exec(source, namespace)
        return declare(namespace["pay"], **options).fingerprint

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
    assert len(package.__all__) < 15
    assert all(hasattr(package, name) for name in package.__all__)


# What is refused where it was written


def test_an_error_names_file_line_and_job() -> None:
    message = refused(max_attempts=0)
    assert f"test_job_definition.py:{one_argument.__code__.co_firstlineno}: " in message
    assert f"job '{one_argument.__qualname__}': max_attempts must be an integer ≥ 1, not 0" in message


@pytest.mark.parametrize("value", [0, -1, 2.5, "3", True, None])
def test_attempts_are_whole_and_at_least_one(value: object) -> None:
    """Row A31."""
    assert "max_attempts must be an integer ≥ 1" in refused(max_attempts=value)


@override_settings(PGJOBS={"MAX_ATTEMPTS_CEILING": 10, "TIMEOUT_CEILING_SECONDS": 1800, "DEFAULT_MAX_ATTEMPTS": 3})
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
    "value", [15, "15", Backoff, None, no_argument, async_one_argument, lambda error: 1, (1, 2)], ids=repr
)
def test_a_backoff_is_a_policy_or_takes_error_and_attempt(value: object) -> None:
    """Row A43."""
    assert "backoff" in refused(backoff=value)


@pytest.mark.parametrize("option", ["retry_on", "give_up_on"])
@pytest.mark.parametrize("value", [int, [ValueError, "x"], ValueError(), "ValueError", no_argument, 3], ids=repr)
def test_retry_rules_are_exception_types_or_take_the_error(option: str, value: object) -> None:
    assert option in refused(**{option: value})


def test_callables_without_a_readable_signature_are_taken_at_their_word() -> None:
    unreadable = functools.partial(min)
    with patch("inspect.signature", side_effect=ValueError):
        from django_pgjobs.definition.options import check_rule

        assert check_rule("retry_on", unreadable) is unreadable


@pytest.mark.parametrize("option", ["store_result", "takes_context"])
def test_flags_are_true_or_false(option: str) -> None:
    assert f"{option} must be True or False" in refused(**{option: "yes"})


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
    assert "a function inside of a function" in refused(nested)
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
        job(value)  # type: ignore[call-overload]


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
            _ = definition.plan
    assert definition.max_attempts == 5


def test_without_settings_a_job_can_be_declared() -> None:
    with patch("django_pgjobs.jobs.settings") as settings:
        settings.configured = False
        definition = declare(max_attempts=100_000)
    with pytest.raises(InvalidJob, match="between 1 and 1000"):
        _ = definition.max_attempts


# Callbacks


def test_callbacks_are_returned_unchanged_and_kept() -> None:
    """Rows A5, A8, A9, A12: all three are optional."""
    definition = declare()
    assert (definition.on_abandon_func, definition.on_cancel_func, definition.describe_func) == (None, None, None)
    assert definition.on_abandon(context_and_argument) is context_and_argument
    assert definition.on_cancel(context_and_argument) is context_and_argument
    describe: Any = one_argument
    assert definition.describe(describe) is describe
    assert definition.on_abandon_func is context_and_argument
    assert definition.on_cancel_func is context_and_argument
    assert definition.describe_func is describe


def test_a_second_callback_is_refused() -> None:
    definition = declare()
    definition.on_abandon(context_and_argument)
    with pytest.raises(InvalidJob, match="on_abandon is set already"):
        definition.on_abandon(context_and_argument)


@pytest.mark.parametrize(
    "callback",
    [one_argument, no_argument, lambda context, name: None, lambda context, user_id, more: None, 3],
    ids=repr,
)
def test_a_callback_takes_the_context_and_the_jobs_arguments(callback: Any) -> None:
    definition = declare()
    with pytest.raises(InvalidJob, match="on_cancel"):
        definition.on_cancel(callback)
    assert definition.on_cancel_func is None


@pytest.mark.parametrize("callback", [lambda context, **named: None, lambda context, user_id, more=1: None, only_rest])
def test_a_callback_may_take_more(callback: Any) -> None:
    definition = declare(only_rest if callback is only_rest else one_argument)
    assert definition.on_abandon(callback) is callback


def test_describe_takes_the_jobs_arguments_and_is_not_async() -> None:
    with pytest.raises(InvalidJob, match="must not be an async function"):
        declare().describe(async_one_argument)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="must take the job's arguments"):
        declare().describe(no_argument)  # type: ignore[arg-type]


# Retries


def test_the_delay_grows_by_the_backoff() -> None:
    """Rows A32, A34, A35, C34."""
    definition = declare(backoff=Backoff(10, factor=2))
    assert [definition.retry_delay(OSError(), n) for n in (1, 2, 3)] == [10, 20, 40]
    assert [definition.default_delay(n) for n in (1, 2, 3)] == [10, 20, 40]
    assert [declare(backoff=Backoff(10)).retry_delay(OSError(), n) for n in (1, 2)] == [10, 10]


def test_the_default_delay_is_jittered() -> None:
    assert all(13.5 <= declare().default_delay(1) <= 16.5 for _ in range(20))


@pytest.mark.parametrize(
    ("options", "error", "again"),
    [
        ({}, ValueError(), True),
        ({"retry_on": OSError}, TimeoutError(), True),
        ({"retry_on": OSError}, ValueError(), False),
        ({"retry_on": ()}, OSError(), False),
        ({"give_up_on": OSError}, TimeoutError(), False),
        ({"give_up_on": OSError}, ValueError(), True),
        ({"retry_on": OSError, "give_up_on": PermissionError}, PermissionError(), False),
        ({"retry_on": lambda error: "again" in str(error)}, ValueError("again"), True),
        ({"retry_on": lambda error: "again" in str(error)}, ValueError("never"), False),
        ({"give_up_on": lambda error: "never" in str(error)}, ValueError("never"), False),
    ],
)
def test_rules_say_which_errors_are_tried_again(options: dict[str, Any], error: Exception, again: bool) -> None:
    definition = declare(backoff=Backoff(7), **options)
    assert definition.retry_delay(error, 1) == (7 if again else None)


@pytest.mark.parametrize(("asked", "delay"), [(3, 3.0), (timedelta(minutes=1), 60.0), (None, None), (0, 0.0)])
def test_a_callable_backoff_answers_seconds_timedelta_or_none(asked: Any, delay: float | None) -> None:
    seen: list[tuple[BaseException, int]] = []

    def backoff(error: BaseException, attempt: int) -> Any:
        seen.append((error, attempt))
        return asked

    error = OSError()
    assert declare(backoff=backoff).retry_delay(error, 2) == delay
    assert seen == [(error, 2)]


def test_a_callable_backoff_cannot_leave_the_calendar() -> None:
    assert declare(backoff=lambda error, attempt: 1e300).retry_delay(OSError(), 1) == 3650 * 86400


@pytest.mark.parametrize("answer", [-1, math.nan, "soon", ZeroDivisionError()])
def test_a_broken_backoff_falls_back_to_the_default(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    def backoff(error: BaseException, attempt: int) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with caplog.at_level(logging.ERROR, "django_pgjobs"):
        delay = declare(backoff=backoff).retry_delay(OSError(), 1)
    assert delay is not None
    assert 13.5 <= delay <= 16.5
    assert "backoff failed" in caplog.text


def test_after_a_kill_there_is_no_exception_to_ask_about() -> None:
    assert 13.5 <= declare(backoff=lambda error, attempt: 1 / 0).default_delay(1) <= 16.5


@pytest.mark.parametrize("option", ["retry_on", "give_up_on"])
def test_a_broken_rule_means_retry(option: str, caplog: pytest.LogCaptureFixture) -> None:
    definition = declare(backoff=Backoff(7), **{option: lambda error: 1 / 0})
    with caplog.at_level(logging.ERROR, "django_pgjobs"):
        assert definition.retry_delay(OSError(), 1) == 7
    assert "retry rule failed" in caplog.text


# Arguments


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing 1 required positional argument: 'user_id'"),
        ((1, 2), {}, "takes 1 positional argument but 2 were given"),
        ((1,), {"user_id": 1}, "multiple values for argument 'user_id'"),
        ((1,), {"atempts": 3}, "unexpected keyword argument 'atempts'"),
    ],
)
def test_wrong_arguments_are_the_type_error_of_a_call_and_name_the_job(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    """Row A43; nothing reaches a database, which unit tests do not have."""
    definition = declare(name="shop.pay")
    for call in (definition.register, definition.bind, definition.using(queue="mail").register):
        with pytest.raises(TypeError) as caught:
            call(*args, **kwargs)
        assert words in str(caught.value)
        assert "shop.pay()" in str(caught.value)


def test_every_kind_of_parameter_is_understood() -> None:
    for args, kwargs in [((1,), {}), ((1, 2, 3), {"scale": 2, "x": 1}), ((1,), {"one": 2})]:
        assert add.bind(*args, **kwargs).args == args
    with pytest.raises(TypeError):
        add.bind()  # type: ignore[call-arg]


def test_the_context_cannot_be_given() -> None:
    assert in_context.bind("x", more="y").args == ("x",)
    assert in_context.bind("x", context="y").kwargs == {"context": "y"}, "its own parameter is positional-only"
    with pytest.raises(TypeError, match="multiple values for argument 'context'"):
        declare(any_name, takes_context=True).bind(context="y")


def test_load_returns_the_arguments_or_says_why_not() -> None:
    """Row P13."""
    definition = declare(name="shop.pay")
    assert definition.load('{"args": [7], "kwargs": {}}') == ([7], {})
    assert definition.load('{"args": [], "kwargs": {"user_id": 7}}') == ([], {"user_id": 7})
    with pytest.raises(UnreadablePayload, match=r"do not fit: shop\.pay\(\) missing 1 required"):
        definition.load('{"args": [], "kwargs": {}}')
    with pytest.raises(UnreadablePayload):
        definition.load("no json")


# Options of a registration


def plan_of(definition: JobDefinition[..., Any], **options: Any) -> Any:
    return definition.plan.changed(definition.using(**options).options)


def test_options_go_on_top_of_the_definition() -> None:
    definition = declare(queue="mail", priority=5, max_attempts=7)
    plan = plan_of(definition, queue="bulk", timeout=None, delay=timedelta(minutes=1), database="default")
    assert (plan.queue, plan.priority, plan.max_attempts) == ("bulk", 5, 7)
    assert (plan.timeout, plan.delay, plan.database) == (None, 60.0, "default")


def test_later_options_win() -> None:
    bound = declare().using(queue="a", priority=1).using(queue="b")
    assert bound.options == {"queue": "b", "priority": 1}
    call = bound.bind(7).using(priority=2)
    assert call == BoundJob(bound.definition, (7,), {}, {"queue": "b", "priority": 2})


def test_nothing_is_changed_by_options() -> None:
    definition = declare()
    definition.using(queue="a", delay=5)
    assert definition.plan.queue == "default"
    with pytest.raises(AttributeError):
        definition.bind(1).args = ()  # type: ignore[misc]


def test_none_means_not_given_for_instants_and_alias() -> None:
    plan = plan_of(declare(), run_at=None, delay=None, database=None)
    assert (plan.run_at, plan.delay, plan.database) == (None, None, None)
    assert plan_of(declare(), run_at=None, delay=3).delay == 3.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dely": 3}, "unknown option 'dely' (did you mean 'delay'?)"),
        ({"keys": "x"}, "unknown option 'keys' (did you mean 'key'?)"),
        ({"key": 7}, "key must be a text, or a callable"),
        ({"key": str}, "key must be a text, or a callable"),
        ({"key": ""}, "key must be 1 to 200 printable characters, not ''"),
        ({"idempotency_key": "x" * 201}, "idempotency_key must be 1 to 200 printable characters"),
        ({"key_scope": "hour"}, "key_scope must be 'until_finished', 'until_started', a Window or a timedelta"),
        ({"key_scope": "window"}, "key_scope must be 'until_finished', 'until_started', a Window or a timedelta"),
        ({"key_scope": timedelta(0)}, "key_scope: Window needs 1 to"),
        ({"on_conflict": "ignore"}, "on_conflict must be 'existing', 'replace' or 'raise'"),
        ({"delay": -1}, "delay must be a finite number of seconds ≥ 0"),
        ({"delay": math.nan}, "delay must be a finite number"),
        ({"delay": "5"}, "delay must be seconds or a timedelta"),
        ({"delay": timedelta(days=3651)}, "delay must be at most 3650 days"),
        ({"run_at": "now"}, "run_at must be a datetime"),
        ({"run_at": datetime(2090, 1, 1, tzinfo=UTC)}, "run_at must be at most 3650 days ahead"),
        ({"run_at": datetime.max.replace(tzinfo=UTC)}, "run_at must be from 0001-01-03 to 9999-12-29 UTC, not"),
        ({"run_at": datetime.min.replace(tzinfo=UTC)}, "run_at must be from 0001-01-03 to 9999-12-29 UTC, not"),
        ({"run_at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=12)))}, "run_at must be from 0001-01-03"),
        ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1}, "give run_at or delay, not both"),
        ({"queue": "a b"}, "queue must be"),
        ({"queue": None}, "queue must be"),
        ({"priority": 200}, "priority must be"),
        ({"timeout": 0}, "timeout must be at least 0.001 seconds"),
        ({"timeout": 0.0009}, "timeout must be at least 0.001 seconds"),
        ({"timeout": 86401}, "timeout must be at most 86400 seconds"),
        ({"max_attempts": 0}, "max_attempts must be"),
        ({"max_attempts": 1001}, "max_attempts must be between 1 and 1000"),
        ({"database": ""}, "database must be an alias"),
        ({"database": 3}, "database must be an alias"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    """Rows A21, A29, A31, A43."""
    definition = declare(name="shop.pay")
    for using in (definition.using, definition.using(priority=1).using, definition.bind(7).using):
        with pytest.raises(InvalidJob) as caught:
            using(**options)
        assert "job 'shop.pay': " in str(caught.value)
        assert words in str(caught.value)


def test_run_at_and_delay_are_refused_together_over_two_steps() -> None:
    with pytest.raises(InvalidJob, match="not both"):
        declare().using(delay=1).using(run_at=datetime(2030, 1, 1, tzinfo=UTC))
    later = declare().using(delay=1).using(run_at=datetime(2030, 1, 1, tzinfo=UTC), delay=None)
    assert later.options["delay"] is None


@override_settings(USE_TZ=True)
def test_a_naive_instant_is_refused_under_use_tz() -> None:
    with pytest.raises(InvalidJob, match="aware datetime"):
        declare().using(run_at=datetime(2030, 1, 1))


@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_without_use_tz_a_naive_instant_is_local_time() -> None:
    plan = plan_of(declare(), run_at=datetime(2030, 1, 1, 12))
    assert plan.run_at == datetime(2030, 1, 1, 11, tzinfo=UTC)


@override_settings(PGJOBS={"RUN_AT_CEILING_DAYS": 50})
def test_how_far_ahead_is_a_setting() -> None:
    """Row A21 with Antikythera's 50 days."""
    now = datetime.now(UTC)
    assert declare().using(run_at=now + timedelta(days=50)).options
    assert declare().using(delay=timedelta(days=50)).options
    with pytest.raises(InvalidJob, match="at most 50 days"):
        declare().using(run_at=now + timedelta(days=50, minutes=1))
    with pytest.raises(InvalidJob, match="at most 50 days"):
        declare().using(delay=timedelta(days=50, milliseconds=1))


def test_a_lazy_queue_is_no_text() -> None:
    with pytest.raises(InvalidJob, match="queue must be"):
        declare().using(queue=SimpleLazyObject(lambda: 3))  # type: ignore[arg-type]


def test_options_see_settings_when_they_are_used() -> None:
    bound = declare().using(priority=1)
    with override_settings(PGJOBS={"DEFAULT_MAX_ATTEMPTS": 2}):
        assert bound._plan().max_attempts == 2
        assert bound._plan().conf is get_conf()
    assert bound._plan().max_attempts == 5


def test_options_made_before_a_ceiling_sank_are_refused_when_used() -> None:
    bound = declare().using(max_attempts=50)
    with override_settings(PGJOBS={"MAX_ATTEMPTS_CEILING": 10}), pytest.raises(InvalidJob, match="between 1 and 10"):
        bound.register(7)


@pytest.mark.parametrize("row", [7, [7], "7", None])
def test_a_row_is_a_mapping_or_a_tuple(row: Any) -> None:
    with pytest.raises(InvalidJob, match="row 1: must be a mapping"):
        declare().register_many([(1,), row])


def test_a_row_that_does_not_fit_is_named() -> None:
    with pytest.raises(TypeError, match=r"row 1: shop\.pay\(\) missing"):
        declare(name="shop.pay").register_many([(1,), {}])
