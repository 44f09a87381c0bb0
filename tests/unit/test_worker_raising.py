"""From Python 3.13 on a thread raises its interrupt itself: within every ``with``, and where no lock is being taken."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_pgjobs.exceptions import CancelRequested
from django_pgjobs.worker.executor import raising
from django_pgjobs.worker.executor.interrupts import Door
from django_pgjobs.worker.executor.safe_points import EXACT, MODULE_LOCK, Safety, safety_of
from tests.plugins.fix_db import patience, wait_until
from tests.unit.job_room import Room, interrupt, spin

pytestmark = pytest.mark.skipif(EXACT, reason="before Python 3.13 an exception comes where the thread stands")

MONITORING: Any = getattr(sys, "monitoring", None)
LOOPS: dict[str, Callable[[threading.Condition], Any]] = {}


def loop(body: Callable[[threading.Condition], Any]) -> None:
    """A job that never ends, with a lock whose release is Python code, so that a skipped release shows."""
    LOOPS[body.__name__] = body


@loop
def counts(lock: threading.Condition) -> None:
    with lock:
        number = 0
        while number >= 0:
            number += 1


@loop
def on_one_line(lock: threading.Condition) -> None:
    for _ in itertools.count():
        pass


@loop
def on_one_line_within_with(lock: threading.Condition) -> None:
    with lock:
        for _ in itertools.count(): pass  # fmt: skip  # noqa: E701


@loop
def for_ever_on_one_line(lock: threading.Condition) -> None:
    with lock:
        while True: pass  # fmt: skip  # noqa: E701


@loop
def on_one_line_within_try(lock: threading.Condition) -> None:
    with lock._lock:  # type: ignore[attr-defined]
        pass
    lock.acquire()
    try:
        for _ in itertools.count(): pass  # fmt: skip  # noqa: E701
    finally:
        lock.release()


@loop
def loops_in_a_loop_on_one_line(lock: threading.Condition) -> None:
    with lock:
        [0 for _ in itertools.count() for once in (1,) if once < 0]


@loop
def acquires_before_try(lock: threading.Condition) -> None:
    plain = lock._lock  # type: ignore[attr-defined]
    while True:
        plain.acquire()
        try:
            pass
        finally:
            plain.release()


@loop
def calls_c(lock: threading.Condition) -> None:
    with lock:
        for number in itertools.count():
            str(number)


@loop
def calls_python(lock: threading.Condition) -> None:
    with lock:
        while True:
            _does_nothing()


@loop
def takes_and_releases(lock: threading.Condition) -> None:
    while True:
        with lock:
            for _ in (1, 2):
                _does_nothing()


@loop
def generates(lock: threading.Condition) -> int:
    with lock:
        return sum(number for number in itertools.count())


@loop
def imports(lock: threading.Condition) -> None:
    while True:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("tests.unit.not_there")


@loop
def raises(lock: threading.Condition) -> None:
    with lock:
        while True:
            with contextlib.suppress(ValueError):
                raise ValueError


def _does_nothing() -> None: ...


def runs(room: Room, control: object) -> None:
    wait_until(lambda: room.door is not None and room.door.open is control, 5, "it runs")


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_interrupted_and_leaves_no_lock_held(room: Room, name: str) -> None:
    """C25: also at the jump back of a loop within ``with``, where CPython calls no ``__exit__``."""
    lock = threading.Condition(threading.Lock())
    for _ in range(20):
        control = room.start(lambda _: LOOPS[name](lock))
        runs(room, control)
        spin(0.003)
        interrupt(room, control)
        how, error = room.outcome()
        assert (how, type(error)) == ("raised", CancelRequested)
        assert lock.acquire(timeout=patience(5)), "it is released"
        lock.release()
    assert room.escaped == []


def test_a_thread_that_waits_in_c_is_interrupted_as_soon_as_it_comes_back(room: Room) -> None:
    """No callback comes there: another thread has set the exception while this one stood still."""
    gate = threading.Lock()
    gate.acquire()
    went_on: list[int] = []

    def body(_: Any) -> None:
        gate.acquire()
        went_on.append(1)

    control = room.start(body)
    runs(room, control)
    interrupt(room, control)
    wait_until(lambda: control.interrupted, 5, "it stands still")
    gate.release()
    assert (room.outcome()[0], went_on) == ("raised", [])


def test_a_thread_that_waits_for_a_module_is_interrupted_when_it_wakes_up(room: Room) -> None:
    """Others may import the same module again and again, so that the thread never returns to the job's own code."""
    module_lock = importlib._bootstrap._ModuleLock("tests.unit.not_there")  # type: ignore[attr-defined]
    module_lock.acquire()
    control = room.start(lambda _: module_lock.acquire())
    door = room.door
    assert door is not None
    wait_until(lambda: safety_of(door.ident, Door.call.__code__) is Safety.TAKING, 5, "it waits for the module")
    interrupt(room, control)
    wait_until(lambda: bool(MONITORING.get_local_events(number(), MODULE_LOCK)), 5, "it is watched")
    while not control.interrupted:  # the holder releases it and takes it again at once
        spin(0.2)
        module_lock.release()
        module_lock.acquire()
    assert type(room.outcome()[1]) is CancelRequested
    module_lock.release()
    assert not module_lock.wakeup.locked(), "nobody still waits for it"
    assert module_lock.acquire()


def number() -> int:
    watching = raising.monitor()
    assert watching is not None
    return watching.tool


def test_code_is_watched_only_while_somebody_is_to_be_interrupted(room: Room) -> None:
    """Other threads run the same code, and would pay for each call."""
    condition = threading.Condition(threading.Lock())
    condition.acquire()

    def body(_: Any) -> None:
        condition.acquire()

    def watched() -> bool:
        return bool(MONITORING.get_local_events(number(), body.__code__))

    control = room.start(body)
    runs(room, control)
    interrupt(room, control)
    wait_until(watched, 5, "it is watched")
    condition.release()
    room.outcome()
    wait_until(lambda: not watched(), 5, "it is left alone again")
    assert not raising._requests


def test_a_neighbour_in_the_same_code_notices_nothing(room: Room) -> None:
    """The callbacks check whether their thread has a request."""
    ended: list[str] = []

    def beside() -> None:
        spin(0.3)
        ended.append("well")

    neighbour = threading.Thread(target=beside)
    neighbour.start()
    control = room.start(lambda _: spin(30))
    runs(room, control)
    interrupt(room, control)
    assert room.outcome()[0] == "raised"
    neighbour.join(patience(5))
    assert ended == ["well"]


def test_code_that_equals_other_code_is_watched_too() -> None:
    """Code is compared by its value: what a template or ``exec`` compiles twice is equal, and is not the same."""
    source = "import sys\nframe = sys._getframe()"
    watching = raising.monitor()
    assert watching is not None
    codes = [compile(source, "<template>", "exec") for _ in range(2)]
    assert codes[0] == codes[1]
    for code in codes:
        names: dict[str, Any] = {}
        exec(code, names)
        watching.watch(iter([names["frame"]]))
    assert all(MONITORING.get_local_events(watching.tool, code) for code in codes)
    watching.rest()
    assert not any(MONITORING.get_local_events(watching.tool, code) for code in codes)


@pytest.fixture
def all_taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Debuggers, profilers and coverage have every number of a monitoring tool."""
    raising.monitor()
    taken = [tool for tool in range(6) if MONITORING.get_tool(tool) is None]
    for tool in taken:
        MONITORING.use_tool_id(tool, "others")
    fresh = raising.monitor.__wrapped__
    monkeypatch.setattr("django_pgjobs.worker.executor.interrupts.monitor", fresh)
    yield
    for tool in taken:
        MONITORING.free_tool_id(tool)


@pytest.mark.usefixtures("all_taken")
def test_without_a_tools_number_the_exception_is_set_from_outside(room: Room) -> None:
    control = room.start(lambda _: spin(30))
    runs(room, control)
    spin(0.01)
    interrupt(room, control)
    assert room.outcome()[0] == "raised"
