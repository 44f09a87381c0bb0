"""In the executor: the lines of jobs on their way to the supervisor, once a second and before each outcome.

A thread sends them, not the job's own: what interrupts a job must not meet a half-sent frame. It starts with the first
job whose lines are kept, and sleeps while none is logged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from django_pgjobs.conf import get_conf
from django_pgjobs.execution import log_lines
from django_pgjobs.execution.prepared import Prepared, RunControl
from django_pgjobs.logs import log
from django_pgjobs.worker.shared.channel import ExecutorEnd
from django_pgjobs.worker.shared.channel_messages import Logged

SECONDS = 1.0


class LineSender:
    """Sends lines of ``runs()``, those that have started here."""

    def __init__(self, end: ExecutorEnd, runs: Callable[[], list[RunControl]]) -> None:
        self.default = get_conf().job_logs
        self.end = end
        self.runs = runs
        self.bell: SimpleQueue[None] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._sending = threading.Lock()

    def begin(self, prepared: Prepared) -> None:
        """Keep the lines of a run from now on, if its job keeps any."""
        level = log_lines.level_of(prepared.definition)
        if not level:
            return
        with self._starting:
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._serve, name="pgjobs-lines", daemon=True)
                try:
                    self.thread.start()
                except RuntimeError as error:
                    self.thread = None
                    log.warning("no thread sends the lines of jobs before their ends: %s", error)
        log_lines.begin(prepared.control, level, self.bell)

    def _serve(self) -> None:
        while True:
            self.bell.get()
            time.sleep(SECONDS)
            with suppress(Empty):
                while True:
                    self.bell.get_nowait()
            for run in self.runs():
                self.send(run)

    def close(self, run: RunControl) -> None:
        """Send the last lines of a run; its outcome follows."""
        if run.lines is not None:
            run.lines.close(get_conf().bounds)
            self.send(run)

    def send(self, run: RunControl) -> None:
        """Send the lines of a run that are not sent yet; the next caller continues behind them."""
        if run.lines is not None and run.lines.rows:
            with self._sending, suppress(OSError):  # a supervisor that is gone is the control thread's business
                if lines := run.lines.sent():
                    self.end.send(Logged(run.run, list(map(list, lines))))
