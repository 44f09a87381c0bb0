"""Bounds the memory of jobs and executors, and keeps the peak of each attempt that it measures. Main thread only.

It measures what a process holds of its own: neither files nor, for the growth, which of its pages its template still
shares. It looks only where there is a limit: every executor with ``EXECUTOR_KILL_MEGABYTES``, and, once a job with
``memory=`` was seen, those that run. Only a process can be measured. A job that is alone there, and was from its start,
is led up a ladder; with several the executor is killed, and who did it is found as after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

from django_pgjobs.logs import log
from django_pgjobs.worker.shared.ladders import MEMORY
from django_pgjobs.worker.shared.runs import HeldRun, Usage
from django_pgjobs.worker.supervisor import escalation
from django_pgjobs.worker.supervisor.executor_process import DRAINING, READY, ExecutorProcess
from django_pgjobs.worker.supervisor.recycling import MEGABYTE, anonymous_bytes, resident_bytes

OFTEN_SECONDS = 0.2
"""Interval at which an executor with jobs that have a limit is measured."""

SELDOM_SECONDS = 1.0
"""Interval for others, and for all where only a program tells their size."""

SHORT_SECONDS = 1.0
"""Length of the attempts that leave no peak, and time between two writes of one."""

STEP = 1.05
"""Factor by which a peak rises before it is written again."""

KEPT = 4
"""Number of attempts of a job whose peaks are kept: a claim reads 1,000 bytes of a job's options."""


class MemoryGuard:
    """The limit of an executor, in megabytes; ``keep`` stores the peaks of a running job, as text."""

    def __init__(self, most: int | None, keep: Callable[[HeldRun, str], None]) -> None:
        self.most = most
        self.keep = keep
        self.wanted = most is not None
        self.exact = _is_exact()
        self.blind = False

    def got_ready(self, child: ExecutorProcess) -> str:
        """Measure an executor that is ready; return why no job should run in any, empty if jobs may."""
        child.own_bytes = _size(child.pid) if self.exact or self.wanted else 0
        if self.most is None:
            return ""
        self.blind = self._report_blind(_size(os.getpid()))
        size = child.own_bytes
        if size <= self.most * MEGABYTE / 2:
            return ""
        return f"an executor without jobs holds {size / MEGABYTE:.0f} MB, EXECUTOR_KILL_MEGABYTES is {self.most}"

    def check(self, child: ExecutorProcess, now: float) -> None:
        """Measure an executor if it is time, and stop what takes too much."""
        if now < child.own_at + OFTEN_SECONDS or child.state not in (READY, DRAINING):
            return
        limited = any(run.job.extras is not None and run.job.memory_limit for run in child.runs.values())
        self.wanted = self.wanted or limited
        often = self.exact and (limited or (self.most is not None and child.runs))
        if not self.wanted or self.blind or (not often and now < child.own_at + SELDOM_SECONDS):
            return
        high = {False: child.board.high("sync"), True: child.board.high("async")}
        shown = child.board.running()
        size = _size(child.pid)
        if not size:  # one that is ending has no pages: only our own size tells that nothing can be measured
            self.blind = self._report_blind(_size(os.getpid()))
            return
        running = [child.runs[number] for number in shown if number in child.runs]
        # A run leaves the board before its end is told, and others come while the size is read.
        ended = any(number not in shown and number <= high[run.is_async] for number, run in child.runs.items())
        company = len(running) > 1 or ended or child.board.running().keys() != shown.keys()
        for run in running:
            if self.most is not None or (run.job.extras is not None and run.job.memory_limit):
                self._measure(child, run, size, now, company=company)
        child.own_bytes, child.own_at, child.own_done = size, now, child.done
        self._judge(child, running, now)

    def _measure(self, child: ExecutorProcess, run: HeldRun, size: int, now: float, *, company: bool) -> None:
        usage = run.memory
        if usage is None or usage.run != run.run:
            # Its growth counts from the last look on, if no other job was there since.
            before = child.own_bytes if child.own_done == child.done and not company else 0
            usage = run.memory = Usage(run.run, min(before or size, size), child.done, run.started_at or now)
        usage.peak = max(usage.peak, size)
        usage.company = usage.company or company or child.done != usage.done
        long = now >= max(usage.began, usage.kept_at) + SHORT_SECONDS
        if long and usage.peak > usage.kept * STEP:
            self._keep(run, usage, now)

    def _keep(self, run: HeldRun, usage: Usage, now: float) -> None:
        usage.kept, usage.kept_at = usage.peak, now
        self.keep(run, with_peak(run.job.option("peaks"), run.job.attempt, usage.start, usage.peak))

    def _judge(self, child: ExecutorProcess, running: list[HeldRun], now: float) -> None:
        over = [run for run in running if self._is_over(run, child.own_bytes)]
        if not over or any(MEMORY in run.stops for run in running):
            return
        for run in over:
            if run.memory is not None:
                self._keep(run, run.memory, now)
        [run, *others] = running
        if not others and run.memory is not None and not run.memory.company and not self._inherits(child, run):
            why = run.memory.words
            log.warning("job takes too much memory, it is stopped pid=%d %s: %s", child.pid, run.job.facts, why)
            escalation.stop(run, MEMORY, MEMORY, now)
            return
        child.over = next(run.memory.words for run in over if run.memory is not None)
        about = child.pid, len(running), child.over
        log.warning("executor takes too much memory, it is killed pid=%d jobs=%d: %s", *about)
        escalation.blame(child)
        child.kill()

    def _inherits(self, child: ExecutorProcess, run: HeldRun) -> bool:
        """Tell whether a run exceeds the limit of its executor only, and that was nearly full when it began."""
        usage, own = run.memory, run.job.memory_limit
        if usage is None or self.most is None or (own and child.own_bytes - usage.start > own * MEGABYTE):
            return False
        return child.done > 0 and usage.start > self.most * MEGABYTE * 3 / 4

    def _is_over(self, run: HeldRun, size: int) -> bool:
        """Return whether a run must be stopped, and say why in its ``words``."""
        usage, own = run.memory, run.job.memory_limit
        if usage is None:
            return False
        start, now = usage.start / MEGABYTE, size / MEGABYTE
        if own is not None and now - start > own:
            usage.words = (
                f"Its process grew by {now - start:.0f} MB, more than {own} MB (memory={own}): "
                f"from {start:.0f} MB at the start of the attempt to {now:.0f} MB."
            )
            return True
        if self.most is not None and now > self.most:
            usage.words = (
                f"Its process held {now:.0f} MB, more than {self.most} MB (EXECUTOR_KILL_MEGABYTES), "
                f"{start:.0f} MB of them at the start of the attempt."
            )
            return True
        return False

    def _report_blind(self, size: int) -> bool:
        if not size and not self.blind:
            log.warning("memory of executors cannot be measured here, its limits do nothing")
        return not size


def with_peak(before: object, attempt: int, start: int, peak: int) -> str:
    """Return the peaks of a job, *attempt:start-peak* in megabytes, with that of an attempt behind those ``before``."""
    earlier = [each for each in _split(before) if not each.startswith(f"{attempt}:")]
    return " ".join([*earlier[1 - KEPT :], f"{attempt}:{start / MEGABYTE:.0f}-{peak / MEGABYTE:.0f}"])


def _split(peaks: object) -> list[str]:
    return peaks.split() if isinstance(peaks, str) else []


@cache
def _is_exact() -> bool:
    return anonymous_bytes(os.getpid()) > 0


def _size(pid: int) -> int:
    return anonymous_bytes(pid) if _is_exact() else resident_bytes(pid)
