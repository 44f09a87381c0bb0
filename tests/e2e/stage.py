"""Where jobs of end-to-end tests leave traces outside the database, and where they wait for the test.

One directory, named by ``PGJOBS_TEST_STAGE``: ``effects`` is an append-only log, one line a trace, which survives
whatever the job does to its process or its transaction; any other file is a gate that is open once it exists.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

GATE_SECONDS = 120.0


@dataclass(frozen=True)
class Trace:
    """One line: the instant (CLOCK_MONOTONIC, the same in all processes), the process, and what was noted."""

    at: float
    pid: int
    words: tuple[str, ...]


class Stage:
    """The directory, seen by a test or by a job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.effects = path / "effects"
        self.effects.touch()

    def note(self, *words: object) -> None:
        """Append a line; one write, so lines of several processes never mix."""
        line = " ".join([f"{time.monotonic():.6f}", str(os.getpid()), *(str(word).replace(" ", "_") for word in words)])
        fd = os.open(self.effects, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, f"{line}\n".encode())
        finally:
            os.close(fd)

    def traces(self, *words: object) -> list[Trace]:
        """Return what was noted, oldest first; only lines that begin with ``words``."""
        begin = tuple(str(word) for word in words)
        whole = self.effects.read_text().rpartition("\n")[0]  # a reader may see half of a line that is being appended
        lines = (line.split(" ") for line in whole.splitlines())
        all_traces = [Trace(float(at), int(pid), tuple(rest)) for at, pid, *rest in lines]
        return [trace for trace in all_traces if trace.words[: len(begin)] == begin]

    def count(self, *words: object) -> int:
        """Return how many lines begin with ``words``."""
        return len(self.traces(*words))

    def open(self, gate: str) -> None:
        """Let jobs that wait for ``gate`` go on."""
        (self.path / f"gate-{gate}").touch()

    def is_open(self, gate: str) -> bool:
        """Tell whether ``gate`` was opened."""
        return (self.path / f"gate-{gate}").exists()

    def wait(self, gate: str) -> None:
        """Wait until the test opens ``gate``; an abandoned test does not keep the job for ever."""
        until = time.monotonic() + GATE_SECONDS
        while not self.is_open(gate) and time.monotonic() < until:
            time.sleep(0.005)

    def clear(self) -> None:
        """Forget all traces and close all gates."""
        os.truncate(self.effects, 0)
        for gate in self.path.glob("gate-*"):
            gate.unlink()


def here() -> Stage:
    """Return the stage of the test that started this process."""
    return Stage(Path(os.environ["PGJOBS_TEST_STAGE"]))
