"""``context.stopping``: what jobs hear of the end of their process."""

from __future__ import annotations

import asyncio
from weakref import WeakSet

import pytest

from django_pgjobs import clock
from django_pgjobs.testing import context
from django_pgjobs.values.stopping import DRAIN, RECYCLE, RELEASE, Stopping


def test_a_process_that_does_not_stop_says_so() -> None:
    stopping = Stopping()
    assert (bool(stopping), stopping.why, stopping.remaining()) == (False, "", None)


def test_what_is_said_last_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that is replaced may still be running jobs when its worker drains."""
    monkeypatch.setattr(clock, "monotonic", lambda: 100.0)
    stopping = Stopping()
    stopping.announce(RECYCLE, None)
    assert (bool(stopping), stopping.why, stopping.remaining()) == (True, "recycle", None)
    stopping.announce(DRAIN, 125.0)
    assert (stopping.why, stopping.remaining()) == ("drain", 25.0)
    monkeypatch.setattr(clock, "monotonic", lambda: 130.0)
    assert stopping.remaining() == 0.0


@pytest.mark.parametrize("before", [False, True], ids=["asked before", "asked after"])
def test_coroutines_are_woken_from_another_thread(before: bool) -> None:
    """Also those that ask for the event when it is too late to be told."""
    stopping = Stopping()

    async def waits() -> bool:
        event = None if before else stopping.event
        await asyncio.to_thread(stopping.announce, DRAIN, 1.0)
        assert event in (None, stopping.event)
        return await asyncio.wait_for(stopping.event.wait(), 10)

    assert asyncio.run(waits())
    stopping.announce(DRAIN, 0.5)  # that loop is closed


def test_loops_that_are_closed_are_forgotten() -> None:
    """A thread of jobs may run a loop for each."""
    stopping = Stopping()

    async def waits() -> int:
        waiting = asyncio.ensure_future(stopping.event.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        return len(stopping._events)

    assert [asyncio.run(waits()) for _ in range(3)] == [1, 1, 1]


def test_a_job_hears_what_its_process_hears_and_what_is_said_to_it_alone() -> None:
    """One that is made too late hears it as well."""
    process = Stopping()
    one, two = process.of_job(), process.of_job()
    one.announce(RELEASE, None)
    assert [each.why for each in (process, one, two)] == ["", "release", ""]
    process.announce(DRAIN, 125.0)
    assert [(each.why, each.until) for each in (one, two, process.of_job())] == [("drain", 125.0)] * 3
    del one, two
    assert not process._of_jobs


@pytest.mark.parametrize("before", [True, False])
def test_a_job_hears_what_a_signal_announces_as_it_is_made(before: bool) -> None:
    """The handler runs in the very thread that makes it, between any two steps, so no lock keeps it out."""
    process = Stopping()

    class Interrupted(WeakSet[Stopping]):
        def add(self, item: Stopping) -> None:
            if before:
                process.announce(DRAIN, 125.0)
            super().add(item)
            if not before:
                process.announce(DRAIN, 125.0)

    process._of_jobs = Interrupted()
    made = process.of_job()
    assert (made.why, made.until) == ("drain", 125.0)


def test_a_test_lets_a_job_stop() -> None:
    made = context()
    assert not made.stopping
    made.stop(seconds=60)
    assert (made.stopping.why, 50 < (made.stopping.remaining() or 0) <= 60) == ("drain", True)
    assert not context().stopping
