"""In the executor: outcomes on their way to the supervisor, many in a frame, none left behind. Any thread may call."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter

from django_pgjobs import clock
from django_pgjobs import decisions as decide
from django_pgjobs.decisions import Decision
from django_pgjobs.ends.kinds import is_strict
from django_pgjobs.exceptions import UnstorableResult
from django_pgjobs.execution import events, failed_attempts
from django_pgjobs.logs import log
from django_pgjobs.serialization.payload import unstored
from django_pgjobs.worker.shared.channel import ExecutorEnd, TooLong
from django_pgjobs.worker.shared.channel_messages import Decided, Interest, Successes
from django_pgjobs.worker.shared.decision_codec import pack_decision, unpack_decision

FLUSH_SECONDS = 0.003
FRAME_CHARS = 2 * 1024 * 1024

Success = tuple[int, int, str | None]
"""A run, how many µs it took, and its result."""

_RESULT = itemgetter(2)
_RUN = itemgetter(0)


class Outbox:
    """Outcomes that are not sent yet. Calls ``orphaned`` if the supervisor is gone."""

    def __init__(self, end: ExecutorEnd, orphaned: Callable[[], None]) -> None:
        self.end = end
        self.orphaned = orphaned
        self.pid = os.getpid()
        self.items: deque[list[object]] = deque()
        self.successes: deque[Success] = deque()
        self.droppable: set[int] = set()
        """Runs with a long result without which their jobs may succeed."""
        self.since = 0.0
        self.timer_armed = False
        self.interest = events.interest()
        self._flushing = threading.Lock()

    def put(self, run: int, seconds: float, decision: Decision, name: str) -> None:
        """Queue an outcome of a job ``name``."""
        if not (self.successes or self.items):
            self.since = clock.monotonic()
        if type(decision) is decide.Succeeded:
            self.successes.append((run, int(seconds * 1e6), decision.result))
            if decision.result is not None and len(decision.result) > FRAME_CHARS and not is_strict(name):
                self.droppable.add(run)
        else:
            self.items.append([run, round(seconds, 6), *pack_decision(decision)])

    def declared_interest(self) -> list[str]:
        """Return which durable writes receivers here want, for the message that tells the supervisor."""
        self.interest = events.interest()
        return sorted(self.interest)

    @property
    def waits(self) -> bool:
        """True if anything is queued."""
        return bool(self.successes or self.items)

    def is_due(self, now: float) -> bool:
        """Return whether queued outcomes have waited long enough, or no timer would send them."""
        return now - self.since > FLUSH_SECONDS or not self.timer_armed

    def flush(self) -> None:
        """Send the queue. Blocks until the socket has taken it, and anything that another thread is sending."""
        if os.getpid() != self.pid:
            return
        # No BYE may overtake an outcome, since nothing arrives after a BYE. Remove outcomes after sending: an exception
        # from outside may come in between, and sending twice does no harm.
        with self._flushing:
            self._send_all()

    def _send_all(self) -> None:
        # Before the outcomes: the supervisor knows whom their ends interest when it stores them.
        if (interest := events.interest()) != self.interest:
            self._deliver(Interest(sorted(interest)))
            self.interest = interest
        while successes := self._some_successes():
            self._send_successes(successes)
            for _ in successes:
                self.successes.popleft()
            if self.droppable:
                self.droppable.difference_update(map(_RUN, successes))
        while items := self._some():
            self._send(items)
            for _ in items:
                self.items.popleft()

    def _send_successes(self, successes: list[Success]) -> None:
        """Send successes as three columns: one list per job would cost more than all the rest of it."""
        try:
            self._deliver(Successes(*map(list, zip(*successes, strict=True))))
        except TooLong:
            self._send([[run, micros / 1e6, *pack_decision(decide.Succeeded(text))] for run, micros, text in successes])

    def _deliver(self, message: Successes | Decided | Interest) -> None:
        # Try twice: a closed socket fails again, while an OSError from outside does not repeat.
        with suppress(OSError):
            self.end.send(message)
            return
        try:
            self.end.send(message)
        except OSError:
            self.orphaned()

    def _some_successes(self) -> list[Success]:
        """Return the first queued successes, as many as fit a frame."""
        queued = list(self.successes)
        if sum(map(len, filter(None, map(_RESULT, queued)))) < FRAME_CHARS:
            return queued
        size = 0
        for count, success in enumerate(queued, 1):
            if success[2] is not None:
                size += len(success[2])
                if size >= FRAME_CHARS:
                    return queued[:count]
        return queued

    def _send(self, items: list[list[object]]) -> None:
        try:
            self._deliver(Decided(items))
        except TooLong as error:
            # Longer than a frame. An outcome that never arrives would block its job, and its slot here, forever.
            if len(items) == 1:
                log.error("outcome of a job does not reach the worker as it is: %s", error)
            for item in items:
                if len(items) > 1:
                    self._send([item])
                else:
                    shorter = _shorter(item[2:], error, strict=item[0] not in self.droppable)
                    self._send([[*item[:2], *pack_decision(shorter)]])

    def _some(self) -> list[list[object]]:
        """Return the first other outcomes in the queue, as many as fit a frame."""
        queued = list(self.items)
        size = 0
        for count, item in enumerate(queued, 1):
            size += _chars(item)
            if size >= FRAME_CHARS:
                return queued[:count]
        return queued


def _chars(values: list[object] | tuple[object, ...]) -> int:
    total = 0
    for value in values:
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, list | tuple):
            total += _chars(value)
    return total


def _shorter(packed: list[object], error: TooLong, *, strict: bool) -> Decision:
    """Return an outcome that is too long for a frame, without its long parts.

    ``strict``: a job whose result cannot be stored is abandoned.
    """
    decision = unpack_decision(packed)
    if isinstance(decision, decide.InDoubt):
        return decide.InDoubt(_shorter(pack_decision(decision.otherwise), error, strict=strict))  # type: ignore[arg-type]
    failure: decide.Failure | None = getattr(decision, "failure", None)
    if failure is not None and failure.traceback and not isinstance(decision, decide.Succeeded):
        return replace(decision, failure=replace(failure, traceback=""))  # type: ignore[arg-type]
    why = f"The job's outcome is too long to reach the worker: {error}"
    if isinstance(decision, decide.Succeeded) and not strict:
        return decide.Succeeded(unstored(why))  # the caller has logged it
    return decide.Abandoned("unstorable", failed_attempts.failure_of(UnstorableResult(why)))
