"""Tells whether the kernel killed one of our processes because memory ran out, by the counter of our control group.

A SIGKILL does not show its sender. If the group's count of such kills rose just then, it was the kernel.
"""

from __future__ import annotations

from pathlib import Path

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
