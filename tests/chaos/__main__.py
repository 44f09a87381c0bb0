"""The fixed set, several files at a time: ``python -m tests.chaos``, which is what ``make chaos`` runs.

Most of its time the kit waits, for leases that run out and servers that come back, so LANES processes of pytest run
side by side, each with one file and a test database of its own. A file's output is printed when it has ended, and the
last lines say how each went. Status 1 if one failed. SIGINT and SIGTERM end what runs in good order: workers and
servers go with their tests.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

LANES = 3
LONGEST = (
    "test_state_machine",
    "test_interleavings_gates",
    "test_interleavings_waits",
    "test_interleavings",
    "test_faults_heirs",
    "test_faults_locks",
)
"""Started first, so that no long file is left for the end."""

NO_TESTS = 5
GRACE_SECONDS = 60.0


@dataclass(frozen=True)
class Ended:
    """How one file went."""

    file: Path
    status: int
    seconds: float
    output: str

    @property
    def passed(self) -> bool:
        return self.status in (0, NO_TESTS)

    def __str__(self) -> str:
        last = self.output.rstrip().rpartition("\n")[2].strip("= ")
        return f"{self.file.stem:24} {self.seconds:5.0f} s  {'' if self.passed else f'status {self.status}: '}{last}"


class Runner:
    """Runs files in lanes until none is left or somebody stops it."""

    def __init__(self, files: list[Path], lanes: int = LANES) -> None:
        self.files: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for file in files:
            self.files.put(file)
        self.lanes = lanes
        self.ended: list[Ended] = []
        self.stops = 0
        self._printing = threading.Lock()

    def run(self) -> int:
        """Run all; return the exit status."""
        threads = [threading.Thread(target=self._lane, args=(number,)) for number in range(self.lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say("\n".join(["", *map(str, sorted(self.ended, key=lambda each: each.file))]))
        return 1 if self.stops or not all(each.passed for each in self.ended) else 0

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Begin nothing new and interrupt what runs, so that each pytest tidies up; the second time, kill it."""
        self.stops += 1

    def _lane(self, lane: int) -> None:
        while not self.stops:
            try:
                file = self.files.get_nowait()
            except queue.Empty:
                return
            ended = self._file(lane, file)
            with self._printing:
                self.ended.append(ended)
                say(f"\n== {file.relative_to(ROOT)}\n{ended.output.rstrip()}")

    def _file(self, lane: int, file: Path) -> Ended:
        began = time.monotonic()
        environment = {**os.environ, "PGJOBS_TEST_DATABASE": f"test_pgjobs_chaos_{lane}"}
        command = [sys.executable, "-X", "dev", "-m", "pytest", "-m", "chaos", str(file)]
        with tempfile.TemporaryFile() as output:
            # In a session of its own: a key press would reach it beside our signal, and the second one breaks off
            # the tidying up.
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            status = self._wait(process)
            output.seek(0)
            return Ended(file, status, time.monotonic() - began, output.read().decode(errors="replace"))

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        patient_until = float("inf")
        while True:
            try:
                return process.wait(0.2)
            except subprocess.TimeoutExpired:
                if self.stops > 1 or time.monotonic() > patient_until:
                    process.kill()
                elif self.stops and patient_until == float("inf"):
                    process.send_signal(signal.SIGINT)
                    patient_until = time.monotonic() + GRACE_SECONDS


def say(words: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def in_order(files: list[Path]) -> list[Path]:
    """Return files, the longest first."""
    rank = {name: place for place, name in enumerate(LONGEST)}
    return sorted(files, key=lambda file: (rank.get(file.stem, len(LONGEST)), file.stem))


def main() -> int:
    """Run all files of the kit; return the exit status."""
    runner = Runner(in_order(list(HERE.glob("test_*.py"))))
    signal.signal(signal.SIGINT, runner.stop)
    signal.signal(signal.SIGTERM, runner.stop)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
