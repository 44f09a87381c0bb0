"""Where a thread is, read from its real frames: whether an interrupt there could leave a lock held that others want."""

from __future__ import annotations

import importlib
import io
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from django_pgjobs.worker.executor.safe_points import EXACT, Safety, entering, safety_of
from tests.plugins.fix_db import wait_until


def door(body: Callable[[], Any]) -> None:
    """What stands between our code and a job's."""
    body()


def own_lines(body: Callable[[], Any]) -> None:
    """Lines of ours around the door: none of these counts."""
    body()


class Rooms:
    """Threads behind a door; ``close`` opens what they wait for, in the order it was given, and joins them."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.opening = ExitStack()

    def send(self, body: Callable[[], Any], through: Callable[..., None] = door) -> int:
        thread = threading.Thread(target=through, args=(body,), daemon=True)
        thread.start()
        self.threads.append(thread)
        assert thread.ident is not None
        return thread.ident

    def close(self) -> None:
        self.opening.close()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def rooms() -> Iterator[Rooms]:
    rooms = Rooms()
    yield rooms
    rooms.close()


def safety(ident: int) -> Safety:
    return safety_of(ident, door.__code__)


def innermost(ident: int) -> str:
    frame = sys._current_frames().get(ident)
    return "" if frame is None else frame.f_code.co_qualname


def stands(ident: int, where: str) -> None:
    """Wait until the thread blocks in a function."""
    wait_until(lambda: innermost(ident) == where, 10, f"it stands in {where}, not in {innermost(ident)}")


def test_a_jobs_own_code_is_open(rooms: Rooms) -> None:
    go_on = threading.Lock()
    go_on.acquire()
    rooms.opening.callback(go_on.release)

    def body() -> None:
        go_on.acquire()

    ident = rooms.send(body)
    stands(ident, body.__qualname__)
    assert safety(ident) is Safety.OPEN


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
def test_a_lock_of_c_is_open(rooms: Rooms, kind: Callable[[], Any]) -> None:
    """``with`` takes it and keeps it in one; no Python code is in between."""
    lock = kind()
    lock.acquire()
    rooms.opening.callback(lock.release)

    def body() -> None:
        with lock:
            pass

    ident = rooms.send(body)
    stands(ident, body.__qualname__)
    assert safety(ident) is Safety.OPEN


def test_what_is_not_behind_the_door_is_nobodys_job(rooms: Rooms) -> None:
    """An interrupt only reaches the job's own code: when our own lines take a lock there is none to hold back."""
    shared: queue.Queue[int] = queue.Queue()
    shared.mutex.acquire()
    rooms.opening.callback(shared.mutex.release)
    ident = rooms.send(lambda: shared.put(1), through=own_lines)
    stands(ident, "Condition.__enter__")
    assert safety(ident) is Safety.OPEN
    assert safety_of(ident, own_lines.__code__) is Safety.TAKING


def test_a_thread_that_has_ended_is_open() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    ident = thread.ident
    thread.join()
    assert ident is not None
    assert safety(ident) is Safety.OPEN
    assert entering(ident) is None


def test_whoever_waits_for_a_condition_is_busy(rooms: Rooms) -> None:
    """It has released the lock, and ``wait`` takes it again after any exception."""
    condition = threading.Condition()
    ident = rooms.send(lambda: _waits(condition))
    rooms.opening.callback(lambda: _notifies(condition))
    stands(ident, "Condition.wait")
    wait_until(lambda: safety(ident) is Safety.BUSY, 10, "it waits for word")


def _waits(condition: threading.Condition) -> None:
    with condition:
        condition.wait()


def _notifies(condition: threading.Condition) -> None:
    with condition:
        condition.notify_all()


def test_whoever_takes_the_lock_of_a_condition_again_is_taking(rooms: Rooms) -> None:
    condition = threading.Condition(threading.Lock())
    ident = rooms.send(lambda: _waits(condition))
    stands(ident, "Condition.wait")
    wait_until(lambda: safety(ident) is Safety.BUSY, 10, "it waits for word")
    condition.acquire()
    rooms.opening.callback(condition.release)
    condition.notify()
    stands(ident, "Condition._acquire_restore")
    assert safety(ident) is Safety.TAKING


TAKES: dict[str, Callable[[], tuple[Any, Callable[[], Any]]]] = {}


def takes(make: Callable[[], tuple[Any, Callable[[], Any]]]) -> None:
    """An object with a lock of Python's: a condition's held lock, and a call that needs it."""
    TAKES[make.__name__] = make


@takes
def a_condition() -> tuple[Any, Callable[[], Any]]:
    lock = threading.Lock()
    return lock, lambda: _notifies(threading.Condition(lock))


@takes
def a_semaphore() -> tuple[Any, Callable[[], Any]]:
    semaphore = threading.Semaphore()
    return semaphore._cond._lock, semaphore.acquire  # type: ignore[attr-defined]


@takes
def an_event() -> tuple[Any, Callable[[], Any]]:
    event = threading.Event()
    return event._cond._lock, event.set  # type: ignore[attr-defined]


@takes
def a_queue() -> tuple[Any, Callable[[], Any]]:
    shared: queue.Queue[int] = queue.Queue()
    return shared.mutex, lambda: shared.put(1)


@pytest.mark.parametrize("name", TAKES)
def test_whoever_takes_a_lock_of_python_is_taking_and_can_be_mended(rooms: Rooms, name: str) -> None:
    """It may have the lock already, and not be in the ``with`` that releases it."""
    lock, body = TAKES[name]()
    lock.acquire()
    ident = rooms.send(body)
    rooms.opening.callback(lock.release)
    stands(ident, "Condition.__enter__")
    assert safety(ident) is Safety.TAKING
    found = entering(ident)
    if EXACT:
        assert found is not None
        assert (found.lock, found.lasts) == (lock, True)
    else:
        assert found is None


def test_a_lock_that_only_its_owner_may_release_is_not_to_be_mended(rooms: Rooms) -> None:
    condition = threading.Condition(threading.RLock())
    condition.acquire()
    rooms.opening.callback(condition.release)
    ident = rooms.send(lambda: _notifies(condition))
    stands(ident, "Condition.__enter__")
    assert (safety(ident), entering(ident)) == (Safety.TAKING, None)


def test_whoever_waits_for_a_semaphore_or_a_queue_is_busy(rooms: Rooms) -> None:
    semaphore, shared = threading.Semaphore(0), queue.Queue[int]()
    idents = [rooms.send(semaphore.acquire), rooms.send(shared.get)]
    rooms.opening.callback(semaphore.release)
    rooms.opening.callback(shared.put, 1)
    for ident in idents:
        stands(ident, "Condition.wait")
        wait_until(lambda ident=ident: safety(ident) is Safety.BUSY, 10, "it waits for word")  # type: ignore[misc]
        assert entering(ident) is None


def test_a_thread_that_is_joined_by_another_holds_nothing(rooms: Rooms) -> None:
    """A join may take for ever, and an interrupt must not wait a minute for it."""
    go_on = threading.Event()
    other = threading.Thread(target=go_on.wait, daemon=True)
    other.start()
    ident = rooms.send(other.join)
    rooms.opening.callback(go_on.set)
    stands(ident, "Thread.join" if sys.version_info >= (3, 13) else "Thread._wait_for_tstate_lock")
    assert safety(ident) is Safety.BUSY


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Lock]:
    """A module ``delicate_slow`` whose import waits for this lock, which is held."""
    lock = threading.Lock()
    lock.acquire()
    (tmp_path / "delicate_slow.py").write_text("import threading\nwith threading.delicate_lock:\n    pass\n")
    monkeypatch.setattr(threading, "delicate_lock", lock, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    yield lock
    sys.modules.pop("delicate_slow", None)


def test_an_import_in_progress_is_busy_and_whoever_waits_for_it_is_taking(
    importable: threading.Lock, rooms: Rooms
) -> None:
    """A third job that imports the same would wait for ever for the lock of a module."""

    def body() -> None:
        importlib.import_module("delicate_slow")

    importing = rooms.send(body)
    stands(importing, "<module>")
    assert safety(importing) is Safety.BUSY
    waiting = rooms.send(body)
    stands(waiting, "_ModuleLock.acquire")
    assert safety(waiting) is Safety.TAKING
    rooms.opening.callback(importable.release)


def test_whoever_waits_for_a_handler_of_logging_is_taking(rooms: Rooms) -> None:
    """The control thread logs too."""
    log, handler = logging.Logger("delicate"), logging.StreamHandler(io.StringIO())
    log.addHandler(handler)
    handler.acquire()

    def close() -> None:
        handler.release()

    ident = rooms.send(lambda: log.warning("a word"))
    rooms.opening.callback(close)
    stands(ident, "Handler.handle" if sys.version_info >= (3, 13) else "Handler.acquire")
    assert safety(ident) is Safety.TAKING


def test_whoever_writes_a_record_is_busy(rooms: Rooms) -> None:
    """A log that goes to a full pipe or a slow disk: an exception there still releases the handler's lock."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    stream = open(writing, "w")  # noqa: SIM115 (closed below, when the pipe is empty)
    log, handler = logging.Logger("delicate"), logging.StreamHandler(stream)
    log.addHandler(handler)
    ident = rooms.send(lambda: log.warning("a word"))

    def drain() -> None:
        os.set_blocking(reading, False)
        while rooms.threads[0].is_alive():
            try:
                os.read(reading, 65536)
            except BlockingIOError:
                rooms.threads[0].join(0.01)
        stream.close()
        os.close(reading)

    rooms.opening.callback(drain)
    stands(ident, "StreamHandler.flush")
    wait_until(lambda: safety(ident) is Safety.BUSY, 10, "it writes")
