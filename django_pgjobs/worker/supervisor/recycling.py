"""Decides when to replace an executor: after a number of jobs, or above an amount of memory as the system counts it.

Also tells whether there is memory for all executors of a worker, and when that ends by itself.

A SIGKILL does not show its sender. If our control group's count of such kills rose just then, it was the kernel.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_pgjobs.worker.supervisor.executor_process import ExecutorProcess


MEASURE_SECONDS = 1.0
MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Recycling:
    """The limits of an executor before its replacement; None is unlimited."""

    max_jobs: int | None = None
    max_megabytes: int | None = None
    kill_megabytes: int | None = None

    def why(self, child: ExecutorProcess, now: float) -> str:
        """Return why ``child`` must be replaced, empty if it may stay. Checks its memory once a second."""
        if child.interrupted:
            return "one of its threads was interrupted"
        if self.max_jobs is not None and child.done >= self.max_jobs:
            return f"it has run {child.done} jobs"
        most = self.most_megabytes
        if most is None or not child.done or now < child.measured_at + MEASURE_SECONDS:
            return ""
        child.measured_at = now
        resident = resident_bytes(child.pid)
        return f"it holds {resident / MEGABYTE:.0f} MB" if resident > most * MEGABYTE else ""

    @property
    def most_megabytes(self) -> int | None:
        """Amount of memory above which an executor is replaced between jobs. It leaves room below the limit at which it
        is killed: no job should pay for memory that earlier ones have left."""
        return self.max_megabytes or (self.kill_megabytes and max(1, self.kill_megabytes * 3 // 4))

    def shortage(self, pid: int, processes: int) -> str:
        """Return why so many executors as ``pid``, which has just started, do not fit into memory; "" if they may.

        Each takes what the first shares with no other process, or ``max_megabytes`` if it may grow so far.
        """
        each = max(own_bytes(pid), (self.max_megabytes or 0) * MEGABYTE)
        most = memory_bytes()
        if not each or not most or each * processes <= most:
            return ""
        grown = ", to which they may grow," if self.max_megabytes else ""
        return (
            f"{processes} executors of {each / MEGABYTE:.0f} MB{grown} do not fit into {most / MEGABYTE:.0f} MB:"
            " give --processes a smaller number"
        )


def memory_bytes() -> int:
    """Return how much memory the processes of this container, or else of this machine, may take; 0 if unknown."""
    known = [os.sysconf("SC_PHYS_PAGES") * _page_bytes()]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError), open(limit) as file:
            known.append(int(file.read()))  # "max" is no number
    return max(min(known), 0)


def own_bytes(pid: int) -> int:
    """Return how much memory a process shares with no other, swapped or not; 0 if unknown."""
    return _rollup(pid, "Private_", "SwapPss")


def anonymous_bytes(pid: int) -> int:
    """Return how much memory a process holds that is no file's, swapped or not; 0 if unknown.

    Neither its template, which may share it, nor a child of its own changes this by coming or going.
    """
    return _rollup(pid, "Anonymous:", "Swap:")


def _rollup(pid: int, *lines: str) -> int:
    with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/smaps_rollup") as file:
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith(lines))
    return 0


def resident_bytes(pid: int) -> int:
    """Return how much memory a process holds now; 0 if unknown. Measured from outside, as it may be busy."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _page_bytes()
    except (OSError, IndexError, ValueError):
        return 0 if os.path.exists("/proc/self/statm") else _asked_of_ps(pid)


def _asked_of_ps(pid: int) -> int:
    try:
        ps = ["/bin/ps", "-o", "rss=", "-p", str(pid)]
        return int(subprocess.run(ps, capture_output=True, timeout=1, check=True).stdout) * 1024
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


@cache
def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Number of executors, and conditions on which a worker ends by itself: ``max_jobs`` ended, or ``until_idle``.

    ``places``: how many jobs of a queue it runs at once, None for any; ``"*"`` is all others together.
    """

    processes: int
    max_jobs: int | None = None
    until_idle: bool = False
    drain_seconds: float = 25.0
    recycling: Recycling = Recycling()
    places: Mapping[str, int | None] | None = None

    def jobs_left(self, taken: int) -> int | None:
        """Return how many more jobs the worker may claim that has ``taken`` so many; None for any number."""
        return None if self.max_jobs is None else self.max_jobs - taken


RISE_SECONDS = 10.0
"""Time after a rise of the count within which a death may be seen: a process of many gigabytes takes a while to end."""


class OutOfMemory:
    """The count of kills in this process's control group. ``root`` is where ``/proc`` and ``/sys`` are."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.path = _counter(root)
        self.count = self._read()
        self.rises: list[float] = []

    def poll(self, now: float) -> None:
        """See whether the count has risen."""
        count = self._read()
        self.rises = [rise for rise in self.rises if rise > now - RISE_SECONDS]
        self.rises += [now] * (count - self.count)
        self.count = count

    def killed_one(self, now: float) -> bool:
        """Return whether a process that SIGKILL has ended was killed because memory ran out. Each kill explains one
        death."""
        self.poll(now)
        if not self.rises:
            return False
        self.rises.pop(0)
        return True

    def _read(self) -> int:
        try:
            lines = self.path.read_text().splitlines() if self.path else []
        except OSError:
            lines = []
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _counter(root: Path) -> Path | None:
    """Return the file with the counter, of control groups version 2 or 1; None if there is none."""
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    mounted = root / "sys/fs/cgroup"
    for _, controllers, path in groups:
        if controllers == "memory":
            counters = [
                mounted / "memory" / path.strip("/") / "memory.oom_control",
                mounted / "memory/memory.oom_control",
            ]
        elif not controllers:
            counters = [mounted / path.strip("/") / "memory.events", mounted / "memory.events"]
        else:
            continue
        # Seen from inside of a container the path may be one that only the host knows.
        found = next((counter for counter in counters if counter.is_file()), None)
        if found is not None:
            return found
    return None
