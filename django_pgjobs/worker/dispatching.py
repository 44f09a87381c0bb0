"""Who gets which job: claimed jobs wait here until an executor has room. Main thread only, no I/O but frames.

A job waits only as long as its claim is known to hold (``fresh_until``) and starts only while that is trusted; what
an executor has not started within a second is taken back, so no short job stands behind a long one while a thread
is free elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from django_pgjobs.attempt import BODY
from django_pgjobs.registry import registry
from django_pgjobs.worker import channel
from django_pgjobs.worker.children import PAYLOAD_BYTES, READY, Child
from django_pgjobs.worker.runs import SENT, WAITING, Run

START_WITHIN_SECONDS = 1.0


class Dispatcher:
    """Jobs that wait for room, by whether they are ``async def``; suspects run alone."""

    def __init__(self) -> None:
        self.waiting: dict[bool, deque[Run]] = {False: deque(), True: deque()}
        self.suspects: deque[Run] = deque()
        self.async_seen = False
        self._last = 0

    def __len__(self) -> int:
        return len(self.waiting[False]) + len(self.waiting[True]) + len(self.suspects)

    def add(self, runs: Iterable[Run], now: float) -> None:
        """Let claimed jobs wait for room, the best first; ``runs`` of one claim are in that order already."""
        waited = len(self) > 0
        for run in runs:
            run.state, run.child, run.run, run.since, run.started_at = WAITING, None, 0, now, 0.0
            definition = registry.find(run.job.name)
            # A callback is called in a thread, whatever the body is: there it can be interrupted.
            run.is_async = definition is not None and definition.is_async and run.kind == BODY
            self.async_seen = self.async_seen or run.is_async
            self.waiting[run.is_async].append(run)
        if waited:
            for is_async, queue in self.waiting.items():
                self.waiting[is_async] = deque(sorted(queue, key=lambda r: (-r.job.priority, r.job.run_at, r.job.id)))

    def suspect(self, runs: Iterable[Run], now: float) -> None:
        """These were running when their executor died by itself, or have ended one before: each runs alone."""
        for run in runs:
            run.state, run.child, run.since, run.started_at, run.alone = WAITING, None, now, 0.0, True
            self.suspects.append(run)

    def room(self, crew: Iterable[Child]) -> int:
        """How many more jobs there is room for, what waits here taken off."""
        sync = sum(max(0, child.room(is_async=False)) for child in crew)
        loops = sum(max(0, child.room(is_async=True)) for child in crew) if self.async_seen else 0
        left = (sync - len(self.waiting[False]), loops - len(self.waiting[True]))
        # Jobs of one colour may find no room for long: what waits so counts, or the whole queue would be hoarded.
        room = sum(max(0, room) for room in left) + sum(min(0, room) for room in left)
        return 0 if self.suspects else max(0, room)

    def idle_places(self, crew: Iterable[Child]) -> int:
        """Threads without any job sent for them, what waits here taken off."""
        return sum(child.idle_places() for child in crew) - len(self.waiting[False])

    def dispatch(self, crew: list[Child], now: float) -> None:
        """Send what waits to executors that have room."""
        if self.suspects:
            self._dispatch_alone(crew, now)
        for is_async in (False, True):
            while self._fresh(self.waiting[is_async], now):
                ready = [child for child in crew if child.room(is_async=is_async) > 0]
                if not ready or self.suspects:
                    break
                self._spread(ready, is_async, now)

    def _fresh(self, queue: deque[Run], now: float) -> bool:
        return bool(queue) and queue[0].fresh_until >= now and queue[0].claim.trusted_until > now

    def _spread(self, ready: list[Child], is_async: bool, now: float) -> None:
        """One round: every executor gets its share, the emptiest first."""
        queue = self.waiting[is_async]
        share = max(1, -(-len(queue) // len(ready)))
        for child in sorted(ready, key=lambda child: child.outstanding[is_async]):
            runs: list[Run] = []
            room, size = min(share, child.room(is_async=is_async)), child.payload_bytes
            while self._fresh(queue, now) and len(runs) < room and child.payload_bytes <= max(size, PAYLOAD_BYTES):
                run = queue.popleft()
                self._assign(child, run, now)
                runs.append(run)
            self._send(child, runs, now)

    def _dispatch_alone(self, crew: list[Child], now: float) -> None:
        for child in crew:
            if self.suspects and child.state == READY and not child.runs and self._fresh(self.suspects, now):
                run = self.suspects.popleft()
                self._assign(child, run, now)
                child.exclusive = True
                self._send(child, [run], now)

    def _assign(self, child: Child, run: Run, now: float) -> None:
        self._last += 1
        run.run, run.child, run.state, run.since, run.collateral = self._last, child, SENT, now, False
        run.stops = {}
        child.add(run)

    def _send(self, child: Child, runs: list[Run], now: float) -> None:
        if runs:
            start_by = min(now + START_WITHIN_SECONDS, min(run.claim.trusted_until for run in runs))
            child.end.send([channel.RUN, start_by, [_item(run) for run in runs]])

    def take_back(self, crew: Iterable[Child], wanted: Callable[[Run], bool]) -> None:
        """Ask executors to give back what they have not started of the runs that are ``wanted``."""
        for child in crew:
            child.take_back([run for run in child.runs.values() if run.state == SENT and wanted(run)])

    def withdraw(self, wanted: Callable[[Run], bool]) -> list[Run]:
        """Remove and return the waiting runs that are ``wanted``."""
        taken: list[Run] = []
        for is_async, queue in self.waiting.items():
            taken += [run for run in queue if wanted(run)]
            self.waiting[is_async] = deque(run for run in queue if not wanted(run))
        taken += [run for run in self.suspects if wanted(run)]
        self.suspects = deque(run for run in self.suspects if not wanted(run))
        return taken


def _item(run: Run) -> list[Any]:
    job = run.job
    return [
        run.is_async, run.cancelled, run.run, run.kind, job.id, run.claim.claim_id, job.name, job.attempt,
        job.max_attempts, run.timeout, job.payload, job.headers, job.queue, job.description, run.told_error,
        job.run_at.timestamp(),
    ]  # fmt: skip
