"""Outcomes on their way to the supervisor: none is passed by a word after which nothing arrives."""

from __future__ import annotations

import threading
from typing import Any, cast

from django_pgjobs import decisions as decide
from django_pgjobs import signals
from django_pgjobs.worker.executor.outbox import Outbox
from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.channel_messages import Decided, Interest, Successes
from tests.plugins.fix_db import patience


class SlowEnd:
    """An end whose socket is full until ``gate`` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.entered.set()
        self.gate.wait(patience(10))
        self.sent.append(message)


def test_a_flush_waits_for_what_another_thread_has_taken_and_not_sent() -> None:
    """Who says BYE flushes first: an outcome still in another thread's hands would be lost with the process."""
    end = SlowEnd()
    outbox = Outbox(cast(Any, end), lambda: None)
    outbox.put(1, 0.1, decide.Succeeded("1"), "shop.pay")
    sending = threading.Thread(target=outbox.flush)
    sending.start()
    assert end.entered.wait(patience(10))

    def leave() -> None:
        outbox.flush()
        end.sent.append("BYE")

    leaving = threading.Thread(target=leave)
    leaving.start()
    leaving.join(0.3)  # time enough to say BYE too early
    end.gate.set()
    sending.join(10)
    leaving.join(10)
    assert end.sent[-1] == "BYE"
    assert end.sent[0] == Successes([1], [100_000], ["1"])


class Small:
    """An end that takes no frame with a long text."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        if len(repr(message)) > 10_000:
            raise channel.TooLong("too long")
        self.sent.append(message)


def test_successes_travel_in_columns_and_all_else_one_by_one() -> None:
    end = Small()
    outbox = Outbox(cast(Any, end), lambda: None)
    outbox.put(1, 0.5, decide.Succeeded(), "shop.pay")
    outbox.put(2, 0.25, decide.Snoozed(3.0), "shop.pay")
    outbox.put(3, 0.125, decide.Succeeded('"x"'), "shop.pay")
    outbox.flush()
    assert end.sent == [
        Successes([1, 3], [500_000, 125_000], [None, '"x"']),
        Decided([[2, 0.25, "snoozed", 3.0]]),
    ]
    assert not outbox.waits


def test_successes_too_long_for_a_frame_are_told_one_by_one() -> None:
    """Of a result that no frame takes the job hears as an error; its neighbours' outcomes are not lost with it."""
    end = Small()
    outbox = Outbox(cast(Any, end), lambda: None)
    outbox.put(1, 0.5, decide.Succeeded('"a"'), "shop.pay")
    outbox.put(2, 0.5, decide.Succeeded(f'"{"b" * 10_000}"'), "shop.pay")
    outbox.flush()
    assert end.sent[0] == Decided([[1, 0.5, "succeeded", '"a"']])
    assert not outbox.waits


class Plain:
    """An end that takes everything."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def test_a_changed_interest_is_told_before_the_outcomes_and_only_when_it_changes() -> None:
    """The supervisor knows whom an end interests when it stores it, and hears nothing more while that stays."""
    end, wanted = Plain(), {"abandoned"}
    outbox = Outbox(cast(Any, end), lambda: None)

    def listener(**fields: Any) -> None: ...

    signals.job_finished.add_listener(listener, wanted.__contains__)
    try:
        assert outbox.declared_interest() == ["abandoned"]
        outbox.put(1, 0.1, decide.Succeeded("1"), "shop.pay")
        outbox.flush()
        wanted.add("succeeded")
        for run in (2, 3):
            outbox.put(run, 0.1, decide.Succeeded("1"), "shop.pay")
            outbox.flush()
    finally:
        signals.job_finished.remove_listener(listener)
    outbox.flush()
    assert end.sent == [
        Successes([1], [100_000], ["1"]),
        Interest(["abandoned", "succeeded"]),
        Successes([2], [100_000], ["1"]),
        Successes([3], [100_000], ["1"]),
        Interest([]),
    ]
