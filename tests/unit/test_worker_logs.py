"""The supervisor's log thread: nothing waits for it, and nothing is lost that it can write in time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from django_pgjobs.worker.supervisor import logs
from django_pgjobs.worker.supervisor.logs import logging_in_a_thread
from tests.plugins.fix_db import patience

log = logging.getLogger("django_pgjobs")


class Gated(logging.Handler):
    """Writes once its gate is open: a pipe that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.gate.wait(patience(30))
        self.lines.append(record.getMessage())


@pytest.fixture
def handler() -> Iterator[Gated]:
    handler = Gated()
    log.addHandler(handler)
    log.propagate = False  # what the thread writes once the gate is open is no record of a later test
    yield handler
    handler.gate.set()
    log.removeHandler(handler)
    log.propagate = True


@pytest.mark.parametrize(
    ("verbosity", "package", "jobs"),
    [
        (0, logging.WARNING, logging.WARNING), (1, logging.INFO, logging.WARNING),
        (2, logging.INFO, logging.INFO), (3, logging.DEBUG, logging.DEBUG),
    ],
)  # fmt: skip
def test_what_a_worker_says_on_stderr_follows_the_verbosity(verbosity: int, package: int, jobs: int) -> None:
    """A70: lines of single jobs from -v 2 on; and afterwards all is as it was."""
    each = logging.getLogger("django_pgjobs.jobs")
    before = log.level, each.level, list(log.handlers)
    be_silent = logs.speak_on_stderr(verbosity)
    said = log.level, each.level
    be_silent()
    assert said == (package, jobs)
    assert (log.level, each.level, log.handlers) == before


@pytest.mark.parametrize("name", ["django.tasks", "django_tasks"])
@pytest.mark.parametrize(
    ("verbosity", "level"), [(0, logging.WARNING), (1, logging.WARNING), (2, logging.INFO), (3, logging.DEBUG)]
)
def test_what_django_says_of_each_task_is_as_quiet_as_our_line_of_each_job(
    name: str, verbosity: int, level: int
) -> None:
    """Paper §1.6: otherwise every end of a task would read a row for a line that nobody asked for."""
    logger = logging.getLogger(name)
    before = logger.level
    be_silent = logs.speak_on_stderr(verbosity)
    said = logger.level
    be_silent()
    assert (before, said, logger.level) == (logging.NOTSET, level, logging.NOTSET)


def test_a_level_that_the_project_gave_the_logger_of_tasks_stays() -> None:
    logger = logging.getLogger("django.tasks")
    logger.setLevel(logging.DEBUG)
    try:
        logs.speak_on_stderr(1)()
        assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(logging.NOTSET)


def test_what_was_said_is_written_before_the_end(handler: Gated) -> None:
    handler.gate.set()
    with logging_in_a_thread() as listening:
        log.error("the last word")
        assert handler not in log.handlers
    assert handler.lines == ["the last word"]
    assert not listening.is_stuck
    assert handler in log.handlers


def test_a_pipe_that_nobody_reads_keeps_no_worker_from_its_end(handler: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    """And however much is said meanwhile, nobody waits."""
    monkeypatch.setattr(logs, "LAST_WORDS_SECONDS", 0.1)
    monkeypatch.setattr(logs, "LIMIT", 10)
    with logging_in_a_thread() as listening:
        for number in range(100):
            log.error("word %d", number)
    assert listening.is_stuck
