"""In the executor: outcomes on their way to the supervisor, many in a frame, none left behind. Any thread may call."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Decision
from django_pgjobs.exceptions import UnstorableResult
from django_pgjobs.execution import attempt
from django_pgjobs.logs import safe_logger
from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.decision_codec import pack_decision, unpack_decision

log = safe_logger("django_pgjobs")

FLUSH_SECONDS = 0.003
FRAME_CHARS = 2 * 1024 * 1024


class Outbox:
    """Outcomes that were not sent yet. ``orphaned`` is called when nobody is left to send them to."""

    def __init__(self, end: channel.ExecutorEnd, orphaned: Callable[[], None]) -> None:
        self.end = end
        self.orphaned = orphaned
        self.pid = os.getpid()
        self.items: deque[list[Any]] = deque()
        self.successes: deque[tuple[int, int, str | None]] = deque()
        self.since = 0.0
        self.timer_armed = False
        self._flushing = threading.Lock()

    def put(self, run: int, seconds: float, decision: Decision) -> None:
        """Queue an outcome."""
        if not (self.successes or self.items):
            self.since = clock.monotonic()
        if type(decision) is decide.Succeed:
            self.successes.append((run, int(seconds * 1e6), decision.result))
        else:
            self.items.append([run, round(seconds, 6), *pack_decision(decision)])

    @property
    def waits(self) -> bool:
        """Whether anything is queued."""
        return bool(self.successes or self.items)

    def is_due(self, now: float) -> bool:
        """Whether what is queued has waited long enough, or no timer would send it."""
        return now - self.since > FLUSH_SECONDS or not self.timer_armed

    def flush(self) -> None:
        """Send what is queued; blocks until the socket has taken it, and what another thread has begun to send."""
        if os.getpid() != self.pid:
            return
        # What was taken and not sent yet must not be passed by a BYE, behind which nothing arrives.
        with self._flushing:
            while successes := self._some_successes():
                self._send_successes(successes)
            while items := self._some():
                self._send(items)

    def _send_successes(self, successes: list[tuple[int, int, str | None]]) -> None:
        """Send successes as three columns: one list per job would cost more than all the rest of it."""
        try:
            self.end.send([channel.SUCCEEDED, *map(list, zip(*successes, strict=True))])
        except OSError:
            self.orphaned()
        except ValueError:
            self._send([[run, micros / 1e6, *pack_decision(decide.Succeed(text))] for run, micros, text in successes])

    def _some_successes(self) -> list[tuple[int, int, str | None]]:
        """Take successes that are queued, as many as a frame shall hold. Several threads may take at once."""
        taken: list[tuple[int, int, str | None]] = []
        size = 0
        with suppress(IndexError):
            while size < FRAME_CHARS:
                success = self.successes.popleft()
                taken.append(success)
                if success[2] is not None:
                    size += len(success[2])
        return taken

    def _send(self, items: list[list[Any]]) -> None:
        try:
            self.end.send([channel.DONE, items])
        except OSError:
            self.orphaned()
        except ValueError as error:
            # Longer than a frame. An outcome that is not told would hold its job, and its place here, for ever.
            if len(items) == 1:
                log.error("outcome of a job does not reach the worker as it is: %s", error)
            for item in items:
                self._send([item] if len(items) > 1 else [[*item[:2], *pack_decision(_shorter(item[2:], error))]])

    def _some(self) -> list[list[Any]]:
        """Take what has been queued, as much as a frame shall hold. Several threads may take at once."""
        items: list[list[Any]] = []
        size = 0
        with suppress(IndexError):
            while size < FRAME_CHARS:
                items.append(self.items.popleft())
                size += _chars(items[-1])
        return items


def _chars(values: list[Any] | tuple[Any, ...]) -> int:
    total = 0
    for value in values:
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, list | tuple):
            total += _chars(value)
    return total


def _shorter(packed: list[Any], error: ValueError) -> Decision:
    """Return an outcome that is too long for a frame without what makes it so long."""
    decision = unpack_decision(packed)
    failure: decide.Failure | None = getattr(decision, "failure", None)
    if failure is not None and failure.traceback and not isinstance(decision, decide.Succeed):
        return replace(decision, failure=replace(failure, traceback=""))  # type: ignore[arg-type]
    unstorable = UnstorableResult(f"What the job came to does not reach the worker: {error}")
    return decide.Abandon("unstorable", attempt.failure_of(unstorable))
