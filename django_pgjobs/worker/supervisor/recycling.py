"""Decides when to replace an executor: after a number of jobs, or above an amount of memory as the system counts it.

Also tells whether there is memory for all executors of a worker.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
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

    def why(self, child: ExecutorProcess, now: float) -> str:
        """Return why ``child`` must be replaced, empty if it may stay. Checks its memory once a second."""
        if child.interrupted:
            return "one of its threads was interrupted"
        if self.max_jobs is not None and child.done >= self.max_jobs:
            return f"it has run {child.done} jobs"
        if self.max_megabytes is None or not child.done or now < child.measured_at + MEASURE_SECONDS:
            return ""
        child.measured_at = now
        resident = resident_bytes(child.pid)
        return f"it holds {resident / MEGABYTE:.0f} MB" if resident > self.max_megabytes * MEGABYTE else ""

    def shortage(self, pid: int, processes: int) -> str:
        """Return why so many executors as ``pid``, which has just started, do not fit into memory; "" if they may.

        Each takes what the first shares with no other process, or ``max_megabytes`` if it may grow so far.
        """
        each = max(_own_bytes(pid), (self.max_megabytes or 0) * MEGABYTE)
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


def _own_bytes(pid: int) -> int:
    """Return how much memory a process shares with no other; 0 if unknown."""
    with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/smaps_rollup") as file:
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("Private_"))
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
