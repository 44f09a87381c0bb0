"""What is told of an attempt: log lines, signals, and the live exception, in the thread of the job."""

from __future__ import annotations

import gc
import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_pgjobs import Abandon, Backoff, Cancel, Snooze, clock, signals
from django_pgjobs import decisions as decide
from django_pgjobs import job as define
from django_pgjobs.decisions import Decision
from django_pgjobs.execution import attempt, events
from django_pgjobs.execution.prepared import Prepared, RunControl
from tests.unit.worker_fakes import claimed


class Payload:
    """Something a failing job holds."""


kept: list[weakref.ref[Payload]] = []


@define(name="events.does", backoff=Backoff(5))
def does(what: str) -> None:
    if what == "holds":
        held = Payload()
        kept.append(weakref.ref(held))
    if what != "ends":
        raise {
            "fails": ValueError("no"),
            "holds": ValueError("no"),
            "snoozes": Snooze(5),
            "cancels": Cancel("why"),
            "abandons": Abandon("why"),
        }[what]


@does.on_abandon
def regrets(context: object, what: str) -> None: ...


hand = [100.0]
"""Where the clock stands in a test that moves it."""


@define(name="events.takes")
def takes(seconds: str) -> None:
    hand[0] += float(seconds)


@define(name="events.adoes", backoff=Backoff(5))
async def adoes(what: str) -> None:
    does(what)


def perform(what: str, definition: Any = does, **facts: Any) -> Decision:
    known: dict[str, Any] = {
        "claim_id": "c1a1", "name": definition.name, "max_attempts": 5, "timeout_seconds": None, "queue": "mail",
        "payload": f'{{"args": ["{what}"]}}',
    }  # fmt: skip
    prepared = attempt.prepare(claimed(12, **{**known, **facts}), lambda _: lambda *report: None, RunControl())
    assert isinstance(prepared, Prepared)
    return attempt.run_here(prepared)


@pytest.fixture
def listen() -> Iterator[Callable[[Any, Callable[..., Any]], None]]:
    """Connect a receiver for the time of the test."""
    connected: list[tuple[Any, Callable[..., Any]]] = []

    def connect(signal: Any, receiver: Callable[..., Any]) -> None:
        signal.connect(receiver, weak=False)
        connected.append((signal, receiver))

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


FACTS = "name=events.does job=12 attempt=1/5 claim=c1a1 queue=mail"


# Log lines


@pytest.mark.parametrize(
    ("what", "level", "line"),
    [
        ("fails", "WARNING", f"attempt failed, retry in 5.0 s {FACTS}: no"),
        ("abandons", "ERROR", f"job abandoned {FACTS}: why"),
        ("snoozes", "INFO", f"attempt ended {FACTS}: django_pgjobs.exceptions.Snooze: 5.0"),
        ("cancels", "INFO", f"attempt ended {FACTS}: django_pgjobs.exceptions.Cancel: why"),
    ],
)
def test_an_end_is_logged_with_its_cause(what: str, level: str, line: str, caplog: pytest.LogCaptureFixture) -> None:
    """P38: a retry with its number and delay, the final failure as an error, both with the live exception."""
    caplog.set_level(logging.WARNING, "django_pgjobs.jobs")
    caplog.set_level(logging.INFO, "django_pgjobs")
    perform(what)
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == (level, line)
    assert bool(record.exc_info) is (level != "INFO")


def test_the_last_failure_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    perform("fails", attempt=5)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", f"job abandoned {FACTS.replace('1/5', '5/5')}: no")
    ]


def test_the_end_of_an_attempt_says_how_long_it_took(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A70: from before its body to after it, by the clock that no one sets."""
    monkeypatch.setattr(clock, "monotonic", lambda: hand[0])
    caplog.set_level(logging.INFO, "django_pgjobs.jobs")
    perform("1.25", takes)
    assert "END outcome=succeeded seconds=1.2500 " in caplog.text


@pytest.mark.parametrize("description", ["", "for anna"])
def test_the_description_is_in_every_line(description: str, caplog: pytest.LogCaptureFixture) -> None:
    """A9, A10: and nothing in its place if there is none."""
    caplog.set_level(logging.INFO, "django_pgjobs.jobs")
    perform("fails", description=description)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all((' description="for anna"' in line) is bool(description) for line in lines)


@pytest.mark.parametrize(
    ("number", "again"), [(1, ""), (2, "2nd attempt to "), (3, "3rd attempt to "), (11, "11th attempt to ")]
)
def test_the_ordinal_is_named_from_the_second_on(number: int, again: str, caplog: pytest.LogCaptureFixture) -> None:
    """A70, P21: with the instant from which it was to run."""
    caplog.set_level(logging.INFO, "django_pgjobs.jobs")
    perform(
        "ends", attempt=number, max_attempts=20, run_at=datetime(2026, 3, 1, 8, tzinfo=timezone(timedelta(hours=1)))
    )
    start, end = [record.getMessage() for record in caplog.records]
    assert start.startswith(f"START {again}run name=events.does job=12 attempt={number}/20 ")
    assert start.endswith(" queue=mail run_at=2026-03-01T07:00:00.000+00:00")
    assert end.startswith("END outcome=succeeded seconds=")


def test_ordinals() -> None:
    words = [events.ordinal(n) for n in (1, 2, 3, 4, 10, 11, 12, 13, 20, 21, 22, 101, 111, 112)]
    expected = "1st 2nd 3rd 4th 10th 11th 12th 13th 20th 21st 22nd 101st 111th 112th"
    assert " ".join(words) == expected


@pytest.mark.parametrize(
    ("what", "outcome", "reason"),
    [
        ("ends", "succeeded", ""),
        ("fails", "retried", ": ValueError: no"),
        ("abandons", "abandoned", ": django_pgjobs.exceptions.Abandon: why"),
        ("snoozes", "snoozed", ": django_pgjobs.exceptions.Snooze: 5.0"),
        ("cancels", "cancelled", ": django_pgjobs.exceptions.Cancel: why"),
    ],
)
@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
def test_the_outcome_is_a_word(
    what: str, outcome: str, reason: str, definition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A70, C61: with a duration of the monotonic clock, and with the reason of a failure."""
    caplog.set_level(logging.INFO, "django_pgjobs.jobs")
    perform(what, definition)
    # asyncio says how long a step of a task took, if the machine is slow.
    [*_, last] = [record.getMessage() for record in caplog.records if record.name == "django_pgjobs.jobs"]
    about = FACTS.replace("events.does", definition.name)
    line = rf"END outcome={outcome} seconds=\d+\.\d{{4}} {re.escape(about + reason)}"
    assert re.fullmatch(line, last)


def test_lines_per_job_cost_nothing_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "django_pgjobs.jobs")
    perform("ends")
    assert caplog.records == []


# Signals


@pytest.mark.parametrize("definition", [does, adoes], ids=["sync", "async"])
@pytest.mark.parametrize("what", ["ends", "fails", "snoozes"])
def test_an_attempt_is_told_with_its_live_exception(definition: Any, what: str, listen: Callable[..., None]) -> None:
    """C19, C59, C60: started before the body, ended with decision and exception before anything is stored."""
    heard: list[Any] = []
    listen(signals.job_started, lambda sender, signal, **facts: heard.append((sender, facts)))
    listen(signals.attempt_ended, lambda sender, signal, **facts: heard.append((sender, facts)))
    decision = perform(what, definition)
    (sender, started), (other, ended) = heard
    assert sender is other is definition
    assert list(started) == ["context"]
    assert started["context"] is ended["context"]
    assert ended["decision"] == decision
    assert isinstance(ended["exception"], {"ends": type(None), "fails": ValueError, "snoozes": Snooze}[what])


def test_signals_are_sent_in_the_jobs_thread(listen: Callable[..., None]) -> None:
    heard: list[int] = []
    listen(signals.job_started, lambda **facts: heard.append(threading.get_ident()))
    listen(signals.attempt_ended, lambda **facts: heard.append(threading.get_ident()))
    perform("fails")
    assert heard == [threading.get_ident()] * 2


def test_an_error_in_a_receiver_changes_nothing(listen: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    listen(signals.job_started, lambda **facts: 1 / 0)
    listen(signals.attempt_ended, lambda **facts: 1 / 0)
    assert perform("ends") == decide.Succeeded()


def test_callbacks_are_no_attempts(listen: Callable[..., None]) -> None:
    heard: list[Any] = []
    listen(signals.job_started, lambda **facts: heard.append(facts))
    listen(signals.attempt_ended, lambda **facts: heard.append(facts))
    perform("fails", ending="abandoned")
    assert heard == []


def test_durable_writes_are_told_to_whom_they_concern(listen: Callable[..., None]) -> None:
    """C59, C62, C63, C64: each by its own signal; an unknown name has no sender."""
    assert events.interest() == set()
    heard: list[Any] = []
    for signal in (signals.job_finished, signals.job_retried, signals.lease_lost):
        listen(signal, lambda sender, signal, **facts: heard.append((signal, sender, facts)))
    assert events.interest() == {"succeeded", "cancelled", "abandoned", "retried", "lost"}
    events.stored(events.FINISHED, {"name": "events.does", "job_id": 1})
    events.stored(events.RETRIED, {"name": "events.does", "job_id": 2})
    events.stored(events.LOST, {"name": "no.such", "job_id": 3})
    assert heard == [
        (signals.job_finished, does, {"name": "events.does", "job_id": 1, "by_worker": True}),
        (signals.job_retried, does, {"name": "events.does", "job_id": 2}),
        (signals.lease_lost, None, {"name": "no.such", "job_id": 3}),
    ]


def test_what_a_failed_job_held_is_freed_at_once() -> None:
    """No cycle of frame, traceback and exception keeps its data until the collector comes by."""
    logging.getLogger("django_pgjobs").disabled = True
    gc.disable()
    try:
        kept.clear()
        perform("holds")
        assert [reference() for reference in kept] == [None]
    finally:
        gc.enable()
        logging.getLogger("django_pgjobs").disabled = False
