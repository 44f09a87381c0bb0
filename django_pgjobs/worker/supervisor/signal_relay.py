"""In the supervisor: signals of durable writes on their way to the receivers in executors. Main thread only.

One executor that listens gets a batch, and says so when it has told it. What it had not said when it died is told
again by another: a signal may come twice, and none is lost while the worker lives. Two bounds hold nevertheless:
so much waits at most for receivers that are too slow, and what was being told at so many deaths is told no more,
for a receiver that ends its process would end one executor after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django_pgjobs.logs import safe_logger
from django_pgjobs.worker.shared.channel_messages import Event, Notify
from django_pgjobs.worker.supervisor.executor_process import ExecutorProcess

log = safe_logger("django_pgjobs")

UNTOLD = 10_000
"""Signals that wait here at most."""

TELLING = 1000
"""Signals that one executor has not told yet, at most; they wait in its memory, and here."""

TELL_BYTES = 1024 * 1024
"""What may wait for an executor's socket before signals are kept here: a job may hold its interpreter for long."""

MOST_DEATHS = 10


@dataclass(frozen=True, slots=True)
class Batch:
    """Signals that were sent to an executor, and how many died of their own while they told the first of them."""

    items: list[Event]
    deaths: int = 0


class SignalRelay:
    """What receivers have not heard yet. ``children`` are the executors, one list that the worker's parts share.

    ``listened`` says whether the code of any executor so far has receivers.
    """

    def __init__(self, children: Sequence[ExecutorProcess]) -> None:
        self.children = children
        self.fresh: deque[Event] = deque()
        self.again: deque[Batch] = deque()
        self.dropped = 0
        self.listened = False
        self._sent: dict[ExecutorProcess, dict[int, Batch]] = {}
        self._last = 0

    def ready(self, child: ExecutorProcess) -> None:
        """``child`` is ready: if its code has receivers it may be sent what waits."""
        self.listened = self.listened or child.listens
        self.hand_over()

    def tell(self, items: Callable[[], list[Event]]) -> None:
        """Let an executor send the signals of durable writes; ``items`` is called only if somebody there listens."""
        if self.listened:
            self.add(items())

    def add(self, items: list[Event]) -> None:
        """Let these be told after what waits already."""
        self.fresh.extend(items)
        self.hand_over()
        excess = len(self.fresh) - UNTOLD
        if excess > 0:
            if not self.dropped:
                log.error("receivers of signals are too slow, signals are dropped")
            self.dropped += excess
            for _ in range(excess):
                self.fresh.popleft()

    def hand_over(self) -> None:
        """Send what waits to executors that listen, as far as they take it."""
        while (self.again or self.fresh) and (child := self._listener()) is not None:
            if self.dropped:
                log.warning("signals are told again dropped=%d", self.dropped)
                self.dropped = 0
            batch = self.again.popleft() if self.again else Batch(self._some(TELLING - self._telling(child)))
            self._last += 1
            self._sent.setdefault(child, {})[self._last] = batch
            child.end.send(Notify(self._last, batch.items))

    def _listener(self) -> ExecutorProcess | None:
        ready = (child for child in self.children if child.may_tell)
        return next((child for child in ready if child.end.kept < TELL_BYTES and self._telling(child) < TELLING), None)

    def _telling(self, child: ExecutorProcess) -> int:
        return sum(len(batch.items) for batch in self._sent.get(child, {}).values())

    def sent_to(self, child: ExecutorProcess) -> list[Batch]:
        """Return the batches that ``child`` has not told yet, the oldest first."""
        return [batch for _, batch in sorted(self._sent.get(child, {}).items())]

    def _some(self, most: int) -> list[Event]:
        return [self.fresh.popleft() for _ in range(min(most, len(self.fresh)))]

    def told(self, child: ExecutorProcess, number: int) -> None:
        """``child`` has told a batch."""
        self._sent.get(child, {}).pop(number, None)
        self.hand_over()

    def died(self, child: ExecutorProcess, *, by_itself: bool) -> None:
        """Tell again what ``child`` had not told; what may have been its end one by one."""
        batches = self.sent_to(child)
        self._sent.pop(child, None)
        if by_itself and batches:
            first, *rest = batches
            batches = [*self._one_by_one(first), *rest]
        self.again.extendleft(reversed(batches))
        self.hand_over()

    def _one_by_one(self, batch: Batch) -> list[Batch]:
        deaths = batch.deaths + 1
        if deaths < MOST_DEATHS:
            return [Batch([item], deaths) for item in batch.items]
        for what, fields in batch.items:
            log.error(
                "executors died while they told a signal, it is dropped deaths=%d signal=%s job=%d",
                deaths, what, fields["job_id"],
            )  # fmt: skip
        return []

    def needs(self, child: ExecutorProcess) -> bool:
        """Whether nobody else could tell what is still to be written."""
        return child.may_tell and not any(other.may_tell for other in self.children if other is not child)
