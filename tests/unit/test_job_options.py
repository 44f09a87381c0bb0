"""What a job's options may be: callbacks, retries, and those of a registration; and its arguments."""

from __future__ import annotations

import logging
import math
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.test import override_settings
from django.utils.functional import SimpleLazyObject

from django_pgjobs import Backoff, JobContext
from django_pgjobs.conf import get_conf
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob, UnreadablePayload
from django_pgjobs.jobs import BoundJob, JobDefinition
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


def any_name(context: JobContext, **names: str) -> None: ...


# Callbacks


def test_callbacks_are_returned_unchanged_and_kept() -> None:
    """Rows A5, A8, A9, A12: all three are optional."""
    definition = declare()
    assert (definition._on_abandon_func, definition._on_cancel_func) == (None, None)
    assert definition.on_abandon(context_and_argument) is context_and_argument
    assert definition.on_cancel(context_and_argument) is context_and_argument
    assert definition._on_abandon_func is context_and_argument
    assert definition._on_cancel_func is context_and_argument


def test_a_second_callback_is_refused() -> None:
    definition = declare()
    definition.on_abandon(context_and_argument)
    with pytest.raises(InvalidJob, match="on_abandon is set already"):
        definition.on_abandon(context_and_argument)


def test_a_second_undo_is_refused() -> None:
    definition = declare()
    with registry.isolated():
        undo = definition.undo()(context_and_argument)
        with pytest.raises(InvalidJob, match="undo is set already"):
            definition.undo(name="other.undo")(any_name)
    assert definition._undo_definition is undo


def test_a_callback_is_no_generator_function() -> None:
    def yields(context: Any, user_id: int, name: str = "") -> Any:
        yield user_id

    for decorate in (declare().on_abandon, declare().on_cancel, declare().on_success):
        with pytest.raises(InvalidJob, match="calling a generator function runs none of its body"):
            decorate(yields)


@pytest.mark.parametrize(
    "callback",
    [one_argument, no_argument, lambda context, name: None, lambda context, user_id, more: None, 3],
    ids=named,
)
def test_a_callback_takes_the_context_and_the_jobs_arguments(callback: Any) -> None:
    definition = declare()
    with pytest.raises(InvalidJob, match="on_cancel"):
        definition.on_cancel(callback)
    assert definition._on_cancel_func is None


@pytest.mark.parametrize("callback", [lambda context, **named: None, lambda context, user_id, more=1: None, only_rest])
def test_a_callback_may_take_more(callback: Any) -> None:
    definition = declare(only_rest if callback is only_rest else one_argument)
    assert definition.on_abandon(callback) is callback


@pytest.mark.parametrize(
    ("description", "words"),
    [
        (async_one_argument, "description must not be an async function"),
        (no_argument, "description 'no_argument' must take the job's arguments"),
        ("of {order}", "description names no argument: 'order' in 'of {order}'"),
        ("of {", "description is no format string"),
        ("x" * 201, "description must be text of at most 200 characters"),
        ("a\nb", "description must be printable"),
        (7, "description must be text"),
    ],
)
def test_a_description_is_a_text_a_template_or_a_callable_of_the_arguments(description: Any, words: str) -> None:
    with pytest.raises(InvalidJob, match=re.escape(words)):
        declare(description=description)


def test_a_description_shows_no_sensitive_argument() -> None:
    with pytest.raises(InvalidJob, match="description shows the sensitive argument 'user_id'"):
        declare(description="of {user_id}", sensitive=["user_id"])


def test_a_description_is_made_of_the_arguments() -> None:
    assert declare(description="a {{b}}").description == "a {b}"
    made = declare(description="{user_id} {user_id:03d}")._describe_func
    assert made is not None
    assert made(7) == "7 007"
    assert declare(description="{user_id}").description == ""


# Retries


def test_the_delay_grows_by_the_backoff() -> None:
    """Rows A32, A34, A35, C34."""
    definition = declare(backoff=Backoff(10, factor=2))
    assert [definition._retry_delay(OSError(), n) for n in (1, 2, 3)] == [10, 20, 40]
    assert [definition._default_delay(n) for n in (1, 2, 3)] == [10, 20, 40]
    assert [declare(backoff=Backoff(10))._retry_delay(OSError(), n) for n in (1, 2)] == [10, 10]


def test_the_default_delay_is_jittered() -> None:
    assert all(13.5 <= declare()._default_delay(1) <= 16.5 for _ in range(20))


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
    assert definition._retry_delay(error, 1) == (7 if again else None)


@pytest.mark.parametrize(("asked", "delay"), [(3, 3.0), (timedelta(minutes=1), 60.0), (None, None), (0, 0.0)])
def test_a_callable_backoff_answers_seconds_timedelta_or_none(asked: Any, delay: float | None) -> None:
    seen: list[tuple[BaseException, int]] = []

    def backoff(error: BaseException, attempt: int) -> Any:
        seen.append((error, attempt))
        return asked

    error = OSError()
    assert declare(backoff=backoff)._retry_delay(error, 2) == delay
    assert seen == [(error, 2)]


def test_a_callable_backoff_cannot_leave_the_calendar() -> None:
    assert declare(backoff=lambda error, attempt: 1e300)._retry_delay(OSError(), 1) == 3650 * 86400


@pytest.mark.parametrize("answer", [-1, math.nan, "soon", ZeroDivisionError()])
def test_a_broken_backoff_falls_back_to_the_default(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    def backoff(error: BaseException, attempt: int) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with caplog.at_level(logging.ERROR, "django_pgjobs"):
        delay = declare(backoff=backoff)._retry_delay(OSError(), 1)
    assert delay is not None
    assert 13.5 <= delay <= 16.5
    assert "backoff failed" in caplog.text


def test_after_a_kill_there_is_no_exception_to_ask_about() -> None:
    assert 13.5 <= declare(backoff=lambda error, attempt: 1 / 0)._default_delay(1) <= 16.5


@pytest.mark.parametrize("option", ["retry_on", "give_up_on"])
def test_a_broken_rule_means_retry(option: str, caplog: pytest.LogCaptureFixture) -> None:
    definition = declare(backoff=Backoff(7), **{option: lambda error: 1 / 0})
    with caplog.at_level(logging.ERROR, "django_pgjobs"):
        assert definition._retry_delay(OSError(), 1) == 7
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
    assert definition._load('{"args": [7], "kwargs": {}}') == ([7], {})
    assert definition._load('{"args": [], "kwargs": {"user_id": 7}}') == ([], {"user_id": 7})
    with pytest.raises(UnreadablePayload, match=r"do not fit: shop\.pay\(\) missing 1 required"):
        definition._load('{"args": [], "kwargs": {}}')
    with pytest.raises(UnreadablePayload):
        definition._load("no json")


# Options of a registration


def plan_of(definition: JobDefinition[..., Any], **options: Any) -> Any:
    return definition._plan.changed(definition.using(**options).options)


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
    assert definition._plan.queue == "default"
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
        ({"uniqe": "x"}, "unknown option 'uniqe' (did you mean 'unique'?)"),
        ({"unique": 7}, "unique must be a text, or a callable"),
        ({"unique": str}, "unique must be a text, or a callable"),
        ({"unique": ""}, "unique must be 1 to 200 printable characters, not ''"),
        ({"idempotency_key": "x" * 201}, "idempotency_key must be 1 to 200 printable characters"),
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
        ({"on_crash": "ignore"}, "on_crash must be 'retry' or 'abandon', not 'ignore'"),
        ({"memory": 0}, "memory must be an integer from 1 to 1000000000, not 0"),
        ({"memory": -5}, "memory must be an integer from 1 to 1000000000, not -5"),
        ({"memory": "512"}, "memory must be an integer from 1 to 1000000000, not '512'"),
        ({"memory": True}, "memory must be an integer from 1 to 1000000000, not True"),
        ({"memory": 1.5}, "memory must be an integer from 1 to 1000000000, not 1.5"),
        ({"timeout": (5, 5)}, "needs a soft limit that is shorter than the hard one"),
        ({"timeout": (9, 5)}, "needs a soft limit that is shorter than the hard one"),
        ({"timeout": (None, 5)}, "needs a soft limit that is shorter than the hard one"),
        ({"timeout": (1, 2, 3)}, "timeout must be one duration or a pair"),
        ({"timeout": ("a", 2)}, "timeout must be seconds or a timedelta"),
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


@override_settings(PGJOBS={"BOUNDS": {"ahead_seconds": 50 * 86_400}})
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
        assert bound._planned().max_attempts == 2
        assert bound._planned().conf is get_conf()
    assert bound._planned().max_attempts == 5


def test_options_made_before_a_ceiling_sank_are_refused_when_used() -> None:
    bound = declare().using(max_attempts=50)
    with (
        override_settings(PGJOBS={"BOUNDS": {"max_attempts": 10}}),
        pytest.raises(InvalidJob, match="between 1 and 10"),
    ):
        bound.register(7)


@pytest.mark.parametrize("row", [7, [7], "7", None])
def test_a_row_is_a_mapping_or_a_tuple(row: Any) -> None:
    with pytest.raises(InvalidJob, match="row 1: must be a mapping"):
        declare().register_many([(1,), row])


def test_a_row_that_does_not_fit_is_named() -> None:
    with pytest.raises(TypeError, match=r"row 1: shop\.pay\(\) missing"):
        declare(name="shop.pay").register_many([(1,), {}])


@pytest.mark.parametrize("value", [7, None, "x" * 201, "two\nlines", "bell\a", "\u202ebackwards", b"bytes"])
def test_a_description_is_printable_and_short(value: Any) -> None:
    """Refused where it was written; None means not given in ``using`` only."""
    with pytest.raises(InvalidJob, match=r"description must be (text of at most 200 characters|printable)"):
        declare(description=value)
    if value is not None:
        with pytest.raises(InvalidJob, match="description must be"):
            declare().using(description=value)


def test_a_description_may_have_what_languages_need() -> None:
    assert declare(description="Kartenzahlung für 東京 · Grüße").description == "Kartenzahlung für 東京 · Grüße"
    assert declare().description == ""
