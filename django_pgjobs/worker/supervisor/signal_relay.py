"""In the supervisor: signals of durable writes on their way to the receivers in executors. Main thread only.

An executor that wants them gets a batch, calls the receivers and confirms it. What an executor had not confirmed when
it died goes to another: a signal may be sent twice, and none is lost while the worker lives. There are two bounds.
``MOST_PENDING`` signals wait for slow receivers; more are dropped. After ``MOST_DEATHS`` executor deaths an event is
dropped, or a receiver that kills its process would kill every executor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from django_pgjobs.execution.events import kind_of_event
from django_pgjobs.logs import log
from django_pgjobs.worker.shared.channel_messages import Notify, SignalEvent
from django_pgjobs.worker.supervisor.executor_process import ExecutorProcess
from django_pgjobs.worker.supervisor.run_events import EVERY_KIND

MOST_PENDING = 10_000
"""Pending events at most; the oldest are dropped."""

MOST_UNCONFIRMED = 1000
"""Events that one executor has not confirmed, at most; they wait in its memory, and here."""

MOST_KEPT_BYTES = 1024 * 1024
"""Number of bytes that may wait for an executor's socket before events stay here: a job may hold its interpreter for
long."""

MOST_DEATHS = 10


@dataclass(frozen=True, slots=True)
class SentEvents:
    """Events that were sent to an executor, and how many executors have died by themselves at the first of them."""

    items: list[SignalEvent]
    deaths: int = 0


class SignalRelay:
    """The pending events. ``children`` are the executors, one list that the worker's parts share.

    ``wanted``: of which writes an executor wants to hear, see ``events.interest``; while none is there, the last word
    of those that were.
    """

    def __init__(self, children: Sequence[ExecutorProcess]) -> None:
        self.children = children
        self.fresh: deque[SignalEvent] = deque()
        self.again: deque[SentEvents] = deque()
        self.dropped = 0
        self.wanted: frozenset[str] = frozenset()
        self._sent: dict[ExecutorProcess, dict[int, SentEvents]] = {}
        self._last = 0

    def interested(self, child: ExecutorProcess, kinds: Iterable[str]) -> None:
        """Record of which writes ``child`` wants to hear; if of any, it may get the pending events."""
        child.listens = frozenset(kinds)
        self.wanted = frozenset().union(*(each.listens for each in {*self.children, child}))
        self.send_pending()

    def notify(self, items: Callable[[], list[SignalEvent]], kinds: Collection[str] = EVERY_KIND) -> None:
        """Have an executor send the signals of durable writes that a receiver there wants.

        ``kinds``: what they may be; ``items`` is called only if one of these is wanted.
        """
        if not self.wanted.isdisjoint(kinds):
            self.add([item for item in items() if kind_of_event(*item) in self.wanted])

    def add(self, items: list[SignalEvent]) -> None:
        """Send these after the pending events."""
        self.fresh.extend(items)
        self.send_pending()
        excess = len(self.fresh) - MOST_PENDING
        if excess > 0:
            if not self.dropped:
                log.error("receivers of signals are too slow, signals are dropped")
            self.dropped += excess
            for _ in range(excess):
                self.fresh.popleft()

    def send_pending(self) -> None:
        """Send pending events to executors with receivers for them, as many as they accept."""
        while (self.again or self.fresh) and (child := self._listener(self._next_kinds())) is not None:
            if self.dropped:
                log.warning("receivers of signals keep up again dropped=%d", self.dropped)
                self.dropped = 0
            room = MOST_UNCONFIRMED - self._unconfirmed(child)
            batch = self.again.popleft() if self.again else SentEvents(self._some(child, room))
            self._last += 1
            self._sent.setdefault(child, {})[self._last] = batch
            child.end.send(Notify(self._last, batch.items))

    def _next_kinds(self) -> set[str]:
        return {kind_of_event(*item) for item in (self.again[0].items if self.again else (self.fresh[0],))}

    def _listener(self, kinds: set[str]) -> ExecutorProcess | None:
        """Return an executor to send events of these kinds to, None if all that want them are busy."""
        able = [child for child in self.children if child.may_notify]
        # One whose code has not connected a receiver yet would take an event and call no one.
        wanting = [child for child in able if child.listens >= kinds] or able
        ready = (child for child in wanting if child.end.kept < MOST_KEPT_BYTES)
        return next((child for child in ready if self._unconfirmed(child) < MOST_UNCONFIRMED), None)

    def _unconfirmed(self, child: ExecutorProcess) -> int:
        return sum(len(batch.items) for batch in self._sent.get(child, {}).values())

    def sent_to(self, child: ExecutorProcess) -> list[SentEvents]:
        """Return the batches that ``child`` has not confirmed yet, the oldest first."""
        return [batch for _, batch in sorted(self._sent.get(child, {}).items())]

    def _some(self, child: ExecutorProcess, most: int) -> list[SignalEvent]:
        """Take the first event, and those after it that ``child`` wants."""
        items = [self.fresh.popleft()]
        while self.fresh and len(items) < most and kind_of_event(*self.fresh[0]) in child.listens:
            items.append(self.fresh.popleft())
        return items

    def confirmed(self, child: ExecutorProcess, number: int) -> None:
        """``child`` has called the receivers of a batch."""
        self._sent.get(child, {}).pop(number, None)
        self.send_pending()

    def died(self, child: ExecutorProcess, *, by_itself: bool) -> None:
        """Send again the events that ``child`` had not confirmed; one by one those that may have ended it."""
        batches = self.sent_to(child)
        self._sent.pop(child, None)
        if by_itself and batches:
            first, *rest = batches
            batches = [*self._one_by_one(first), *rest]
        self.again.extendleft(reversed(batches))
        self.send_pending()

    def _one_by_one(self, batch: SentEvents) -> list[SentEvents]:
        deaths = batch.deaths + 1
        if deaths < MOST_DEATHS:
            return [SentEvents([item], deaths) for item in batch.items]
        for what, fields in batch.items:
            log.error(
                "executors died while they sent a signal, it is dropped deaths=%d signal=%s job=%d",
                deaths, what, fields["job_id"],
            )  # fmt: skip
        return []

    def needs(self, child: ExecutorProcess) -> bool:
        """Return whether no other executor could send the signals of writes still to come."""
        others = (other for other in self.children if other is not child and other.may_notify)
        return child.may_notify and not any(other.listens >= child.listens for other in others)
