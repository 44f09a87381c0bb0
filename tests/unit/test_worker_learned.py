"""What an executor says of a job that it has found, so that the supervisor writes its ends with its callbacks (O1)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

from django_pgjobs import decisions as decide
from django_pgjobs.context import JobContext
from django_pgjobs.definition.registry import registry
from django_pgjobs.jobs import JobDefinition
from django_pgjobs.worker.executor import cleanup
from django_pgjobs.worker.executor.interrupts import Door
from django_pgjobs.worker.executor.main import Executor
from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.board import Board
from django_pgjobs.worker.shared.channel_messages import Learned
from tests.plugins.fix_db import patience, wait_until
from tests.unit.worker_fakes import sent_run

gate = threading.Event()
"""What the module of a test waits for in the middle of its import."""

HALF = """
from django_pgjobs import job
from tests.unit import test_worker_learned

@job
def pay(): ...

test_worker_learned.gate.wait(60)

@pay.on_abandon
def apologise(context): ...
"""


class End:
    """An executor's end that keeps what it was given."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.fixture
def end() -> End:
    return End()


@pytest.fixture
def executor(end: End, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    """An executor with two threads, none of which runs."""
    monkeypatch.setattr(cleanup, "refresh", lambda: None)
    monkeypatch.setattr(cleanup, "tidy", lambda job: None)
    board = Board.create(2, 2)
    with registry.isolated():
        yield Executor(cast(channel.ExecutorEnd, end), board, 2, 2, "default")
    board.close()


def perform(executor: Executor, name: str, attempt: int = 1) -> decide.Decision:
    return executor.threads.run(sent_run(1, name=name, attempt=attempt, max_attempts=1), Door())


def work() -> None: ...


def apologise(context: JobContext) -> None: ...


def test_a_job_that_ends_without_a_start_is_said_all_the_same(executor: Executor, end: End) -> None:
    """No attempt was left, say: the supervisor writes that end, and must leave the callback to somebody."""
    found: JobDefinition[..., Any] = JobDefinition(work, {"name": "distant.work"})
    found.on_abandon(apologise)
    registry.add_resolver(lambda name: found)
    assert isinstance(perform(executor, "distant.work", attempt=2), decide.Abandoned)
    assert end.sent == [Learned("distant.work", ["on_abandon"])]
    perform(executor, "distant.work", attempt=2)
    assert len(end.sent) == 1, "once is enough"


def test_nothing_is_said_of_a_name_that_nobody_knows(executor: Executor, end: End) -> None:
    assert isinstance(perform(executor, "distant.work"), decide.Parked)
    assert not end.sent


def test_a_job_is_said_with_the_callbacks_that_its_module_declares_later(
    executor: Executor, end: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that comes while another one imports the module finds the job before its callbacks are there."""
    (tmp_path / "half_imported.py").write_text(HALF)
    monkeypatch.syspath_prepend(tmp_path)
    gate.clear()
    name = "half_imported.pay"
    importer = threading.Thread(target=import_module, args=("half_imported",))
    second = threading.Thread(target=perform, args=(executor, name))
    importer.start()
    try:
        wait_until(lambda: registry.find(name) is not None, 10, "the module has declared the job")
        second.start()
        wait_until(lambda: not second.is_alive() or _imports(second), 10, "the second thread waits, or has not waited")
        assert not end.sent
    finally:
        gate.set()
        importer.join(patience(30))
        second.join(patience(30))
        sys.modules.pop("half_imported", None)
    assert end.sent == [Learned(name, ["on_abandon"])]


def _imports(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if "importlib._bootstrap" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
