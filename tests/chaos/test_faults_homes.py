"""One worker with two homes: what strikes the second one costs the first nothing, and each is right by its own checker.

``PGJOBS_TEST_KILLS=1000`` kills the second server so often between a registration's statement and its commit, and
``PGJOBS_TEST_PICKUPS=400`` measures so many pickups in each state. Both print their figures.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connections

from tests.chaos import history as h
from tests.chaos.ground import ChaosServer, Ground
from tests.chaos.homes import ALIAS, PREFIX, Pace, SecondHome, kill_before_commit, second_home, share
from tests.chaos.jobs import act
from tests.plugins.fix_db import patience, wait_until
from tests.plugins.fix_worker import ended

pytestmark = pytest.mark.chaos

KILLS = int(os.environ.get("PGJOBS_TEST_KILLS", "12"))
PICKUPS = int(os.environ.get("PGJOBS_TEST_PICKUPS", "40"))
BLOCK = 20
"""Kills in a row; then nothing happens for a while, to compare with."""


@pytest.fixture(scope="module")
def other_server(chaos_server: ChaosServer) -> Iterator[ChaosServer]:
    with ChaosServer() as server:
        yield server


@pytest.fixture
def second(ground: Ground, other_server: ChaosServer) -> Iterator[SecondHome]:
    other_server.empty()
    with second_home(ground, other_server) as home:
        yield home


def load(ground: Ground, second: SecondHome, count: int, key: str) -> tuple[list[object], list[object]]:
    """Register jobs at both homes; some of either have ended when this returns."""
    made = [
        home.register.many([(act, "sleep", f"{prefix}{key}-{n}", {"seconds": 0.05}) for n in range(count)])
        for home, prefix in ((ground, ""), (second, PREFIX))
    ]
    wait_until(
        lambda: min(home.journal.count("end") for home in (ground, second)) >= count // 10, 30, "both are served"
    )
    return made[0], made[1]  # type: ignore[return-value]


@pytest.mark.parametrize("victim", ["executor", "supervisor", "everything"])
def test_processes_with_jobs_of_both_homes_are_killed(ground: Ground, second: SecondHome, victim: str) -> None:
    """C12 C29: each home rescues its own jobs, by its own leases, and none is taken for its number in the other."""
    first = second.workers(processes=2, threads=2)
    second.workers(processes=2, threads=2)
    here, there = load(ground, second, 80, victim)
    pids = {"executor": first.ready_executors()[:1], "supervisor": [first.pid], "everything": first.processes()}[victim]
    with ground.fault(h.KILL, *pids):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    if victim != "executor":
        ground.gone(first)
    ended(*here, timeout=40)  # type: ignore[arg-type]
    second.ended(*there, timeout=40)  # type: ignore[arg-type]
    report = second.check()
    assert report.counts["succeeded"] == 80, report


@pytest.mark.parametrize("state", ["dead", "frozen", "half-open"])
def test_the_second_server_is_struck_while_both_have_work(ground: Ground, second: SecondHome, state: str) -> None:
    """C44 C52: the first home's checker knows of no fault. What the second had under way ends once it is back."""
    second.workers(processes=2, threads=4)
    here, there = load(ground, second, 100, state)
    strikes = {"dead": second.dead, "frozen": second.frozen, "half-open": second.half_open}
    with second.fault({"dead": h.CRASH, "frozen": "freeze", "half-open": "blackhole"}[state]), strikes[state]():
        here += ground.register.many([(act, "sleep", "", {"seconds": 0.02})] * 40)
        ended(*here, timeout=30)  # type: ignore[arg-type]
    connections[ALIAS].close()
    probe = second.register(act, key=f"{PREFIX}probe")
    second.ended(probe, *there, timeout=60)  # type: ignore[arg-type]
    report = second.check()
    assert report.counts["succeeded"] == 101, report


@pytest.mark.timeout(patience(120 + 6 * KILLS))
def test_the_second_server_is_killed_between_a_registration_and_its_commit(ground: Ground, second: SecondHome) -> None:
    """What was acknowledged succeeds, the rest is not there; and the first home works on as if nothing were."""
    second.workers(processes=2, threads=2)
    fates: Counter[str] = Counter()
    with Pace(ground, 0.04) as pace:
        for begin in range(0, KILLS, BLOCK):
            with pace.window("kills"):
                for turn in range(begin, min(begin + BLOCK, KILLS)):
                    fates[kill_before_commit(second, turn)] += 1
            with pace.window("quiet"):
                threading.Event().wait(5)
    done = "SELECT count(*) FROM pgjobs_job WHERE finished_at IS NULL"
    wait_until(lambda: second.server.ask(done) == [(0,)], 60, "what was acknowledged has ended")
    report = second.check()
    acknowledged = {f"{PREFIX}acknowledged-{turn}" for turn in range(KILLS)}
    rows = {key for (key,) in second.server.ask("SELECT payload #>> '{kwargs,key}' FROM pgjobs_job")}
    assert rows >= acknowledged
    assert not any("between" in key for key in rows)
    assert report.counts["rows"] == report.counts["succeeded"] == len(rows)
    rates, pickups = pace.rates(), pace.pickups()
    sys.stdout.write(
        f"kills={KILLS} racing={dict(fates)} rows={len(rows)} first home's jobs per second: kills "
        f"{rates['kills']:.2f} quiet {rates['quiet']:.2f} ratio {rates['kills'] / rates['quiet']:.3f} {told(pickups)}\n"
    )
    assert max(map(max, pickups.values())) < patience(10), "none waits for the second home's timeouts"


def told(pickups: dict[str, list[float]]) -> str:
    words = (
        f"{name}: n={len(seconds)} p50 {share(seconds, 0.5) * 1000:.1f} p99 {share(seconds, 0.99) * 1000:.1f} ms"
        for name, seconds in pickups.items()
    )
    return "pickup " + ", ".join(words)


@pytest.mark.parametrize("state", ["dead", "frozen", "half-open"])
@pytest.mark.timeout(patience(120 + PICKUPS))
def test_pickups_at_the_first_home_while_the_second_is_away(ground: Ground, second: SecondHome, state: str) -> None:
    """In turns with and without; the figures are printed, for this machine may be busy."""
    second.workers(processes=2, threads=2)
    ended(ground.register(act))
    strikes = {"dead": second.dead, "frozen": second.frozen, "half-open": second.half_open}
    with Pace(ground, 0.05) as pace:
        for _ in range(4):
            with pace.window("undisturbed"):
                threading.Event().wait(PICKUPS * 0.05 / 4)
            with second.fault(h.CRASH if state == "dead" else "freeze"), strikes[state](), pace.window(state):
                threading.Event().wait(PICKUPS * 0.05 / 4)
            back = second.register(act)
            second.ended(back, timeout=60)
    second.check()
    pickups = pace.pickups()
    ratio = share(pickups[state], 0.99) / share(pickups["undisturbed"], 0.99)
    sys.stdout.write(f"{state}: {told(pickups)}, p99 ratio {ratio:.2f}\n")
    assert max(pickups[state]) < patience(5), "none waits for the second home's timeouts"


def test_a_shard_that_comes_back_older_than_it_was(ground: Ground, second: SecondHome, tmp_path: Path) -> None:
    """Restored from a backup: a new job has the number of one that runs and is not there any more, and stays itself."""
    worker = second.workers(processes=1, threads=4)
    second.ended(second.register(act, key=f"{PREFIX}before"))
    backup = tmp_path / "backup"
    connections[ALIAS].close()
    second.server.halt()
    second.copy_to(backup)
    second.start()
    lost = second.register(act, "wait", key=f"{PREFIX}lost", gate="lost")
    wait_until(lambda: second.journal.count("start", key=f"{PREFIX}lost") == 1, 30, "it runs")
    connections[ALIAS].close()
    second.server.halt(immediate=True)
    second.restore(backup)
    second.start()
    number = "SELECT setval(pg_get_serial_sequence('pgjobs_job', 'id'), %s, false)"
    second.server.ask(number, lost.pk)  # a server gives out numbers ahead of those that it has written
    new = second.register(act, "wait", key=f"{PREFIX}new", gate="new")
    assert new.pk == lost.pk
    wait_until(lambda: second.journal.count("start", key=f"{PREFIX}new") == 1, 30, "the new one runs")
    ground.stage.open("lost")
    wait_until(lambda: second.journal.count("end", key=f"{PREFIX}lost") == 1, 30, "the lost one returns")
    ended(ground.register(act), timeout=30)
    assert second.server.ask("SELECT attempt, outcome FROM pgjobs_job WHERE id = %s", new.pk) == [(1, None)]
    ground.stage.open("new")
    (end,) = second.ended(new)
    assert (end.outcome, end.attempt, end.payload["kwargs"]["key"]) == ("succeeded", 1, f"{PREFIX}new")
    assert second.journal.count("start", key=f"{PREFIX}new") == 1
    assert second.server.ask("SELECT count(*) FROM pgjobs_attempt") == [(0,)]
    assert worker.process.poll() is None
