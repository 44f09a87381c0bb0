"""Listeners of ``job_finished``, which are always there and seldom want anything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_pgjobs import signals
from django_pgjobs.execution import events

Heard = list[tuple[str, Any]]


class Ear:
    """A listener, and the outcomes that it wants."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        self.asked = 0
        self.heard: Heard = []

    def wants(self, outcome: str) -> bool:
        self.asked += 1
        return outcome in self.wanted

    def hear(self, *, sender: Any, signal: Any, **fields: Any) -> str:
        assert signal is signals.job_finished
        self.heard.append((fields["outcome"], sender))
        return "heard"


@pytest.fixture
def ear() -> Iterator[Ear]:
    found = Ear()
    events.add_listener(found.hear, found.wants)
    yield found
    signals.job_finished.remove_listener(found.hear)


@pytest.fixture
def listen() -> Iterator[Callable[[Any], None]]:
    connected: list[Any] = []

    def connect(signal: Any) -> None:
        signal.connect(receive)
        connected.append(signal)

    def receive(**fields: Any) -> None: ...

    yield connect
    for signal in connected:
        signal.disconnect(receive)


def end(outcome: str) -> dict[str, Any]:
    return {"name": "signals.unknown", "job_id": 1, "outcome": outcome, "error": ""}


def test_a_listener_is_called_for_the_outcomes_that_it_wants_now(ear: Ear) -> None:
    for wanted in (set(), {"abandoned"}, {"succeeded", "cancelled"}):
        ear.wanted = wanted
        for outcome in events.OUTCOMES:
            events.stored(events.FINISHED, end(outcome))
    assert ear.heard == [("abandoned", None), ("succeeded", None), ("cancelled", None)]


def test_the_interest_follows_what_listeners_say(ear: Ear) -> None:
    assert events.interest() == set()
    ear.wanted = {"abandoned"}
    assert events.interest() == {"abandoned"}
    assert events.is_wanted(events.FINISHED, end("abandoned"))
    assert not events.is_wanted(events.FINISHED, end("succeeded"))
    assert not events.is_wanted(events.RETRIED, {"job_id": 1})


@pytest.mark.parametrize(
    ("signal", "kinds"),
    [
        (signals.job_finished, events.OUTCOMES),
        (signals.job_retried, [events.RETRIED]),
        (signals.lease_lost, [events.LOST]),
        (signals.job_rescued, [events.RESCUED]),
        (signals.compensation_completed, events.OUTCOMES),
        (signals.compensation_failed, events.OUTCOMES),
    ],
)
def test_a_receiver_is_interested_in_all_that_its_signal_tells(
    listen: Callable[[Any], None], signal: Any, kinds: list[str]
) -> None:
    listen(signal)
    assert events.interest() == set(kinds)


def test_with_a_receiver_listeners_need_not_be_asked_whether_to_send(ear: Ear, listen: Callable[[Any], None]) -> None:
    listen(signals.job_finished)
    assert events.interest() == set(events.OUTCOMES)
    assert ear.asked == 0


def test_a_listener_is_added_once_and_its_latest_word_counts(ear: Ear) -> None:
    events.add_listener(ear.hear, lambda outcome: outcome == "cancelled")
    events.stored(events.FINISHED, end("cancelled"))
    assert ear.heard == [("cancelled", None)]
    signals.job_finished.remove_listener(ear.hear)
    signals.job_finished.remove_listener(ear.hear)
    events.stored(events.FINISHED, end("cancelled"))
    assert len(ear.heard) == 1


def test_whoever_cannot_say_whether_it_wants_an_end_gets_it(ear: Ear) -> None:
    events.add_listener(ear.hear, lambda outcome: 1 / 0)  # type: ignore[arg-type, return-value]
    assert events.interest() == set(events.OUTCOMES)
    events.stored(events.FINISHED, end("succeeded"))
    assert ear.heard == [("succeeded", None)]


def test_what_a_listener_raises_is_logged_and_the_next_is_called(ear: Ear, caplog: pytest.LogCaptureFixture) -> None:
    def broken(**fields: Any) -> None:
        raise ValueError("in a listener")

    ear.wanted = {"succeeded"}
    signals.job_finished.add_listener(broken, lambda outcome: True)
    events.add_listener(ear.hear, ear.wants)
    try:
        with caplog.at_level(logging.ERROR):
            answers = signals.job_finished.send_robust(None, **end("succeeded"))
    finally:
        signals.job_finished.remove_listener(broken)
    assert [(receiver, str(answer)) for receiver, answer in answers] == [
        (broken, "in a listener"),
        (ear.hear, "heard"),
    ]
    assert "listener of job_finished failed job=1" in caplog.text
