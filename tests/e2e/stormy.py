"""Jobs that use what all threads of a process share: some without end, until interrupted, the others so often."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from itertools import count

from django.db import connection

from django_pgjobs import JobContext, job
from tests.e2e import stage

_shared: queue.Queue[int] = queue.Queue(maxsize=8)
_semaphore = threading.Semaphore(2)
_log = logging.getLogger("tests.stormy")
_log.addHandler(logging.StreamHandler(open(os.devnull, "w")))  # noqa: SIM115 (for as long as the process lives)
_log.propagate = False


def _uses_the_queue() -> None:
    try:
        _shared.put(1, timeout=0.001)
        _shared.get(timeout=0.001)
    except (queue.Full, queue.Empty):
        return


def _imports_lazily() -> None:
    # One that is not there takes the locks of an import each time, the same for all threads.
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("tests.e2e.not_there")


def _uses_the_semaphore() -> None:
    if _semaphore.acquire(timeout=0.5):
        _semaphore.release()


def _logs() -> None:
    _log.warning("a word of %s", threading.current_thread().name)


def _asks_the_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 7")
        assert cursor.fetchone() == (7,)


def _writes_a_file() -> None:
    path = stage.here().path / f"file-{threading.get_ident()}"
    with path.open("a+") as file:
        file.write("x")
        file.flush()
        file.seek(0)
        assert file.read(1) == "x"


WAYS: dict[str, Callable[[], None]] = {
    "queue": _uses_the_queue,
    "imports": _imports_lazily,
    "semaphore": _uses_the_semaphore,
    "logging": _logs,
    "database": _asks_the_database,
    "file": _writes_a_file,
}


@job(max_attempts=1, timeout=None, takes_context=True)
def never_stops(context: JobContext, way: str) -> None:
    """Use one of them until interrupted."""
    stage.here().note("storm", context.id)
    for _ in count():
        WAYS[way]()


@job(max_attempts=1, timeout=None)
def ends_by_itself(times: int) -> int:
    """Use all of them so often: a neighbour."""
    for _ in range(times):
        for use in WAYS.values():
            use()
    return times
