"""Until when a worker believes in its leases, and the process that ends its executors when it can say no more."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from django_pgjobs import clock
from django_pgjobs.conf import get_conf
from django_pgjobs.worker.shared.channel_messages import TrustUntil
from django_pgjobs.worker.shared.runs import MARGIN_SECONDS, RunTable, trust_seconds
from django_pgjobs.worker.supervisor import lease_guard
from django_pgjobs.worker.supervisor.executor_process import STARTING
from django_pgjobs.worker.supervisor.lease_guard import LeaseGuard, Watchdog
from django_pgjobs.worker.supervisor.watchdog import ORPHAN_SECONDS
from tests.plugins.fix_db import patience, wait_until
from tests.unit.worker_fakes import child_of, claimed, end_of, under

LEASE = 30.0


class FakeWatchdog:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int]] = []
        self.fired = self.gone = self.closed = self.reaped = False
        all_of_them.append(self)

    def say(self, verb: str, number: int) -> None:
        self.said.append((verb, number))

    def close(self) -> None:
        self.closed = True

    def reap(self) -> None:
        assert self.closed
        self.reaped = True


all_of_them: list[FakeWatchdog] = []


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    all_of_them.clear()

    def set_to(instant: float) -> None:
        monkeypatch.setattr(clock, "monotonic", lambda: instant)

    set_to(1000.0)
    return set_to


@pytest.fixture
def guard(now: Any, monkeypatch: pytest.MonkeyPatch) -> LeaseGuard:
    monkeypatch.setattr(lease_guard, "Watchdog", FakeWatchdog)
    return LeaseGuard({"": RunTable()}, LEASE, [])


def until(guard: LeaseGuard) -> float:
    """What the watchdog was told last."""
    verb, number = cast(Any, guard.watchdog).said[-1]
    assert verb == "until"
    return float(number / 1e9)


def test_a_claim_is_trusted_less_long_than_the_database_counts() -> None:
    """P11: from before the query, and less a margin."""
    assert get_conf().lease_seconds == LEASE
    assert trust_seconds() == LEASE - MARGIN_SECONDS
    table = RunTable()
    table.adopt(1000.0, under("one", [claimed(1)]))
    assert table.claims["one"].trusted_until == 1000.0 + LEASE - MARGIN_SECONDS


def test_a_renewal_is_trusted_from_before_its_query_and_only_for_what_it_renewed(guard: LeaseGuard) -> None:
    """P11: the earliest of the claims decides."""
    guard.tables[""].adopt(980.0, under("one", [claimed(1)]))
    guard.tables[""].adopt(990.0, under("two", [claimed(2)]))
    ready, starting = child_of(), child_of(state=STARTING)
    guard.children[:] = [ready, starting]
    guard.renewed(999.0, ["two", "struck meanwhile"])
    assert guard.tables[""].claims["one"].trusted_until == 1009.0
    assert guard.tables[""].claims["two"].trusted_until == 1028.0
    assert end_of(ready).sent == [TrustUntil(1009.0)]
    assert end_of(starting).sent == []
    guard.renewed(1000.0, ["one", "two"])
    assert until(guard) == 1029.0


def test_a_renewal_never_shortens_trust() -> None:
    table = RunTable()
    table.adopt(1000.0, under("one", [claimed(1)]))
    table.renewed(990.0, ["one"])
    assert table.claims["one"].trusted_until == 1029.0


def test_a_worker_without_claims_is_watched_too(guard: LeaseGuard) -> None:
    guard.renewed(999.0, [])
    assert until(guard) == 1029.0


def test_a_claim_that_took_long_is_the_first_to_be_trusted_no_more(guard: LeaseGuard) -> None:
    guard.renewed(999.0, [])
    guard.tables[""].adopt(985.0, under("slow", [claimed(1)]))
    guard.adopted()
    assert until(guard) == 1014.0
    guard.tables[""].adopt(1000.0, under("fast", [claimed(2)]))
    said = len(cast(Any, guard.watchdog).said)
    guard.adopted()
    assert len(cast(Any, guard.watchdog).said) == said


def test_late_renewals_put_the_watchdog_off_while_we_live(guard: LeaseGuard, now: Callable[[float], None]) -> None:
    """An outage must kill nothing: nobody else can take the jobs then."""
    guard.tables[""].adopt(999.0, under("one", [claimed(1)]))
    guard.renewed(999.0, ["one"])
    guard.tick(1010.0)
    assert until(guard) == 1028.0
    for later in (1019.0, 1045.0):
        guard.tick(later)
        assert until(guard) == later + LEASE
    now(1050.0)
    guard.renewed(1049.0, [])  # others go on, this one is lost or held by somebody: no reason to end its neighbours
    assert until(guard) == 1050.0 + LEASE


def test_an_executor_is_watched_from_its_start_to_its_end(guard: LeaseGuard) -> None:
    child = child_of()
    guard.children[:] = [child]
    guard.add(child)
    guard.remove(child)
    [watchdog] = all_of_them
    assert ("add", child.pid) in watchdog.said
    assert watchdog.said[-1] == ("remove", child.pid)
    watchdog.fired = True
    assert guard.ended(child)
    watchdog.fired = False
    guard.close()
    guard.reap()
    assert watchdog.closed
    assert watchdog.reaped, "it would stay behind as a zombie where the worker is not the last of its process"
    guard.remove(child)


def test_a_watchdog_that_ended_is_replaced_and_told_of_all(guard: LeaseGuard) -> None:
    children = [child_of(), child_of()]
    guard.children[:] = children
    for child in children:
        guard.add(child)
    all_of_them[0].gone = True
    guard.renewed(1000.0, [])
    assert all_of_them[0].closed
    assert [verb for verb, _ in all_of_them[1].said] == ["add", "add", "until"]
    assert not guard.ended(children[0])


def test_what_a_watchdog_has_ended_is_not_watched_by_the_next(guard: LeaseGuard) -> None:
    dead, new = child_of(), child_of()
    guard.children[:] = [dead]
    guard.add(dead)
    all_of_them[0].gone = all_of_them[0].fired = True
    guard.renewed(1000.0, [])
    guard.children.append(new)
    guard.add(new)
    assert (guard.ended(dead), guard.ended(new)) == (True, False)
    assert [verb for verb, _ in all_of_them[1].said] == ["until", "add"]


def test_without_a_watchdog_a_worker_works(
    guard: LeaseGuard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> Any:
        raise OSError("no process left")

    monkeypatch.setattr(lease_guard, "Watchdog", refuse)
    child = child_of()
    guard.children[:] = [child]
    guard.add(child)
    assert "watchdog cannot be started" in caplog.text
    assert not guard.ended(child)
    guard.close()
    guard.reap()


# The process


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog()
    yield watchdog
    watchdog.close()
    watchdog.reap()
    assert watchdog.process.poll() is not None


@pytest.fixture
def executor() -> Iterator[subprocess.Popen[bytes]]:
    """A stand-in that has started a program, in a group of its own."""
    process = subprocess.Popen(["/bin/sh", "-c", "sleep 100 & sleep 100"], process_group=0)
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(patience(5))


TO_EVERYBODY = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def ignores(pid: int, number: int) -> bool:
    """Tell whether a process ignores a signal."""
    (mask,) = re.findall(r"^SigIgn:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> number - 1 & 1)


def in_seconds(seconds: float) -> int:
    return clock.monotonic_ns() + int(seconds * 1e9)


def test_an_instant_that_passes_ends_the_executors(watchdog: Watchdog, executor: subprocess.Popen[bytes]) -> None:
    """A supervisor that stands still says nothing more."""
    watchdog.say("add", executor.pid)
    watchdog.say("until", in_seconds(0.2))
    executor.wait(patience(5))
    assert executor.returncode == -signal.SIGABRT
    assert watchdog.fired
    assert watchdog.process.wait(patience(5)) == 75
    assert watchdog.gone


def test_a_watchdog_that_somebody_ended_is_gone_and_has_ended_nobody(watchdog: Watchdog) -> None:
    assert not watchdog.gone
    watchdog.process.kill()
    watchdog.process.wait(patience(5))
    assert (watchdog.gone, watchdog.fired) == (True, False)


def test_an_instant_is_put_off_as_often_as_said(watchdog: Watchdog, executor: subprocess.Popen[bytes]) -> None:
    watchdog.say("add", executor.pid)
    for _ in range(10):
        watchdog.say("until", in_seconds(patience(0.4)))
        with pytest.raises(subprocess.TimeoutExpired):
            executor.wait(patience(0.1))
    assert not watchdog.gone


def test_what_was_said_during_a_pause_is_read_before_it_acts(
    watchdog: Watchdog, executor: subprocess.Popen[bytes]
) -> None:
    """Its own pause, or the machine's, is no proof of a supervisor that stands still."""
    watchdog.say("add", executor.pid)
    until = in_seconds(patience(0.4))
    watchdog.say("until", until)
    os.kill(watchdog.process.pid, signal.SIGSTOP)
    wait_until(lambda: clock.monotonic_ns() > until, 5, "the instant has passed")
    watchdog.say("until", in_seconds(60))
    os.kill(watchdog.process.pid, signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        executor.wait(0.5)


def test_one_that_is_forgotten_is_left_alone(watchdog: Watchdog, executor: subprocess.Popen[bytes]) -> None:
    watchdog.say("add", executor.pid)
    watchdog.say("remove", executor.pid)
    watchdog.say("until", in_seconds(0.1))
    assert watchdog.process.wait(patience(5)) == 75
    assert executor.poll() is None


def test_signals_to_everybody_do_not_end_it(watchdog: Watchdog, executor: subprocess.Popen[bytes]) -> None:
    watchdog.say("add", executor.pid)
    watchdog.say("until", in_seconds(60))
    wait_until(lambda: all(ignores(watchdog.process.pid, number) for number in TO_EVERYBODY), 5, "it has begun")
    for number in TO_EVERYBODY:
        os.kill(watchdog.process.pid, number)
    watchdog.say("until", in_seconds(0.1))
    assert watchdog.process.wait(patience(5)) == 75


def test_the_end_of_the_supervisor_ends_those_that_do_not_stop(executor: subprocess.Popen[bytes]) -> None:
    """They have a moment for themselves, and what one has left running goes when it has."""
    stops = subprocess.Popen(["/bin/sh", "-c", "sleep 100 & sleep 0.5"], process_group=0)
    watchdog = Watchdog()
    watchdog.say("add", executor.pid)
    watchdog.say("add", stops.pid)
    watchdog.sock.close()
    assert stops.wait(patience(5)) == 0
    assert executor.poll() is None
    assert watchdog.process.wait(patience(10)) == 0
    assert executor.wait(patience(5)) == -signal.SIGABRT
    with pytest.raises(ProcessLookupError):
        os.killpg(stops.pid, 0)


def test_a_dead_supervisors_executors_end_before_its_leases(executor: subprocess.Popen[bytes]) -> None:
    """Others may have its jobs then."""
    watchdog = Watchdog()
    watchdog.say("add", executor.pid)
    watchdog.say("until", in_seconds(0.5))
    began = time.monotonic()
    watchdog.close()
    assert executor.wait(patience(5)) == -signal.SIGABRT
    assert time.monotonic() - began < patience(ORPHAN_SECONDS)
    watchdog.reap()


def test_one_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no process left")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(OSError, match="no process left"):
        Watchdog()
    assert len(os.listdir("/dev/fd")) == before
