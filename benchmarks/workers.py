"""A real worker, ``runjobs``, as a process of its own, and its costs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import tables

ROOT = Path(__file__).resolve().parent.parent
READY = re.compile(r"executor is ready")
COSTS = re.compile(r"(statements|cpu_supervisor|cpu_executors)=([\d.]+)")
BOOT_SECONDS = 120.0
PATIENCE_SECONDS = 900.0
WARM_UP_JOBS = 3000


class BenchmarkError(Exception):
    """A line could not be measured."""


@dataclass(slots=True)
class Worker:
    """A worker that runs; ``costs`` (statements, CPU seconds) and ``log`` are complete once it has stopped."""

    process: subprocess.Popen[str]
    ready: int = 0
    log: list[str] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    asked: bool = False

    def stop(self) -> None:
        """Ask it once to drain; repeatable. A second signal would hurry it."""
        if not self.asked:
            self.asked = True
            self.process.send_signal(signal.SIGTERM)

    @property
    def costs(self) -> dict[str, float]:
        """Return the figures in its last line."""
        return {name: float(text) for name, text in COSTS.findall(self.log[-1] if self.log else "")}

    def listen(self) -> None:
        """Read its log until it ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            self.ready += bool(READY.search(line))

    def weigh(self, seconds: float) -> None:
        """Record the supervisor's memory every so many seconds until it ends."""
        while self.process.poll() is None:
            if held := resident_mb(self.process.pid):
                self.memory.append((time.time(), held))
            time.sleep(seconds)


@contextmanager
def working(
    *,
    processes: int,
    threads: int = 4,
    async_slots: int = 50,
    weigh: float = 0.0,
    stamps: str = "",
    keep: str = "",
    empty: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Worker]:
    """Run a worker whose executors are all ready; it drains at the end of the block.

    ``keep="nothing"`` sets the retention of jobs that succeed to 0. Empties the tables first; pass ``empty=False``
    beside another worker. ``environment`` is added to its own, for ``benchmarks.settings``.
    """
    if empty:
        tables.empty()
    command = [sys.executable, "-m", "django", "runjobs", f"--processes={processes}", f"--threads={threads}"]
    process = subprocess.Popen(
        [*command, f"--async-slots={async_slots}", "--no-reload"],
        cwd=ROOT,
        env={**os.environ, "PGJOBS_BENCH_STAMPS": stamps, "PGJOBS_BENCH_KEEP": keep, **(environment or {})},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    worker = Worker(process)
    listener = threading.Thread(target=worker.listen, daemon=True)
    listener.start()
    try:
        wait_until(worker, lambda: worker.ready >= processes, BOOT_SECONDS, "has no executors")
        if weigh:
            threading.Thread(target=worker.weigh, args=(weigh,), daemon=True).start()
        yield worker
        worker.stop()
        process.wait(60)
        listener.join(10)
    finally:
        process.kill()
        process.wait()


def warm_up(worker: Worker, register: Callable[[int], None] = tables.register) -> None:
    """Let a worker prepare its statements and learn how short no-ops are; then remove all jobs."""
    register(WARM_UP_JOBS)
    until_idle(worker)
    tables.clear_jobs()


def drained(worker: Worker, count: int) -> float:
    """Wait until the jobs have ended and return the seconds from the first claim to the last end."""
    until_idle(worker)
    done = tables.finished()
    if done != count:
        raise BenchmarkError(f"{done} of {count} jobs succeeded")
    first, last = tables.span()
    return last - first


def until_idle(worker: Worker) -> None:
    """Wait until no job is left. One check costs the database no more than a claim."""
    wait_until(worker, lambda: not tables.unfinished(), pause=0.1)


def wait_until(
    worker: Worker,
    fact: Callable[[], bool],
    seconds: float = PATIENCE_SECONDS,
    what: str = "is not done",
    pause: float = 0.02,
) -> None:
    """Wait for a fact; raise BenchmarkError if the worker ends or it takes too long."""
    until = time.monotonic() + seconds
    while not fact():
        if worker.process.poll() is not None:
            raise BenchmarkError("\n".join(["the worker has ended", *worker.log[-20:]]))
        if time.monotonic() > until:
            raise BenchmarkError("\n".join([f"the worker {what} after {seconds:g} s", *worker.log[-20:]]))
        time.sleep(pause)


def resident_mb(pid: int) -> float | None:
    """Return the resident memory of a process in MiB; None if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2
    except FileNotFoundError:
        answer = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(answer.stdout) / 1024 if answer.stdout.strip() else None


@contextmanager
def stamp_file() -> Iterator[str]:
    """Yield a file for the stamps of jobs."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "stamps")
