"""The supervisor's logging: a thread writes the records, so that no blocked stderr or slow handler stops a renewal."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from django_pgjobs.logs import facts, name_jobs, write_to_stderr

LIMIT = 10_000
LAST_WORDS_SECONDS = 3.0
FORMAT = "%(asctime)s %(levelname)s %(message)s"
JOBS_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
PER_JOB = ("django_pgjobs.jobs", "django.tasks", "django_tasks")
"""Loggers that say a line per start and end of each job: ours, and those of Django's tasks and their backport."""


class _Handler(logging.handlers.QueueHandler):
    """Drops records if the thread cannot keep up: a worker must not wait for its log."""

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


class _Listener(logging.handlers.QueueListener):
    """Passes records to the project's handlers, as the logger itself would."""

    def handle(self, record: logging.LogRecord) -> None:
        record = self.prepare(record)
        for handler in self.handlers:
            if record.levelno >= handler.level:
                try:
                    handler.handle(record)
                except BaseException as error:  # else this thread would end, and the worker be mute
                    write_to_stderr(record.levelno, record.getMessage(), (), error)

    def stop_within(self, seconds: float) -> bool:
        """Let it write the remaining records; return whether it did. Does not wait for a pipe that no process reads."""
        thread: threading.Thread = self._thread  # type: ignore[assignment]
        with contextlib.suppress(queue.Full):
            self.enqueue_sentinel()
        thread.join(seconds)
        self._thread = None
        return not thread.is_alive()


@dataclass(slots=True)
class _Listening:
    """State of the log thread."""

    is_stuck: bool = False


@contextlib.contextmanager
def logging_in_a_thread() -> Iterator[_Listening]:
    """Within the block, a separate thread writes the records of this package.

    The yielded object tells afterwards whether that thread hangs. Then the process must not exit in the usual way,
    which flushes the very stream that the thread is stuck in.
    """
    logger = logging.getLogger("django_pgjobs")
    handlers, propagate = logger.handlers, logger.propagate
    reached = _reached(logger)
    records: queue.Queue[logging.LogRecord] = queue.Queue(LIMIT)
    listener = _Listener(records, *reached)
    listening = _Listening()
    logger.handlers, logger.propagate = [_Handler(records)], False
    listener.start()
    try:
        yield listening
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        listening.is_stuck = not listener.stop_within(LAST_WORDS_SECONDS)


def _reached(logger: logging.Logger) -> list[logging.Handler]:
    found: list[logging.Handler] = []
    link: logging.Logger | None = logger
    while link is not None:
        found += link.handlers
        link = link.parent if link.propagate else None
    return found


def speak_on_stderr(verbosity: int) -> Callable[[], None]:
    """Log to stderr if the project has no handler for this package: INFO, per-job lines from ``-v 2`` on.

    Returns a function that undoes it, for a program that continues after its worker.
    """
    undo = _speak_of_ourselves(verbosity), _speak_of_jobs(verbosity)
    name_jobs()

    def be_silent() -> None:
        for each in undo:
            each()

    return be_silent


def _speak_of_jobs(verbosity: int) -> Callable[[], None]:
    """Let the project's own loggers reach stderr, from INFO on, where the root logger is not configured."""
    root = logging.root
    if root.handlers or root.level != logging.WARNING:
        return lambda: None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JobFormatter(JOBS_FORMAT))
    handler.addFilter(_has_no_other_handler)
    root.addHandler(handler)
    root.setLevel(logging.INFO if verbosity >= 1 else logging.WARNING)

    def be_silent() -> None:
        root.removeHandler(handler)
        root.setLevel(logging.WARNING)

    return be_silent


def _has_no_other_handler(record: logging.LogRecord) -> bool:
    """Return whether only the root logger has a handler for this record: Django's own, and ours, are said once."""
    return _reached(logging.getLogger(record.name)) == logging.root.handlers


class _JobFormatter(logging.Formatter):
    """Says behind a line which job it is of."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        if (job := getattr(record, "job", None)) is None:
            return line
        first, newline, rest = line.partition("\n")
        about = facts("job=%s attempt=%s queue=%s", job, record.attempt, record.queue)  # type: ignore[attr-defined]
        return f"{first} {about}{newline}{rest}"


def _speak_of_ourselves(verbosity: int) -> Callable[[], None]:
    logger = logging.getLogger("django_pgjobs")
    if _configured(logger):
        return lambda: None
    level = logger.level
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbosity >= 3 else logging.INFO if verbosity >= 1 else logging.WARNING)
    per_job = logging.DEBUG if verbosity >= 3 else logging.INFO if verbosity >= 2 else logging.WARNING
    untouched = [each for each in map(logging.getLogger, PER_JOB) if each.level == logging.NOTSET]
    for each in untouched:
        each.setLevel(per_job)

    def be_silent() -> None:
        logger.removeHandler(handler)
        logger.setLevel(level)
        for each in untouched:
            each.setLevel(logging.NOTSET)

    return be_silent


def _configured(logger: logging.Logger) -> bool:
    """Return whether INFO of this package would reach a handler of the project."""
    return logger.isEnabledFor(logging.INFO) and bool(_reached(logger))
