"""Executors as their supervisor sees them: how much they may be sent, how they are started, how they end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from django_pgjobs import clock
from django_pgjobs.worker.supervisor.executor_process import (
    ANSWER_SECONDS,
    DEEPEST,
    KILLED,
    PAYLOAD_BYTES,
    STARTING,
    ExecutorProcess,
    Recipe,
    spawn,
)
from tests.plugins.fix_db import wait_until
from tests.unit.worker_fakes import child_of, end_of, run_of

WORKER = UUID("12345678-1234-4234-8234-123456789abc")


# What it may be sent


def test_free_places_and_a_little_beyond_may_be_sent() -> None:
    child = child_of(threads=2, async_slots=3, mean_seconds=0.01)
    assert (child.prefetch(), child.room(is_async=False), child.room(is_async=True)) == (4, 6, 3)
    child.add(run_of(1, number=1))
    child.add(run_of(2, number=2, is_async=True))
    assert (child.room(is_async=False), child.room(is_async=True), child.idle_threads()) == (5, 2, 1)


def test_nothing_is_fetched_in_advance_behind_long_jobs_and_not_without_end_behind_short_ones() -> None:
    assert child_of(mean_seconds=1.0).prefetch() == 0
    assert child_of(mean_seconds=0.0).prefetch() == DEEPEST


@pytest.mark.parametrize(
    "changes",
    [{"state": STARTING}, {"exclusive": True}, {"payload_bytes": PAYLOAD_BYTES + 1}, {"asked_at": 1.0}],
)
def test_no_room_is_in_one_that_cannot_or_shall_not_take_more(changes: dict[str, Any]) -> None:
    child = child_of(**changes)
    assert (child.room(is_async=False), child.room(is_async=True), child.idle_threads()) == (0, 0, 0)


def test_one_that_has_just_been_asked_is_not_mute_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "monotonic", lambda: 100.0)
    assert not child_of().mute()
    assert not child_of(asked_at=100.0 - ANSWER_SECONDS).mute()
    assert child_of(asked_at=99.9 - ANSWER_SECONDS).mute()


def test_more_jobs_than_threads_leave_no_place_idle() -> None:
    child = child_of(threads=1, mean_seconds=0.001)
    child.add(run_of(1, number=1))
    child.add(run_of(2, number=2))
    assert child.idle_threads() == 0


def test_what_is_removed_makes_room_again() -> None:
    child = child_of(exclusive=True)
    one, two = run_of(1, number=1, size=100), run_of(2, number=2, size=50, is_async=True)
    child.add(one)
    child.add(two)
    assert child.payload_bytes == 150
    assert child.remove(1) is one
    assert child.exclusive
    assert child.remove(2) is two
    assert child.remove(2) is None
    assert (child.runs, child.outstanding, child.payload_bytes, child.exclusive) == ({}, {False: 0, True: 0}, 0, False)


@pytest.mark.parametrize("culprits", [{}, {1: "timeout"}], ids=["none to blame", "one to blame"])
def test_many_are_removed_as_each_would_be(culprits: dict[int, str]) -> None:
    child = child_of(exclusive=True, culprits=dict(culprits))
    one, two, three = run_of(1, number=1, size=100), run_of(2, number=2, size=50, is_async=True), run_of(3, number=3)
    child.add(one, two, three)
    assert child.remove_many([2, 7, 1]) == [two, None, one]
    assert child.exclusive
    assert (child.runs, child.outstanding, child.payload_bytes) == ({3: three}, {False: 1, True: 0}, three.size)
    assert child.culprits == {}
    assert child.remove_many([3, 3]) == [three, None]
    assert not child.exclusive


def test_the_mean_duration_follows_what_jobs_took() -> None:
    child = child_of(mean_seconds=1.0)
    child.learn(seconds=0.0, count=1)
    assert child.mean_seconds == pytest.approx(0.9)
    child.learn(seconds=200.0, count=100)
    assert child.mean_seconds == pytest.approx(2.0)


def test_jobs_take_at_least_as_long_as_all_threads_have_been_busy() -> None:
    child = child_of(threads=2, mean_seconds=0.001)
    child.add(run_of(1, number=1), run_of(2, number=2))
    child.learn_from_running({1: 10_000_000_000}, now=20.0)
    assert child.mean_seconds == 0.001
    child.learn_from_running({1: 10_000_000_000, 2: 15_000_000_000}, now=20.0)
    assert child.mean_seconds == 5.0
    child.learn_from_running({1: 19_000_000_000, 2: 19_500_000_000}, now=20.0)
    assert child.mean_seconds == 5.0


def test_what_the_loop_does_says_nothing_about_threads() -> None:
    """Async jobs that sleep for minutes must not stop short jobs from being sent in advance."""
    child = child_of(threads=2, mean_seconds=0.001)
    child.add(*(run_of(number, number=number, is_async=number > 1) for number in (1, 2, 3)))
    child.learn_from_running(dict.fromkeys((1, 2, 3), 10_000_000_000), now=20.0)
    assert child.mean_seconds == 0.001


# Real processes


@pytest.fixture
def start() -> Iterator[Callable[..., ExecutorProcess]]:
    """Start a shell in the place of an executor."""
    started: list[ExecutorProcess] = []

    def start(script: str, name: str = "here") -> ExecutorProcess:
        recipe = Recipe(
            ("/bin/sh", "-c", script), (), threads=2, async_slots=1, database="default", name=name, worker=WORKER
        )
        started.append(spawn(recipe, len(started) + 1))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        wait_until(lambda child=child: child.exit_status() is not None, 10, "the stand-in has ended")  # type: ignore[misc]
        child.close()


def ended(child: ExecutorProcess) -> int:
    wait_until(lambda: child.exit_status() is not None, 10, "the stand-in has ended")
    status = child.exit_status()
    assert status is not None
    return status


def test_an_executor_gets_its_own_ends_and_a_name_of_its_own(start: Callable[..., ExecutorProcess]) -> None:
    one, two = start('test "$0 $3" = "pgjobs --threads=2" && exit 7', "büro " + "x" * 60), start("exit 0")
    assert ended(one) == 1
    assert one.application_name == ("pgjobs 1234567812344234-1 b?ro " + "x" * 60)[:63]
    assert two.application_name.startswith("pgjobs 1234567812344234-2 ")
    assert (one.state, one.pid) == (STARTING, one.process.pid)


def test_an_exit_status_is_read_once_the_process_has_ended(start: Callable[..., ExecutorProcess]) -> None:
    child = start("read line; exit 3")
    assert child.exit_status() in (None, 3)
    assert ended(child) == 3
    child.process = cast(Any, SimpleNamespace(pid=child.pid, poll=lambda: 3))
    assert child.exit_status() == 3  # reaped by somebody else


def test_an_end_is_told_while_the_pid_is_still_its_own(start: Callable[..., ExecutorProcess]) -> None:
    """D118: reaped, its pid may be another process's before the watchdog has heard that it is to be forgotten."""
    child = start("exit 3")
    told: list[str] = []

    def ended() -> None:
        with open(f"/proc/{child.pid}/stat") as stat:
            told.append(stat.read().rpartition(")")[2].split()[0])

    wait_until(lambda: child.exit_status(ended) is not None, 10, "the stand-in has ended")
    assert told[:1] == ["Z"]
    assert not os.path.exists(f"/proc/{child.pid}")


def test_a_python_without_waitid_reaps_first(
    start: Callable[..., ExecutorProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS before Python 3.13."""
    monkeypatch.delattr(os, "waitid")
    child = start("sleep 100 & exit 3")
    told: list[bool] = []
    wait_until(lambda: child.exit_status(lambda: told.append(True)) == 3, 10, "the stand-in has ended")
    assert told == [True]
    wait_until(lambda: not _members(child.pid), 10, "nobody of its group is left")


def test_a_killed_executor_takes_its_group_along(start: Callable[..., ExecutorProcess]) -> None:
    child = start("sleep 100 & sleep 100")
    assert child.exit_status() is None
    child.kill()
    assert child.state == KILLED
    assert ended(child) == -signal.SIGKILL
    wait_until(lambda: not _members(child.pid), 10, "nobody of its group is left")


def _members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _refuses(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSYS, "no such call")


def test_a_kernel_without_descriptors_of_processes_is_served_by_ticks(
    start: Callable[..., ExecutorProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pidfd_open", _refuses, raising=False)
    assert start("exit 0").pidfd is None
    monkeypatch.delattr(os, "pidfd_open")
    assert start("exit 0").pidfd is None


def test_one_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(("/bin/sh",), (), threads=1, async_slots=1, database="default", name="here", worker=WORKER)
    monkeypatch.setattr(subprocess, "Popen", _refuses)
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(OSError, match="no such call"):
        spawn(recipe, 1)
    assert len(os.listdir("/dev/fd")) == before


def test_closing_lets_go_of_everything() -> None:
    reading, writing = os.pipe()
    child = child_of(pidfd=writing)
    child.close()
    assert child.pidfd is None
    assert os.read(reading, 1) == b""
    os.close(reading)
    child_of().close()
    assert end_of(child).sent == []
