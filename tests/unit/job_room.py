"""A job thread with its door, for tests of interrupts."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from django_pgjobs.exceptions import CancelRequested, JobInterrupted
from django_pgjobs.execution.prepared import RunControl
from django_pgjobs.worker.executor.interrupts import Door
from tests.plugins.fix_db import patience, wait_until


class Room:
    """A job thread that calls the given functions inside its door, and records exceptions that escape."""

    def __init__(self) -> None:
        self.work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.escaped: list[BaseException] = []
        self.door: Door | None = None
        threading.Thread(target=self._serve, daemon=True).start()
        wait_until(lambda: self.door is not None, 5, "the thread is there")

    def _serve(self) -> None:
        self.door = Door()
        while (entry := self.work.get()) is not None:
            control, body = entry
            try:
                self.outcomes.put(self._one(self.door, control, body))
            except BaseException as error:
                self.escaped.append(error)
                self.outcomes.put(("escaped", error))

    def _one(self, door: Door, control: RunControl, body: Callable[[Any], Any]) -> tuple[str, Any]:
        door.control = control
        try:
            return "returned", door.call(body, None)
        except BaseException as error:
            outcome = ("raised", error)
        # What the executor does of its own before the next job: no place for an exception from outside.
        for _ in range(50):
            len(str(outcome))
        return outcome

    def start(self, body: Callable[[Any], Any]) -> RunControl:
        control = RunControl()
        self.work.put((control, body))
        return control

    def outcome(self) -> tuple[str, Any]:
        found: tuple[str, Any] = self.outcomes.get(timeout=patience(30))
        return found


def interrupt(room: Room, control: RunControl, kind: type[JobInterrupted] = CancelRequested) -> None:
    assert room.door is not None
    room.door.interrupt(control, kind)


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
