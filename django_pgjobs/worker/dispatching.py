"""Who gets which job: claimed jobs wait here until an executor has room. Main thread only, no I/O but frames.

A job waits only as long as its claim is known to hold (``fresh_until``) and starts only while that is trusted; what
an executor has not started within a second is taken back, so no short job stands behind a long one while a thread
is free elsewhere. *Suspects* run alone: while one waits nothing else starts and nothing is claimed, so that an executor
comes free for it. It waits until nothing of its dead executor is left on the server, whose last statement might
commit beside the new run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django_pgjobs.attempt import BODY
from django_pgjobs.logs import safe_logger
from django_pgjobs.registry import registry
from django_pgjobs.worker import channel
from django_pgjobs.worker.children import PAYLOAD_BYTES, READY, Child
from django_pgjobs.worker.runs import SENT, UNSTOPPED, WAITING, HeldClaim, Run

log = safe_logger("django_pgjobs")

START_WITHIN_SECONDS = 1.0

LOOK_PAST = 500
"""Jobs that may wait here without room, while a thread or the loop is idle, so that claims reach jobs for it behind."""

PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 8.0
"""How long nothing is looked past after such jobs were handed back: other workers shall find them first. The pauses
double until something was found behind them."""


class Dispatcher:
    """Jobs that wait for room, by whether they are ``async def``; suspects run alone."""

    def __init__(self) -> None:
        self.waiting: dict[bool, deque[Run]] = {False: deque(), True: deque()}
        self.suspects: deque[Run] = deque()
        self.async_seen = False
        self.paused_at: float | None = None
        self.suspected = 0
        self.look_past_at = 0.0
        self.pause = PAUSE_SECONDS
        self._last = 0

    def __len__(self) -> int:
        return len(self.waiting[False]) + len(self.waiting[True]) + len(self.suspects)

    def add(self, runs: Iterable[Run], now: float) -> None:
        """Let claimed jobs wait for room, the best first; ``runs`` of one claim are in that order already."""
        before = {is_async: len(queue) for is_async, queue in self.waiting.items()}
        colours: dict[str, bool] = {}
        callbacks = False
        for run in runs:
            run.state, run.child, run.run, run.since, run.started_at = WAITING, None, 0, now, 0.0
            name = run.job.name
            if (is_async := colours.get(name)) is None:
                definition = registry.find(name)
                is_async = colours[name] = definition is not None and definition.is_async
            # A callback is called in a thread, whatever the body is: there it can be interrupted.
            if run.kind != BODY:
                is_async, callbacks = False, True
            run.is_async = is_async
            self.waiting[is_async].append(run)
        self.async_seen = self.async_seen or len(self.waiting[True]) > 0
        for is_async, queue in self.waiting.items():
            length = before[is_async]
            if before[not is_async] and len(queue) > length == 0:
                self.pause = PAUSE_SECONDS
            # Most claims go on where the one before has ended: then all are in order as they are.
            if 0 < length < len(queue) and (callbacks or _rank(queue[length]) < _rank(queue[length - 1])):
                self.waiting[is_async] = deque(sorted(queue, key=_rank))

    def suspect(self, runs: Iterable[Run], now: float, *, after: str = "") -> None:
        """These were running when their executor died by itself, or have ended one before: each runs alone.

        Not before the connections of that executor, named ``after``, have ended.
        """
        for run in runs:
            run.state, run.child, run.since, run.started_at = WAITING, None, now, 0.0
            run.alone, run.after = True, after
            self.suspects.append(run)
            self.suspected += 1
        if self.suspects and self.paused_at is None:
            self.paused_at = now
            log.warning("nothing else starts until suspects have an executor each alone jobs=%d", len(self.suspects))

    def backends_ended(self, application_name: str) -> None:
        """Nothing of this dead executor is left on the server."""
        for run in self.suspects:
            if run.after == application_name:
                run.after = ""

    def _go_on(self, now: float) -> None:
        if self.paused_at is not None and not self.suspects:
            log.info("other jobs start again suspects=%d seconds=%.1f", self.suspected, now - self.paused_at)
            self.paused_at, self.suspected = None, 0

    def room(self, crew: Iterable[Child], now: float) -> int:
        """How many more jobs there is room for, what waits here taken off.

        A claim takes jobs in their order, not by what there is room for. So jobs of one colour may find none while
        threads, or the loop, have nothing to do: they are looked past, but never is the whole queue hoarded.
        """
        sync = sum(max(0, child.room(is_async=False)) for child in crew)
        loops = sum(max(0, child.room(is_async=True)) for child in crew) if self.async_seen else 0
        left = (sync - len(self.waiting[False]), loops - len(self.waiting[True]))
        room, without = sum(max(0, room) for room in left), -sum(min(0, room) for room in left)
        if now < self.look_past_at or without >= LOOK_PAST:
            room -= without
        return 0 if self.suspects else max(0, room)

    def handed_back(self, now: float) -> None:
        """What found no room for long has left."""
        self.look_past_at = now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE_SECONDS)

    def idle_places(self, crew: Iterable[Child]) -> int:
        """Threads without any job sent for them, what waits here taken off."""
        return sum(child.idle_places() for child in crew) - len(self.waiting[False])

    def dispatch(self, crew: list[Child], now: float) -> None:
        """Send what waits to executors that have room."""
        if self.suspects:
            self._dispatch_alone(crew, now)
        self._go_on(now)
        for is_async in (False, True):
            while self._fresh(self.waiting[is_async], now):
                ready = [child for child in crew if child.room(is_async=is_async) > 0]
                if not ready or self.suspects:
                    break
                self._spread(ready, is_async, now)

    def _fresh(self, queue: deque[Run], now: float) -> bool:
        return bool(queue) and _is_fresh(queue[0], now)

    def _spread(self, ready: list[Child], is_async: bool, now: float) -> None:
        """One round: every executor gets its share, the emptiest first."""
        queue = self.waiting[is_async]
        share = max(1, -(-len(queue) // len(ready)))
        for child in sorted(ready, key=lambda child: child.outstanding[is_async]):
            room, left = min(share, child.room(is_async=is_async)), PAYLOAD_BYTES - child.payload_bytes
            runs: list[Run] = []
            while queue and len(runs) < room and left >= 0:
                run = queue[0]
                if run.fresh_until < now or run.claim.trusted_until <= now:  # as _is_fresh, without a call for each
                    break
                queue.popleft()
                left -= run.size
                runs.append(run)
            self._send(child, runs, now)

    def _dispatch_alone(self, crew: list[Child], now: float) -> None:
        for child in crew:
            run = next((run for run in self.suspects if not run.after and _is_fresh(run, now)), None)
            if run is not None and child.state == READY and not child.runs:
                self.suspects.remove(run)
                child.exclusive = True
                self._send(child, [run], now)

    def _send(self, child: Child, runs: list[Run], now: float) -> None:
        if not runs:
            return
        number = self._last
        for run in runs:
            number += 1
            run.run, run.child, run.state, run.since, run.collateral = number, child, SENT, now, False
            run.stops = UNSTOPPED
        self._last = number
        child.add(*runs)
        start_by = min(now + START_WITHIN_SECONDS, min({run.claim for run in runs}, key=_trust).trusted_until)
        child.end.send([channel.RUN, start_by, list(map(_item, runs))])

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


def _is_fresh(run: Run, now: float) -> bool:
    return run.fresh_until >= now and run.claim.trusted_until > now


def _rank(run: Run) -> tuple[int, datetime, int]:
    job = run.job
    return -job.priority, job.run_at, job.id


def _trust(claim: HeldClaim) -> float:
    return claim.trusted_until


def _item(run: Run) -> tuple[Any, ...]:
    job, kind = run.job, run.kind
    timeout, error = (job.timeout_seconds, "") if kind == BODY else (run.timeout, run.told_error)
    return (
        run.run, kind, job.id, run.claim.claim_id, job.name, job.attempt, job.max_attempts, timeout, job.payload,
        job.headers, job.queue, job.description, error, job.run_at.timestamp(), run.is_async, run.cancelled,
        job.extras,
    )  # fmt: skip
