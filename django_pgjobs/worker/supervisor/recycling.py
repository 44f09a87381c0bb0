"""Decides when to replace an executor: after a number of jobs, or above an amount of memory as the system counts it."""

from __future__ import annotations

import os
import subprocess
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
