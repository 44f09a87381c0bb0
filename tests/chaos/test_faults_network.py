"""Faults of the way to the server: cut, half-open, slow, refused; and a server that has no connection left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection

from tests.chaos.ground import Ground
from tests.chaos.jobs import act
from tests.chaos.load import meanwhile, recovered, under_load
from tests.plugins.fix_db import wait_until

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("how", ["rst", "fin"])
def test_all_connections_are_cut_again_and_again(ground: Ground, how: Any) -> None:
    """P39: twice a second, ten times, all of two workers at once."""
    ground.workers()
    ground.workers()
    with ground.fault("cut"):
        jobs = under_load(ground, 300, done=20)
        with meanwhile(lambda: ground.proxy.cut(how=how), 0.5) as cuts:
            wait_until(lambda: len(cuts) == 10, 20, "ten cuts")
    recovered(ground, *jobs, within=20, what=f"cut by {how}")
    assert sum(cuts) >= 40
    report = ground.check()
    assert report.counts["succeeded"] == 301, report


@pytest.mark.parametrize("direction", ["both", "up", "down"])
def test_a_way_is_half_open_for_longer_than_the_lease(ground: Ground, direction: Any) -> None:
    """P39: nothing is answered for three leases; another worker, on another way, takes the jobs back and goes on.

    What the first has done meanwhile, and what its way had swallowed, counts for nothing once the lease is lost.
    """
    ground.workers()
    jobs = under_load(ground, 60, done=8, seconds=0.4)
    ground.workers(env={"DATABASE_URL": ground.server.url})
    with ground.fault("blackhole"):
        hole = ground.proxy.blackhole(direction=direction)
        hole.wait()
        began = time.monotonic()
        probe = ground.register(act)
        wait_until(lambda: ground.journal.count("end") > 8, 10, "the other goes on")
        wait_until(lambda: time.monotonic() > began + 4.5, 10, "three leases have passed")
        ground.proxy.heal(hole)
    recovered(ground, probe, *jobs, within=25, what=f"half-open {direction}")
    report = ground.check()
    assert report.counts["succeeded"] == 62, report


def test_the_only_worker_is_behind_a_way_that_is_silent_until_its_connections_are_given_up(ground: Ground) -> None:
    """P39: silent for longer than the worker waits for an answer; new connections are made and work."""
    worker = ground.workers()
    jobs = under_load(ground, 60, done=8, seconds=0.2)
    with ground.fault("blackhole"):
        hole = ground.proxy.blackhole()
        worker.wait_for_log("the connection is cut loop=keep", 40)
        ground.proxy.heal(hole)
    recovered(ground, *jobs, within=25, what="silent until cut")
    report = ground.check()
    assert report.counts["succeeded"] == 61, report


def test_a_slow_way_is_a_way(ground: Ground) -> None:
    """P39: 200 ms each way and 20 kB a second: jobs go on, and no lease is lost."""
    ground.workers()
    ground.workers()
    with ground.fault("delay"):
        ground.proxy.delay(0.2)
        ground.proxy.throttle(20_000)
        jobs = ground.register.many([(act, "sleep", "", {"seconds": 0.05})] * 60)
        wait_until(lambda: ground.journal.count("end") >= 30, 30, "half of the jobs are done on a slow way")
        ground.proxy.heal()
    recovered(ground, *jobs, within=15, what="slow")
    report = ground.check()
    assert report.counts["succeeded"] == 61, report
    assert "attempts_lost" not in report.counts, report


def test_nobody_is_let_in(ground: Ground) -> None:
    """P41: every connection is cut and none is made for three leases; jobs that run end and are recorded after."""
    worker = ground.workers()
    jobs = under_load(ground, 60, done=8, seconds=0.2)
    with ground.fault("refuse"):
        ground.proxy.refuse()
        ground.proxy.cut()
        worker.wait_for_log("database trouble, will try again loop=keep")
        began = time.monotonic()
        wait_until(lambda: time.monotonic() > began + 4.5, 10, "three leases have passed")
        ground.proxy.heal()
    recovered(ground, *jobs, within=25, what="refused")
    report = ground.check()
    assert report.counts["succeeded"] == 61, report


class Hoard:
    """Takes every connection the server still gives."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.taken: list[psycopg.Connection[Any]] = []
        self.full = False

    def fill(self) -> int:
        """Take what is free; return how many are held."""
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                self.taken.append(psycopg.connect(self.url, autocommit=True, application_name="hoard"))
        self.full = True
        return len(self.taken)

    def drop(self) -> None:
        """Give all back."""
        while self.taken:
            self.taken.pop().close()


@pytest.fixture
def hoard(ground: Ground) -> Iterator[Hoard]:
    """Whoever takes the connections away from us."""
    hoard = Hoard(ground.server.url)
    yield hoard
    hoard.drop()


def test_no_connection_is_left_while_workers_run(ground: Ground, hoard: Hoard) -> None:
    """P39 P41: those that have connections go on with them; threads of jobs that have none yet wait or fail."""
    ground.workers()
    connection.ensure_connection()
    with ground.fault("refuse"):
        assert hoard.fill() > 5
        jobs = ground.register.many([(act, "sleep", "", {"seconds": 0.05})] * 100)
        wait_until(lambda: ground.journal.count("end") >= 50, 20, "jobs go on")
        hoard.drop()
    recovered(ground, *jobs, within=15, what="exhausted while running")
    report = ground.check()
    assert report.counts["succeeded"] == 101, report


def test_no_connection_is_left_while_workers_connect_again(ground: Ground, hoard: Hoard) -> None:
    """P39 P41: their connections are cut and somebody else takes the places, for three leases."""
    worker = ground.workers()
    jobs = under_load(ground, 60, done=8, seconds=0.2)
    with ground.fault("refuse"):
        ground.proxy.refuse()
        ground.proxy.cut()
        wait_until(lambda: not ground.proxy.names(), 10, "their places are free")
        with meanwhile(hoard.fill, 0.02):
            wait_until(lambda: hoard.full, 10, "all places are taken")
            ground.proxy.heal()
            tries = ground.proxy.accepted
            began = time.monotonic()
            wait_until(lambda: time.monotonic() > began + 4.5, 10, "three leases have passed")
        assert ground.proxy.accepted >= tries + 5
        assert not worker.said("database is back")
        hoard.drop()
    recovered(ground, *jobs, within=25, what="exhausted while reconnecting")
    report = ground.check()
    assert report.counts["succeeded"] == 61, report
