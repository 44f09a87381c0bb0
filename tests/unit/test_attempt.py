"""One attempt: what a body, its exceptions, its context and its callbacks come to. No database, no worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import override_settings

from django_pgjobs import Abandon, Backoff, Cancel, JobContext, Snooze, clock, current_context
from django_pgjobs import decisions as decide
from django_pgjobs import job as define
from django_pgjobs.decisions import Decision, Failure
from django_pgjobs.exceptions import (
    CancelRequested,
    DeadlinePassed,
    JobInterrupted,
    PgJobsError,
    UnstorableResult,
    WorkerStopping,
)
from django_pgjobs.execution import attempt, events
from django_pgjobs.execution.prepared import Prepared, RunControl
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.serialization.payload import decode_result, encode_payload, encode_result
from django_pgjobs.store.claiming import ClaimedJob
from django_pgjobs.values.backoff import LONGEST_SECONDS
from tests.plugins.fix_db import patience
from tests.unit.worker_fakes import claimed

said: list[Any] = []
reported: list[tuple[float, float | None, str]] = []


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    said.clear()
    reported.clear()


@define(name="attempt.does")
def does(what: Any = None) -> Any:
    """Return a value, raise an exception, or call what it is given."""
    said.append(what)
    return CHOICES[what]() if what in CHOICES else what


@define(name="attempt.adoes")
async def adoes(what: Any = None) -> Any:
    await asyncio.sleep(0)
    return does(what)


@define(name="attempt.in_context", takes_context=True, timeout=60, max_attempts=3)
def in_context(context: JobContext, n: int, *, again: int = 2) -> list[Any]:
    assert current_context() is context
    context.progress(n, 10, "going")
    return [n, again, context.attempt, context.remaining_attempts]


@define(name="attempt.ain_context", takes_context=True)
async def ain_context(context: JobContext, n: int) -> int:
    await asyncio.sleep(0)
    assert current_context() is context
    return n


@define(name="attempt.keeps_nothing", store_result=False)
def keeps_nothing(what: Any = None) -> object:
    return ValueError("returned, not raised")


@define(name="attempt.asked", backoff=lambda error, number: None if "stop" in str(error) else 7 * number)
def asked(text: str) -> None:
    raise ValueError(text)


@define(name="attempt.ruled", retry_on=OSError, give_up_on=FileNotFoundError, backoff=Backoff(5))
def ruled(kind: str) -> None:
    raise {"os": OSError("again"), "file": FileNotFoundError("never"), "value": ValueError("never")}[kind]


@define(name="attempt.broken_rules", backoff=lambda error, number: 1 / 0, retry_on=lambda error: bool(1 / 0))
def broken_rules() -> None:
    raise ValueError("the job's")


@define(name="attempt.with_callbacks")
def with_callbacks(n: int, text: str = "x") -> None: ...


@with_callbacks.on_abandon
def regrets(context: JobContext, n: int, text: str = "x") -> None:
    said.append((context.error, n, text, current_context() is context))


@with_callbacks.on_cancel
def forgets(context: JobContext, n: int, text: str = "x") -> None:
    said.append((context.error, n, text, current_context() is context))


@define(name="attempt.awith_callbacks")
async def awith_callbacks() -> None: ...


@awith_callbacks.on_abandon
async def aregrets(context: JobContext) -> None:
    await asyncio.sleep(0)
    said.append(current_context() is context)


@awith_callbacks.on_cancel
async def aforgets(context: JobContext) -> None:
    raise KeyboardInterrupt


class Unstorable:
    """Nothing JSON knows."""


def raises(error: Callable[..., BaseException], *args: Any) -> Callable[[], Any]:
    """A function that raises, each time anew."""

    def run() -> Any:
        raise error(*args)

    return run


class Stop(Cancel):
    """A subclass that says nothing to its parent."""

    def __init__(self, text: str) -> None:
        pass


CHOICES: dict[str, Callable[[], Any]] = {
    "value": raises(ValueError, "no"),
    "exit": raises(SystemExit, 3),
    "interrupt": raises(KeyboardInterrupt),
    "generator": raises(GeneratorExit),
    "stop": raises(StopIteration, "empty"),
    "group": raises(ExceptionGroup, "many", [ValueError("a"), OSError("b")]),
    "base": raises(BaseException, "base"),
    "assertion": raises(AssertionError, "wrong"),
    "recursion": lambda: CHOICES["recursion"](),
    "cancelled": raises(asyncio.CancelledError),
    "ours": raises(PgJobsError, "of ours"),
    "snooze": raises(Snooze, 90),
    "eternity": raises(Snooze, 1e300),
    "cancel": raises(Cancel, "changed\0"),
    "subclass": raises(Stop, "by a subclass"),
    "abandon": raises(Abandon, "pointless"),
    "unstorable": Unstorable,
    "unstorable error": raises(UnstorableResult, "by hand"),
}


def taken(definition: JobDefinition[..., Any], *args: Any, **facts: Any) -> ClaimedJob:
    """A claimed job of ``definition``; ``facts`` are fields of ``ClaimedJob``."""
    known: dict[str, Any] = {
        "claim_id": "c1a1", "name": definition.name, "max_attempts": 5, "timeout_seconds": None, "queue": "mail",
        "payload": encode_payload(args, facts.pop("kwargs", {}), 10**6),
    }  # fmt: skip
    return claimed(12, **{**known, **facts})


def asked_to_stop(by: str, reason: str) -> RunControl:
    control = RunControl()
    control.requested, control.by, control.reason = True, by, reason
    return control


def interrupted(kind: type[JobInterrupted]) -> RunControl:
    control = RunControl()
    control.interrupt = kind
    return control


def prepare(job: ClaimedJob, control: RunControl | None = None) -> Prepared | Decision:
    return attempt.prepare(job, lambda _: lambda *report: reported.append(report), control or RunControl())


def perform(
    definition: JobDefinition[..., Any], *args: Any, control: RunControl | None = None, **facts: Any
) -> Decision:
    """Run an attempt in this thread."""
    prepared = prepare(taken(definition, *args, **facts), control)
    return attempt.run_here(prepared) if isinstance(prepared, Prepared) else prepared


def failure(decision: Decision) -> Failure:
    assert isinstance(decision, decide.Retried | decide.Abandoned | decide.Cancelled)
    assert decision.failure is not None
    return decision.failure


# Success


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
@pytest.mark.parametrize(
    "value", [None, False, 0, "", [], {"a": [1, 2.5]}, "text", datetime(2024, 1, 1, tzinfo=UTC)], ids=repr
)
def test_any_value_is_a_success(definition: JobDefinition[..., Any], value: Any) -> None:
    """A1, A2, C31: also what is false; None needs no room."""
    CHOICES["given"] = lambda: value
    assert perform(definition, "given") == decide.Succeeded(None if value is None else encode_result(value, 1000))


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
def test_a_value_that_cannot_be_stored_abandons_a_strict_job(
    definition: JobDefinition[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work was done: never a retry, even with attempts left."""
    monkeypatch.setattr(definition, "strict_results", True)
    decision = perform(definition, "unstorable")
    assert isinstance(decision, decide.Abandoned)
    assert failure(decision).kind == "django_pgjobs.exceptions.UnstorableResult"
    assert "Unstorable" in decision.reason


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
def test_a_body_that_refuses_its_result_abandons_and_its_reason_is_second_in_the_chain(
    definition: JobDefinition[..., Any],
) -> None:
    """O7: a front that knows better what can be stored says so ``from`` the error that callers expect."""

    def refuses() -> None:
        raise UnstorableResult("the result cannot be stored") from TypeError("Unsupported type: set")

    CHOICES["refused"] = refuses
    decision = perform(definition, "refused")
    assert isinstance(decision, decide.Abandoned)
    assert failure(decision).kind == "django_pgjobs.exceptions.UnstorableResult"
    assert failure(decision).chain[1] == ("TypeError", "Unsupported type: set")


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
@pytest.mark.parametrize("limit", [2, 1000], ids=["large", "no JSON"])
def test_of_a_value_that_cannot_be_stored_the_result_says_why(
    definition: JobDefinition[..., Any], limit: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is done, so the job succeeds; the log says it, and not for each of a million jobs."""
    monkeypatch.setattr(events, "_logged", {})
    with override_settings(PGJOBS={"BOUNDS": {"result_bytes": limit}}):
        given = "unstorable" if limit > 2 else "text"
        decision = perform(definition, given)
        assert isinstance(decision, decide.Succeeded)
        assert perform(definition, given) == decision
    mark = json.loads(decision.result or "")
    assert "BOUNDS['result_bytes']" in mark["$unstored"] if limit == 2 else "Unstorable" in mark["$unstored"]
    assert decode_result(decision.result or "") is None
    [line] = [record.message for record in caplog.records if "result dropped" in record.message]
    assert line.startswith(f"result dropped, the job succeeds without one name={definition.name} job=12: ")
    assert "BOUNDS['result_bytes']" in line if limit == 2 else "Unstorable" in line


def test_an_unstorable_result_that_the_job_raises_is_an_error_even_so() -> None:
    assert isinstance(perform(does, "unstorable error"), decide.Abandoned)


def test_a_large_value_abandons_a_strict_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(does, "strict_results", True)
    with override_settings(PGJOBS={"BOUNDS": {"result_bytes": 2000}}):
        decision = perform(does, "x" * 3000)
    assert isinstance(decision, decide.Abandoned)
    assert "3002 bytes" in decision.reason


def test_a_value_nobody_wants_is_dropped() -> None:
    """A2: an exception that is returned, not raised, is a value like any other."""
    assert perform(keeps_nothing) == decide.Succeeded()


def test_the_context_tells_what_the_claim_said() -> None:
    """A64, C60."""
    headers = encode_result({"at": datetime(2024, 1, 1, tzinfo=UTC)}, 1000)
    prepared = prepare(
        taken(in_context, 1, attempt=2, max_attempts=3, timeout_seconds=60.0, headers=headers, description="for anna")
    )
    assert isinstance(prepared, Prepared)
    context = prepared.context
    assert (context.id, context.name, context.claim_id, context.queue) == (12, "attempt.in_context", "c1a1", "mail")
    assert (context.attempt, context.max_attempts, context.remaining_attempts) == (2, 3, 2)
    assert (context.description, context.timeout, context.error) == ("for anna", 60.0, None)
    assert context.headers == {"at": datetime(2024, 1, 1, tzinfo=UTC)}
    assert 0 <= clock.monotonic() - context.started < patience(10)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_job_gets_its_context(number: int) -> None:
    """A64: what remains counts down."""
    expected = json.dumps([7, 8, number, 4 - number], separators=(",", ":"))
    decision = perform(in_context, 7, kwargs={"again": 8}, attempt=number, max_attempts=3)
    assert isinstance(decision, decide.Succeeded)
    assert json.loads(decision.result or "") == json.loads(expected)
    assert reported == [(7, 10, "going")]


def test_an_async_job_gets_its_context() -> None:
    assert perform(ain_context, 7) == decide.Succeeded("7")


def test_the_context_ends_with_the_attempt() -> None:
    perform(in_context, 1)
    perform(does, "value")
    with pytest.raises(RuntimeError, match="No job is running"):
        current_context()


# Failure


FAMILIES = {
    "value": "ValueError",
    "exit": "SystemExit",
    "interrupt": "KeyboardInterrupt",
    "generator": "GeneratorExit",
    "group": "ExceptionGroup",
    "base": "BaseException",
    "assertion": "AssertionError",
    "recursion": "RecursionError",
    "cancelled": "asyncio.exceptions.CancelledError",
    "ours": "django_pgjobs.exceptions.PgJobsError",
}


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_is_raised_is_a_failure(definition: JobDefinition[..., Any], family: str) -> None:
    """A3, C27, C28: and this process goes on."""
    decision = perform(definition, family)
    assert isinstance(decision, decide.Retried)
    assert decision.cause == "failed"
    assert 15 * 0.9 <= decision.seconds <= 15 * 1.1
    assert failure(decision).kind == FAMILIES[family]
    traceback = failure(decision).traceback
    assert "Traceback (most recent call last):" in traceback.splitlines()[0]
    assert "django_pgjobs" not in traceback.splitlines()[1]


def test_an_iterator_that_ends_is_a_failure_in_both_colours() -> None:
    """Python itself turns it into a RuntimeError inside of a coroutine."""
    assert failure(perform(does, "stop")).kind == "StopIteration"
    assert failure(perform(adoes, "stop")).kind == "RuntimeError"


@pytest.mark.parametrize(("number", "expected"), [(1, 15), (2, 60), (3, 240), (4, 960)])
def test_the_delay_grows(number: int, expected: float) -> None:
    """C34: base × factor^(attempt − 1), jittered."""
    decision = perform(does, "value", attempt=number)
    assert isinstance(decision, decide.Retried)
    assert decision.seconds == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("limit", "runs"), [(1, 1), (3, 3)])
def test_attempts_are_charged_until_none_is_left(limit: int, runs: int) -> None:
    """C32, C33, P23, P26, A4: max_attempts counts all starts; the last failure ends the job and keeps its error."""
    decisions = [perform(does, "value", attempt=number, max_attempts=limit) for number in range(1, runs + 1)]
    assert [type(decision) for decision in decisions] == [decide.Retried] * (runs - 1) + [decide.Abandoned]
    last = decisions[-1]
    assert isinstance(last, decide.Abandoned)
    assert (last.reason, last.cause) == ("no attempts left", "failed")
    assert failure(last).summary == "ValueError: no"


def test_more_attempts_than_allowed_are_never_run() -> None:
    """C17, C18: after a kill on the last attempt."""
    decision = perform(does, "value", attempt=6, max_attempts=5)
    assert said == []
    assert isinstance(decision, decide.Abandoned)
    assert (decision.reason, decision.cause) == ("attempts exhausted", None)
    assert failure(decision).kind == "django_pgjobs.exceptions.AttemptsExhausted"


@pytest.mark.parametrize(
    ("definition", "argument", "expected"),
    [
        (asked, "go on", 14.0),
        (asked, "stop", None),
        (ruled, "os", 5.0),
        (ruled, "file", None),
        (ruled, "value", None),
    ],
)
def test_rules_are_asked_about_the_live_exception(
    definition: JobDefinition[..., Any], argument: str, expected: float | None
) -> None:
    """P22, with callables evaluated where the exception lives."""
    decision = perform(definition, argument, attempt=2)
    if expected is None:
        assert isinstance(decision, decide.Abandoned)
        assert decision.reason == "not to be retried"
        failure(decision)
    else:
        assert isinstance(decision, decide.Retried)
        assert decision.seconds == expected


def test_broken_rules_mean_a_retry(caplog: pytest.LogCaptureFixture) -> None:
    decision = perform(broken_rules)
    assert isinstance(decision, decide.Retried)
    assert failure(decision).summary == "ValueError: the job's"
    assert "retry rule failed name=attempt.broken_rules" in caplog.text
    assert "backoff failed name=attempt.broken_rules" in caplog.text


# What a job asks for


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
def test_what_a_job_asks_for(definition: JobDefinition[..., Any]) -> None:
    """On its last attempt as well: none of these is a failure to be counted."""
    last: dict[str, Any] = {"attempt": 5, "max_attempts": 5}
    assert perform(definition, "snooze", **last) == decide.Snoozed(90)
    assert perform(definition, "cancel", **last) == decide.Cancelled("changed\\0")
    assert perform(definition, "subclass") == decide.Cancelled("by a subclass")
    abandoned = perform(definition, "abandon")
    assert isinstance(abandoned, decide.Abandoned)
    assert abandoned.reason == "pointless"
    assert failure(abandoned).kind == "django_pgjobs.exceptions.Abandon"


def test_a_snooze_stays_on_the_calendar() -> None:
    """A year of five digits can be stored, and never read again."""
    assert perform(does, "eternity") == decide.Snoozed(LONGEST_SECONDS)


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
def test_any_end_but_success_of_a_cancelled_job_is_a_cancel(definition: JobDefinition[..., Any]) -> None:
    control = asked_to_stop("anna", "not needed")
    assert perform(definition, "fine", control=control) == decide.Succeeded('"fine"')
    assert perform(definition, "snooze", control=control) == decide.Cancelled()
    assert perform(definition, "abandon", control=control) == decide.Cancelled()
    assert perform(definition, "cancel", control=control) == decide.Cancelled("changed\\0")
    for family in ("value", "exit"):
        decision = perform(definition, family, control=control, attempt=5)
        assert isinstance(decision, decide.Cancelled)
        assert decision.cause == "failed"  # it was only asked
        failure(decision)


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("kind", "cause"), [(CancelRequested, "cancelled"), (DeadlinePassed, "timeout"), (WorkerStopping, "released")]
)
def test_the_attempt_of_a_cancelled_job_keeps_why_it_was_stopped(
    definition: JobDefinition[..., Any], kind: type[JobInterrupted], cause: str
) -> None:
    """C26: its job ends as cancelled, whatever it raises in the end."""
    control = interrupted(kind)
    control.requested = True
    decision = perform(definition, "value", control=control)
    assert isinstance(decision, decide.Cancelled)
    assert (decision.cause, failure(decision).summary) == (cause, "ValueError: no")


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
def test_a_failure_of_an_interrupted_job_is_laid_to_the_interrupt(definition: JobDefinition[..., Any]) -> None:
    """C26: whatever it raises in the end. What it says by its own word, or returns, stands."""
    late = interrupted(DeadlinePassed)
    retried = perform(definition, "value", control=late, attempt=1)
    assert isinstance(retried, decide.Retried)
    assert retried.cause == "timeout"
    given_up = perform(definition, "value", control=late, attempt=5)
    assert isinstance(given_up, decide.Abandoned)
    assert (given_up.reason, given_up.cause) == ("no attempts left", "timeout")
    handed_back = perform(definition, "value", control=interrupted(WorkerStopping), attempt=5)
    assert isinstance(handed_back, decide.Released)
    assert handed_back.failure is not None
    for control in (late, interrupted(WorkerStopping)):
        assert perform(definition, "fine", control=control) == decide.Succeeded('"fine"')
        assert isinstance(perform(definition, "snooze", control=control), decide.Snoozed)


def test_a_job_hears_of_the_wish_while_it_runs() -> None:
    control = RunControl()

    def notices() -> list[Any]:
        context = current_context()
        before = context.cancelled
        control.by, control.reason, control.requested = "anna", "not needed", True
        return [before, context.cancelled, context.cancelled_by, context.cancel_reason]

    CHOICES["given"] = notices
    decision = perform(does, "given", control=control)
    assert decision == decide.Succeeded(encode_result([False, True, "anna", "not needed"], 1000))


# What cannot be called


def test_an_unknown_job_is_parked() -> None:
    decision = perform(does, name="attempt.doess")
    assert isinstance(decision, decide.Parked)
    assert "attempt.doess" in decision.reason
    assert "attempt.does" in decision.reason
    assert decision.fingerprint == ""


@pytest.mark.parametrize("payload", [None, "", "{", "[]", '{"args": [1, 2]}', '{"args": [], "kwargs": {"no": 1}}'])
def test_an_unreadable_payload_is_parked_with_the_code_that_could_not_read_it(payload: str | None) -> None:
    decision = perform(does, payload=payload)
    assert isinstance(decision, decide.Parked)
    assert decision.fingerprint == does._fingerprint
    assert decision.reason
    assert said == []


def test_unreadable_headers_are_parked() -> None:
    assert isinstance(perform(does, headers="{"), decide.Parked)


def test_an_unreadable_payload_parks_on_abandon_and_skips_on_cancel(caplog: pytest.LogCaptureFixture) -> None:
    """A cancelled job cannot be parked; marked again for its callback it would go round for ever."""
    assert isinstance(perform(with_callbacks, payload="{", ending="abandoned"), decide.Parked)
    assert perform(with_callbacks, payload="{", ending="cancelled") == decide.Succeeded()
    assert "callback cannot run, the job ends without it callback=on_cancel name=attempt.with_callbacks " in caplog.text
