"""The same small programs on Celery's own worker and on the bridge: results, states, hooks and signals are equal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

pytest.importorskip("celery", reason="Celery is not installed, or does not allow this Python")

from celery import Celery, signals
from celery.contrib.testing.worker import start_worker
from celery.exceptions import ChordError
from celery.result import AsyncResult, ResultSet
from kombu.exceptions import EncodeError

from django_pgjobs.celery_bridge import install
from django_pgjobs.testing import run_jobs
from tests.db.celery_ground import DIFFERS, PROGRAMS, UNENDED, alone, cast_of, heard
from tests.plugins.fix_db import wait_until

IDS = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

pytestmark = pytest.mark.django_db


def app_of(name: str) -> Celery:
    app = Celery(name, broker="memory://", backend="cache+memory://", set_as_current=False, fixups=[])
    app.conf.update(
        broker_transport_options={"polling_interval": 0.01},
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=False,
        result_chord_retry_interval=0.05,
    )
    return app


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    """The cast on Celery, with its worker in a thread."""
    app = app_of("plain")
    cast = cast_of(app)
    app.finalize()
    app.control.purge()  # a broker in memory has the queues of the whole process: other tests leave messages there
    signals.setup_logging.connect(_leave_logging_alone)
    try:
        with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
            yield cast
    finally:
        signals.setup_logging.disconnect(_leave_logging_alone)


def _leave_logging_alone(**_: object) -> None:
    """Without a receiver Celery's worker sets the level of the root logger, of this process, for good."""


@pytest.fixture(scope="module")
def ours() -> Iterator[Any]:
    """The cast on the bridge."""
    app = app_of("bridged")
    cast = cast_of(app)
    app.finalize()
    with alone():
        install(app)
        yield cast


def outcome(result: Any) -> Any:
    if isinstance(result, ResultSet):
        return [outcome(each) for each in result.results]
    if not isinstance(result, AsyncResult):
        return repr(getattr(result, "result", result))
    state, value = result.state, result.result
    if isinstance(value, BaseException):
        words = "" if isinstance(value, EncodeError | ChordError) else str(value)
        return state, type(value).__name__, IDS.sub("…", words)
    return state, value


def is_ready(result: Any) -> bool:
    return bool(result.ready()) if hasattr(result, "ready") else True


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_does_the_same(program: str, theirs: Any, ours: Any) -> None:
    found = []
    for cast, run in ((theirs, None), (ours, run_jobs)):
        cast.log.clear()
        with heard(cast), awaited() as is_idle:  # the log has the end of a task before it counts
            result = PROGRAMS[program](cast)
            if run is not None:
                run(include_scheduled=True, max_rounds=1000)
            elif program not in UNENDED:
                wait_until(partial(is_ready, result), 10, f"{program} has ended")
            if run is None:
                settled(cast, is_idle)
            found.append((outcome(result), sorted(IDS.sub("…", repr(each)) for each in cast.log)))
    if program in DIFFERS:
        assert found[0][0] != DIFFERS[program]
        found[0] = (DIFFERS[program], found[0][1])
    assert found[1] == found[0]


@contextmanager
def awaited() -> Iterator[Callable[[], bool]]:
    """Yield whether each task that Celery's worker takes within the block has come to its end."""
    taken: list[str] = []
    ended: list[str] = []

    def take(request: Any, **_: Any) -> None:
        taken.append(request.id)

    def end(task_id: str, **_: Any) -> None:
        ended.append(task_id)

    signals.task_received.connect(take)
    signals.task_postrun.connect(end)
    try:
        yield lambda: not Counter(taken) - Counter(ended)
    finally:
        signals.task_received.disconnect(take)
        signals.task_postrun.disconnect(end)


def settled(cast: Any, is_idle: Callable[[], bool]) -> None:
    """Wait until Celery's worker has nothing more to do.

    One of its threads takes one message after the other, and a second one runs what had to wait for its instant.
    """
    seen = -1
    while len(cast.log) != seen:  # else what ran before the probe has called tasks that come behind it
        seen = len(cast.log)
        probe = cast.probe.delay()
        wait_until(probe.ready, 10, "the worker has taken what was in the queue")
        wait_until(is_idle, 10, "each task that it has taken has ended")
