"""Most jobs run without a context: nobody asks for it. Whoever does finds the same job, and the job ends the same."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import override_settings

from django_pgjobs import Abandon, Cancel, JobContext, Snooze, current_context, signals
from django_pgjobs import decisions as decide
from django_pgjobs import job as define
from django_pgjobs.context import Reporter
from django_pgjobs.decisions import Decision
from django_pgjobs.execution import attempt
from django_pgjobs.execution.prepared import Prepared, RunControl
from django_pgjobs.logs import JobFilter
from tests.plugins.fix_db import patience
from tests.unit.worker_fakes import claimed

asked: list[RunControl] = []
"""The jobs whose contexts have been made."""

reported: list[tuple[float, float | None, str]] = []


class Unstorable:
    """Nothing JSON knows."""


ENDS: dict[str, Any] = {
    "none": None,
    "number": 7,
    "text": "seven",
    "nested": {"a": [1, 2.5]},
    "unstorable": Unstorable(),
    "failure": ValueError("no"),
    "exit": SystemExit(3),
    "snooze": Snooze(5),
    "cancel": Cancel("why"),
    "abandon": Abandon("why"),
}


def end(how: str) -> Any:
    if isinstance(ENDS[how], BaseException):
        raise ENDS[how]
    return ENDS[how]


@define(name="lanes.plain")
def plain(how: str) -> Any:
    return end(how)


@define(name="lanes.takes_context", takes_context=True)
def takes_context(context: JobContext, how: str) -> Any:
    assert context is current_context()
    return end(how)


@define(name="lanes.asks")
def asks(how: str) -> Any:
    assert current_context() is current_context()
    return end(how)


steps: list[Callable[[], None]] = []


@define(name="lanes.steps")
def takes_steps(how: str) -> None:
    for step in steps:
        step()


def transparent(run: Callable[[JobContext], Any]) -> Callable[[JobContext], Any]:
    """A middleware that looks and changes nothing."""

    def inner(context: JobContext) -> Any:
        assert context is current_context()
        return run(context)

    return inner


def reporter_of(control: RunControl) -> Reporter:
    asked.append(control)
    return lambda *report: reported.append(report)


def prepared(definition: Any = plain, how: str = "none", **facts: Any) -> Prepared:
    known: dict[str, Any] = {
        "claim_id": "c1a1", "name": definition.name, "max_attempts": 5, "timeout_seconds": None, "queue": "mail",
        "payload": f'{{"args": ["{how}"], "kwargs": {{}}}}', "run_at": datetime(1970, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    ready = attempt.prepare(claimed(12, **{**known, **facts}), reporter_of, RunControl())
    assert isinstance(ready, Prepared)
    return ready


def perform(definition: Any = plain, how: str = "none", **facts: Any) -> Decision:
    return attempt.run_here(prepared(definition, how, **facts))


def told(decision: Decision) -> tuple[Any, ...]:
    """A decision without what differs by chance or by the function: the delay of a backoff, the traceback."""
    failure = getattr(decision, "failure", None)
    error = failure and (failure.kind, failure.message, failure.chain)
    kind = type(decision)
    if kind is decide.Retried:
        return kind, error, getattr(decision, "cause", None)
    return kind, error, getattr(decision, "result", None), getattr(decision, "reason", None)


@pytest.fixture(autouse=True)
def nobody_asked() -> None:
    asked.clear()
    reported.clear()
    steps.clear()


@contextmanager
def watched() -> Iterator[list[JobContext]]:
    """Receivers of both signals within the block."""
    seen: list[JobContext] = []

    def receiver(sender: Any, context: JobContext, **facts: Any) -> None:
        seen.append(context)

    for signal in (signals.job_started, signals.attempt_ended):
        signal.connect(receiver, weak=False)
    yield seen
    for signal in (signals.job_started, signals.attempt_ended):
        signal.disconnect(receiver)


@pytest.mark.parametrize("how", ["none", "number", "text", "nested"])
def test_a_plain_job_makes_no_context(how: str) -> None:
    assert isinstance(perform(how=how), decide.Succeeded)
    assert asked == []


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("definition", [takes_context, asks], ids=["takes context", "asks for it"])
def test_a_job_with_a_context_ends_as_one_without(how: str, definition: Any) -> None:
    """A1–A3: and however often it asks, it gets one."""
    decision = perform(definition, how)
    assert len(asked) == 1
    assert told(decision) == told(perform(plain, how))


@pytest.mark.parametrize("how", ENDS)
def test_a_job_in_middleware_ends_as_one_without(how: str) -> None:
    with override_settings(PGJOBS={"MIDDLEWARE": [f"{__name__}.transparent"]}):
        inside = told(perform(how=how))
    assert inside == told(perform(how=how))


@pytest.mark.parametrize("how", ENDS)
def test_a_watched_job_ends_as_one_that_nobody_watches(how: str) -> None:
    """C59, C60: both signals get the context of the job."""
    with watched() as seen:
        decision = perform(how=how)
    first, last = seen
    assert first is last
    assert (first.id, first.name, first.queue) == (12, "lanes.plain", "mail")
    assert told(decision) == told(perform(how=how))


def test_the_lines_of_a_job_without_a_context_name_it(caplog: pytest.LogCaptureFixture) -> None:
    """C61: START, END, and what the job logs itself."""
    facts = 'name=lanes.steps job=12 attempt=2/5 claim=c1a1 queue=mail description="for anna"'
    stamped = JobFilter()
    caplog.handler.addFilter(stamped)
    steps.append(lambda: logging.getLogger("shop").warning("from the job"))
    try:
        caplog.set_level(logging.INFO, "django_pgjobs.jobs")
        perform(takes_steps, attempt=2, description="for anna")
    finally:
        caplog.handler.removeFilter(stamped)
    start, own, ended = caplog.records
    assert start.getMessage() == f"START 2nd attempt to run {facts} run_at=1970-01-01T00:00:00.000+00:00"
    assert ended.getMessage().startswith("END outcome=succeeded seconds=")
    assert ended.getMessage().endswith(facts)
    for record in (start, own, ended):
        known = record.__dict__
        assert (known["job"], known["attempt"], known["queue"], known["claim"]) == (12, 2, "mail", "c1a1")
    assert asked == [], "a line needs the facts only"


def test_whoever_asks_late_finds_what_the_job_came_with() -> None:
    """A64: its headers, its start, its reporter."""
    found: list[JobContext] = []

    def ask() -> None:
        context = current_context()
        context.progress(1, 2, "half")
        context.headers["mine"] = 1
        found.append(context)

    steps.append(ask)
    ready = prepared(takes_steps, headers='{"trace": "t1"}')
    began = ready.began
    attempt.run_here(ready)
    (context,) = found
    assert context is ready.context
    assert context.headers == {"trace": "t1", "mine": 1}
    assert context.started == began
    assert reported == [(1, 2, "half")]


def test_threads_of_a_job_that_ask_at_the_same_time_get_the_same_context() -> None:
    """Two would report progress twice as often, and one would not see what is set on the other."""
    both = threading.Barrier(2, timeout=patience(20))
    ready = prepared()

    def made_by_both(control: RunControl) -> Reporter:
        both.wait()
        return reporter_of(control)

    ready.reporter_of = made_by_both
    found: list[JobContext] = []
    asking = [threading.Thread(target=lambda: found.append(ready.context)) for _ in range(2)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(asked) == 2
    assert found[0] is found[1] is ready.context


def test_outside_a_job_there_is_no_context() -> None:
    perform(asks)
    with pytest.raises(RuntimeError, match="No job is running"):
        current_context()
