"""Dispatches jobs to executors: claimed jobs wait here until an executor has room. Main thread only, no I/O but frames.

A job waits only as long as its claim is known to hold (``fresh_until``) and starts only while that is trusted. An
executor releases jobs that it has not started within a second, so no short job waits for a long one while a thread is
free elsewhere.

*Suspects* ran in an executor when it died by itself: one of them may do it again. They run again in groups, without
other jobs, one group after the other on one executor, the *bench*; the other executors continue. If a group kills the
bench too, it is halved, until one job runs alone. A group waits until its dead executor has no server process left,
since its last statement might commit beside the new run.

A queue that has places starts no more runs than it has slots left (``queue_slots``). Those that find none are
``crowded``, and keep no run of other queues waiting.

No group waits for a suspect as long as it runs: after ``ALONE_SECONDS`` the next group starts beside it, and in the end
other jobs do. Nor does a group wait longer for a bench to become empty. A suspect gets twice the time at each further
death, and those that started last are first on the empty bench: so in the end the guilty one is alone.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from django_pgjobs.definition.registry import registry
from django_pgjobs.logs import log
from django_pgjobs.worker.shared.channel_messages import RunJobs
from django_pgjobs.worker.shared.deaths import MOST_SUSPECTS, Suspects
from django_pgjobs.worker.shared.run_groups import groups_of
from django_pgjobs.worker.shared.runs import SENT, UNSTOPPED, WAITING, HeldClaim, HeldRun
from django_pgjobs.worker.supervisor.executor_process import PAYLOAD_BYTES, READY, STARTING, ExecutorProcess
from django_pgjobs.worker.supervisor.queue_slots import QueueSlots

START_WITHIN_SECONDS = 1.0

ALONE_SECONDS = 30.0
"""Time that a suspect runs apart at first, and that a group waits for an executor to become empty."""

LONGEST_ALONE_SECONDS = 86_400.0


class RunNumbers:
    """The number of the last run of a worker: they ascend in each executor, whichever home a run is of."""

    def __init__(self) -> None:
        self.last = 0


class Dispatcher:
    """Jobs waiting for room, by whether they are ``async def``; suspects wait in groups, for the bench.

    Of several homes, each has its own. ``alias``: what the jobs of this one say, empty without others.
    """

    def __init__(self, alias: str = "", numbers: RunNumbers | None = None, slots: QueueSlots | None = None) -> None:
        self.alias = alias
        self.numbers = numbers or RunNumbers()
        self.slots = slots or QueueSlots()
        self.crowded: dict[str, list[HeldRun]] = {group: [] for group in self.slots.most}
        self.outstanding = {False: 0, True: 0}
        """Runs that executors have, counted if there are other homes."""

        self.waiting: dict[bool, deque[HeldRun]] = {False: deque(), True: deque()}
        self.groups: list[list[HeldRun]] = []
        self.suspected_at: float | None = None
        self.suspected = 0
        self.reserved_at: float | None = None
        """Since when the next group waits for an executor to become empty."""

        self._bench: ExecutorProcess | None = None

    def __len__(self) -> int:
        waiting = (*self.waiting.values(), *self.groups, *self.crowded.values())
        return sum(map(len, waiting))

    @property
    def suspects(self) -> list[HeldRun]:
        """Those that wait to run again, the next first."""
        return [run for group in self.groups for run in group]

    def add(self, runs: Iterable[HeldRun], now: float) -> None:
        """Let claimed jobs wait for room, the best first; ``runs`` of one claim are in that order already."""
        before = {is_async: len(queue) for is_async, queue in self.waiting.items()}
        colours: dict[str, bool] = {}
        callbacks = False
        for run in runs:
            run.state, run.since = WAITING, now
            if run.run:  # it comes back from an executor
                run.child, run.run, run.started_at = None, 0, 0.0
                run.stops, run.collateral = UNSTOPPED, False
            job, name = run.job, run.job.name
            if (is_async := colours.get(name)) is None:
                definition = registry.find(name)
                is_async = colours[name] = definition is not None and definition.is_async
            # A callback runs in a thread, even of an async job: there it can be interrupted.
            if job.ending is not None:
                is_async, callbacks = False, True
            run.is_async = is_async
            self.waiting[is_async].append(run)
        for is_async, queue in self.waiting.items():
            length = before[is_async]
            # Most claims continue where the last one ended: then everything is in order already.
            if 0 < length < len(queue) and (callbacks or _rank(queue[length]) < _rank(queue[length - 1])):
                self.waiting[is_async] = deque(sorted(queue, key=_rank))

    def suspect(self, runs: Sequence[HeldRun], now: float) -> None:
        """Queue runs that may end their executor: they run as one group, after the waiting groups."""
        if runs:
            self._suspect(runs, now)
            self.groups.append(list(runs))

    def halve(self, runs: Sequence[HeldRun], now: float, *, after: str) -> None:
        """Queue runs whose executor died by itself: each half runs again, before the waiting groups.

        They start only after the connections of that executor, named ``after``, have ended.
        """
        self._suspect(runs, now)
        for run in runs:
            run.after, run.suspected = after, run.suspected + 1
        middle = (len(runs) + 1) // 2
        self.groups[:0] = [list(half) for half in (runs[:middle], runs[middle:]) if half]

    def _suspect(self, runs: Sequence[HeldRun], now: float) -> None:
        for run in runs:
            run.state, run.child, run.since, run.started_at = WAITING, None, now, 0.0
            run.alone, run.after, run.is_async = True, "", _is_async(run)
            run.stops, run.collateral = UNSTOPPED, False
            if run.job.expires is not None:  # it has started once, so it expires no more
                run.job = run.job._replace(extras={**(run.job.extras or {}), "expires": None})
        self.suspected += len(runs)
        if self.suspected_at is None:
            self.suspected_at = now
            log.warning("suspects run again in groups, on one executor, until one has done it alone jobs=%d", len(runs))

    def backends_ended(self, application_name: str) -> None:
        """Record that nothing of this dead executor is left on the server."""
        for run in self.suspects:
            if run.after == application_name:
                run.after = ""

    def _go_on(self, executors: list[ExecutorProcess], now: float) -> None:
        if self.suspected_at is not None and not self.groups and not any(child.exclusive for child in executors):
            log.info("no suspects are left starts=%d seconds=%.1f", self.suspected, now - self.suspected_at)
            self.suspected_at, self.suspected = None, 0

    @property
    def sent(self) -> int:
        """Number of runs that have been sent to executors, of all homes."""
        return self.numbers.last

    def count(self, runs: Iterable[HeldRun | None], sign: int) -> None:
        """Count runs that executors have got, or have no more, if there are other homes, or queues with places."""
        if self.slots:
            runs = list(runs)
            self.slots.count(runs, sign)
        if self.alias:
            for run in runs:
                if run is not None:
                    self.outstanding[run.is_async] += sign

    def room(self, executors: Iterable[ExecutorProcess]) -> tuple[int, int]:
        """Return how many more jobs fit in threads, and on loops, less those that wait here."""
        executors = list(executors)
        threads, loops = (free(executors, is_async) for is_async in (False, True))
        return max(0, threads - len(self.waiting[False])), max(0, loops - len(self.waiting[True]))

    def idle_threads(self, executors: Iterable[ExecutorProcess]) -> int:
        """Threads without any job sent for them, less the jobs that wait here."""
        return sum(child.idle_threads() for child in executors) - len(self.waiting[False])

    def dispatch(self, executors: list[ExecutorProcess], now: float, most: Mapping[bool, int] | None = None) -> None:
        """Send waiting jobs to executors that have room; at most so many for threads and for loops."""
        self._dispatch_suspects(executors, now)
        if self.slots:
            self._keep_to_slots()
        self._go_on(executors, now)
        for is_async in (False, True):
            left = math.inf if most is None else most[is_async]
            while left > 0 and self._fresh(self.waiting[is_async], now):
                ready = [child for child in executors if child.room(is_async=is_async) > 0]
                if not ready:
                    break
                left -= self._spread(ready, is_async, now, left)

    def _keep_to_slots(self) -> None:
        """Leave only those runs waiting that have a slot of their queue; suspects have theirs before others."""
        free = self.slots.free()
        for run in self.suspects:
            if (group := self.slots.group(run)) is not None:
                free[group] -= 1
        for group, crowded in self.crowded.items():
            back = crowded[: max(free[group], 0)]
            del crowded[: len(back)]
            for is_async in (False, True):
                if some := _of(back, is_async):
                    self.waiting[is_async] = deque(sorted((*some, *self.waiting[is_async]), key=_rank))
        for is_async, queue in self.waiting.items():
            staying: deque[HeldRun] = deque()
            for run in queue:
                group = self.slots.group(run)
                if group is None or free[group] > 0:
                    staying.append(run)
                    free |= {} if group is None else {group: free[group] - 1}
                else:
                    insort(self.crowded[group], run, key=_rank)
            self.waiting[is_async] = staying

    def waits(self) -> Counter[str]:
        """Return how many runs of each group of queues with places wait here."""
        runs = (*self.waiting[False], *self.waiting[True], *self.suspects)
        waiting = Counter(group for group in map(self.slots.group, runs) if group is not None)
        for group, crowded in self.crowded.items():
            waiting[group] += len(crowded)
        return waiting

    def _fresh(self, queue: deque[HeldRun], now: float) -> bool:
        return bool(queue) and _is_fresh(queue[0], now)

    def _spread(self, ready: list[ExecutorProcess], is_async: bool, now: float, most: float) -> int:
        """One round: every executor gets its share, the emptiest first; return how many jobs were sent."""
        queue = self.waiting[is_async]
        share, before = max(1, -(-len(queue) // len(ready))), len(queue)
        for child in sorted(ready, key=lambda child: child.outstanding[is_async]):
            room = min(share, child.room(is_async=is_async), most - (before - len(queue)))
            left = PAYLOAD_BYTES - child.payload_bytes
            runs: list[HeldRun] = []
            while queue and len(runs) < room and left >= 0:
                run = queue[0]
                if run.fresh_until < now or run.claim.trusted_until <= now:  # as _is_fresh, without a call for each
                    break
                queue.popleft()
                left -= run.size
                runs.append(run)
            self._send(child, runs, now)
        return before - len(queue)

    def leave_bench(self) -> None:
        """Keep no executor for suspects."""
        if self._bench is not None:
            self._bench.reserved, self._bench = False, None

    def _dispatch_suspects(self, executors: list[ExecutorProcess], now: float) -> None:
        """Send the next group to the bench if that is empty; keep everything else away from it until it is."""
        self.leave_bench()
        for child in executors:
            if child.exclusive and now >= child.alone_until:
                child.exclusive = False
                log.warning("suspects have run apart for long, others start beside them pid=%d", child.pid)
        if not self.groups or any(child.exclusive or child.reserved for child in executors):
            self.reserved_at = None
            return
        if self.slots and not self.slots.fitting(self.suspects):
            self.reserved_at = None  # they wait for their queue, and others for no bench
            return
        bench = _bench(executors)
        if bench is None:
            return
        self.reserved_at = now if self.reserved_at is None else self.reserved_at
        group = next(
            (
                group
                for group in self.groups
                if all(not run.after and _is_fresh(run, now) for run in group)
                and (not self.slots or self.slots.fitting(group))
            ),
            None,
        )
        if group is None and self.alias and not any(_is_fresh(run, now) for run in self.suspects):
            self.reserved_at = None  # its database is away: no other home waits for that
            return
        bench.reserved, self._bench = True, bench
        others = any(not run.alone for run in bench.runs.values())  # else suspects that have had their time
        if group is None or (others and now < self.reserved_at + ALONE_SECONDS):
            return
        slots = {False: bench.threads, True: bench.async_slots}
        able = self.slots.fitting(group) if self.slots else group
        sent = [run for on in slots for run in _of(able, on)[: max(slots[on] - bench.outstanding[on], 0)]]
        if sent:
            left = [run for run in group if run not in sent]
            at = self.groups.index(group)
            self.groups[at : at + 1] = [left] if left else []
            bench.exclusive, self.reserved_at = True, None
            bench.alone_until = now + max(map(_seconds_alone, sent))
            self._send(bench, sent, now)

    def apart(self, executors: Iterable[ExecutorProcess]) -> Suspects | None:
        """Return which suspects run apart now, and which wait for it; None without any."""
        running = [
            run.job.id
            for child in executors if child.exclusive
            for run in child.runs.values() if run.alone and run.job.database == self.alias
        ]  # fmt: skip
        pending = [run.job.id for run in self.suspects]
        return Suspects(running[:MOST_SUSPECTS], pending[:MOST_SUSPECTS]) if running or pending else None

    def _send(self, child: ExecutorProcess, runs: list[HeldRun], now: float) -> None:
        if not runs:
            return
        number, name = self.numbers.last, child.application_name
        for run in runs:
            number += 1
            run.run, run.child, run.state, run.since, run.executor = number, child, SENT, now, name
        self.numbers.last = number
        child.add(*runs)
        self.count(runs, 1)
        start_by = min(now + START_WITHIN_SECONDS, min({run.claim for run in runs}, key=_trust).trusted_until)
        child.end.send(RunJobs(start_by, groups_of(runs)))

    def release_unstarted(self, executors: Iterable[ExecutorProcess], wanted: Callable[[HeldRun], bool]) -> None:
        """Ask executors to release the ``wanted`` runs that they have not started."""
        for child in executors:
            own = [run for run in child.runs.values() if run.state == SENT and run.job.database == self.alias]
            child.release_unstarted(list(filter(wanted, own)))

    def withdraw(self, wanted: Callable[[HeldRun], bool]) -> list[HeldRun]:
        """Remove and return the waiting runs that are ``wanted``."""
        taken: list[HeldRun] = []
        for is_async, queue in self.waiting.items():
            some = set(filter(wanted, queue))
            if some:
                taken += [run for run in queue if run in some]
                self.waiting[is_async] = deque(run for run in queue if run not in some)
        for group, crowded in self.crowded.items():
            taken += filter(wanted, crowded)
            self.crowded[group] = [run for run in crowded if not wanted(run)]
        taken += [run for run in self.suspects if wanted(run)]
        staying = ([run for run in group if not wanted(run)] for group in self.groups)
        self.groups = [group for group in staying if group]
        return taken


def free(executors: Iterable[ExecutorProcess], is_async: bool) -> int:
    """Return how many more jobs fit in the threads of executors, or on their loops."""
    return sum(max(0, child.room(is_async=is_async)) for child in executors)


def _bench(executors: list[ExecutorProcess]) -> ExecutorProcess | None:
    """Choose the next bench: an empty executor, else the one with the least work.

    Never the last executor left for other jobs while a new one is starting.
    """
    ready = [child for child in executors if child.state == READY]
    coming = any(child.state == STARTING for child in executors)
    empty = [child for child in ready if not child.runs]
    if coming and (len(ready) == 1 or not empty):
        return None
    return min(ready, key=lambda child: (len(child.runs), bool(child.leaving)), default=None)


def _seconds_alone(run: HeldRun) -> float:
    """Return how long a suspect runs apart: in the end long enough for any."""
    return min(ALONE_SECONDS * 2.0 ** max(run.suspected - 1, 0), LONGEST_ALONE_SECONDS)


def _of(runs: list[HeldRun], is_async: bool) -> list[HeldRun]:
    return [run for run in runs if run.is_async == is_async]


def _is_async(run: HeldRun) -> bool:
    definition = registry.find(run.job.name)
    return definition is not None and definition.is_async and run.job.ending is None


def _is_fresh(run: HeldRun, now: float) -> bool:
    return run.fresh_until >= now and run.claim.trusted_until > now


def _rank(run: HeldRun) -> tuple[int, datetime, int]:
    job = run.job
    return -job.priority, job.run_at, job.id


def _trust(claim: HeldClaim) -> float:
    return claim.trusted_until
