"""Callbacks of attempts, and the middleware around bodies and callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import override_settings

from django_pgjobs import JobContext, Snooze, current_context
from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Decision, Failure
from django_pgjobs.execution import attempt
from django_pgjobs.execution.prepared import Prepared
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.serialization.payload import encode_result
from django_pgjobs.states import CALLBACK_OF
from django_pgjobs.store.claiming import ClaimedJob
from tests.unit.test_attempt import (  # noqa: F401 (fixtures)
    adoes,
    awith_callbacks,
    does,
    failure,
    nothing_said,
    perform,
    prepare,
    said,
    taken,
    with_callbacks,
)

# Callbacks


@pytest.mark.parametrize("ending", ["abandoned", "cancelled"])
def test_a_callback_gets_the_context_and_the_arguments(ending: str) -> None:
    """A5: with what ended the job, even when no attempt is left."""
    facts: dict[str, Any] = {"ending": ending, "attempt": 6, "kwargs": {"text": "y"}}
    assert perform(with_callbacks, 7, **facts, error="ValueError: no") == decide.Succeeded()
    assert perform(with_callbacks, 7, **facts) == decide.Succeeded()
    assert said == [(Failure("", "ValueError: no"), 7, "y", True), (None, 7, "y", True)]


@pytest.mark.parametrize("ending", ["abandoned", "cancelled"])
def test_without_a_callback_nothing_happens(ending: str) -> None:
    """A8."""
    assert perform(does, "value", ending=ending) == decide.Succeeded()
    assert said == []


def test_an_async_callback_runs(caplog: pytest.LogCaptureFixture) -> None:
    assert perform(awith_callbacks, ending="abandoned") == decide.Succeeded()
    assert said == [True]
    assert [record for record in caplog.records if record.name != "asyncio"] == []  # it says if the machine is slow


@pytest.mark.parametrize(("definition", "ending"), [(awith_callbacks, "cancelled"), (with_callbacks, "abandoned")])
def test_an_error_in_a_callback_is_logged_and_changes_nothing(
    definition: JobDefinition[..., Any], ending: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A7, C28."""
    monkeypatch.setattr(with_callbacks, "_on_abandon_func", lambda context, n: 1 / 0)
    arguments = (7,) if definition is with_callbacks else ()
    assert perform(definition, *arguments, ending=ending) == decide.Succeeded()
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info
    assert record.getMessage().startswith(f"callback failed callback={CALLBACK_OF[ending]} name={definition.name} ")


def test_callbacks_in_the_loop_of_the_executor() -> None:
    """There the event loop is the caller's; the callback gets a thread."""

    async def in_loop(job: ClaimedJob) -> Decision:
        prepared = prepare(job)
        assert isinstance(prepared, Prepared)
        return await attempt.arun(prepared)

    assert async_to_sync(in_loop)(taken(awith_callbacks, ending="abandoned")) == decide.Succeeded()
    assert async_to_sync(in_loop)(taken(with_callbacks, 7, ending="abandoned")) == decide.Succeeded()
    assert async_to_sync(in_loop)(taken(adoes, "text")) == decide.Succeeded('"text"')
    assert said == [True, (None, 7, "x", True), "text"]


# Middleware


def outer(run: Callable[[JobContext], Any]) -> Callable[[JobContext], Any]:
    def layer(context: JobContext) -> Any:
        said.append(("in", context.id, current_context() is context))
        try:
            return [run(context), "outer"]
        finally:
            said.append(("out", context.id))

    return layer


def failing(run: Callable[[JobContext], Any]) -> Callable[[JobContext], Any]:
    def layer(context: JobContext) -> Any:
        run(context)
        raise OSError("after the body")

    return layer


def settled(run: Callable[[JobContext], Any]) -> Callable[[JobContext], Any]:
    def layer(context: JobContext) -> Any:
        try:
            return run(context)
        except ValueError as error:
            raise Snooze(5) from error

    return layer


def layers(*names: str) -> Any:
    return override_settings(PGJOBS={"MIDDLEWARE": [f"{__name__}.{name}" for name in names]})


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
def test_middleware_is_around_the_body(definition: JobDefinition[..., Any]) -> None:
    with layers("outer"):
        assert perform(definition, "text") == decide.Succeeded(encode_result(["text", "outer"], 100))
        assert said == [("in", 12, True), "text", ("out", 12)]
        assert isinstance(perform(definition, "value"), decide.Retried)
        assert said[3:] == [("in", 12, True), "value", ("out", 12)]


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
def test_middleware_may_fail_or_settle_an_attempt(definition: JobDefinition[..., Any]) -> None:
    with layers("failing"):
        assert failure(perform(definition, "text")).summary == "OSError: after the body"
    with layers("settled"):
        assert perform(definition, "value") == decide.Snoozed(5)


def test_middleware_is_not_around_callbacks() -> None:
    with layers("failing"):
        assert perform(with_callbacks, 7, ending="abandoned") == decide.Succeeded()


def test_middleware_that_cannot_be_loaded_is_a_failure() -> None:
    """The worker's checks say so at its start; here it must not end the thread."""
    with layers("no_such"):
        assert "no_such" in failure(perform(does)).message
