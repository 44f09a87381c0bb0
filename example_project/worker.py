"""The worker as the demo starts it: ``manage.py runjobs``, a process of its own, stopped with the demo."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

MANAGE = Path(__file__).resolve().parent / "manage.py"
STOP_SECONDS = 40.0
TAIL_LINES = 30

# The shell becomes the worker. Its child reads the pipe whose other end only the demo holds: end of file means that
# the demo was killed, a line that the demo stops the worker itself.
WATCHED = 'exec 3<&0; (read -r line <&3 || kill -TERM $$) & exec "$@" 3<&- </dev/null'


class WorkerEnded(Exception):
    """The worker ended, or stopped working, before it should; the message has the end of its log."""


class Worker:
    """A context manager around one worker. It leads a process group of its own, so Ctrl-C reaches only the demo."""

    def __init__(self, processes: int) -> None:
        self.log = tempfile.NamedTemporaryFile(prefix="demo-worker-", suffix=".log")  # noqa: SIM115
        command = [
            "/bin/sh",
            "-c",
            WATCHED,
            "sh",
            sys.executable,
            str(MANAGE),
            "runjobs",
            "--no-reload",
            "--processes",
            str(processes),
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self.log, stderr=self.log, process_group=0
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self.log.close()

    def wait(self, seconds: float) -> None:
        """Let it work for so long. Raises WorkerEnded as soon as it has ended."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        raise WorkerEnded(f"The worker ended with status {status}. The end of its log:\n{self.tail()}")

    def stop(self) -> int:
        """Drain it by SIGTERM and return its exit status; kill it if that takes too long. Repeatable."""
        self._dismiss_watcher()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.process.wait()

    def _dismiss_watcher(self) -> None:
        pipe = self.process.stdin
        if pipe is not None and not pipe.closed:
            with suppress(BrokenPipeError):
                pipe.write(b"\n")
                pipe.close()

    def tail(self) -> str:
        """Return the last lines of its log."""
        text = Path(self.log.name).read_text(errors="replace")
        return "\n".join(text.splitlines()[-TAIL_LINES:])
