"""Executors that are replaced: at the end of their time, or after their death."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from django_pgjobs import __version__, clock
from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.build import build, digest
from django_pgjobs.worker.shared.channel_messages import (
    Drain,
    Ready,
    StopSoon,
)
from django_pgjobs.worker.supervisor import escalation
from django_pgjobs.worker.supervisor import executor_process as children
from django_pgjobs.worker.supervisor.executor_pool import (
    SHORT_LIFE_SECONDS,
    SHORT_LIVES,
    ExecutorPool,
)
from django_pgjobs.worker.supervisor.executor_process import (
    DRAINING,
    KILLED,
    READY,
    STARTING,
)
from django_pgjobs.worker.supervisor.recycling import Recycling
from tests.unit.executor_pool_ground import HELLO, booted, exits, ready
from tests.unit.worker_fakes import end_of, run_of


def test_a_successor_is_ready_before_an_executor_goes(pool: ExecutorPool, mortal: None) -> None:
    """Nothing is lost and nothing waits: it gets jobs until the other one can take them."""
    pool.recycling = Recycling(max_jobs=10)
    one, two, three = booted(pool)
    one.done = two.done = 10
    pool.tick(1.0)
    assert (one.leaving, two.leaving, len(pool.children)) == ("it has run 10 jobs", "", 4)
    assert (one.state, end_of(one).sent) == (READY, [])
    pool.tick(2.0)
    assert len(pool.children) == 4
    successor = pool.children[-1]
    pool._on_message(successor, Ready(HELLO))
    assert (one.state, end_of(one).sent) == (DRAINING, [StopSoon("recycle", None), Drain()])
    assert (two.state, three.state) == (READY, READY)
    exits(one, 0)
    pool.tick(3.0)
    assert one not in pool.children
    assert two.leaving
    assert len([child for child in pool.children if not child.leaving]) == 3


def test_executors_that_finish_long_jobs_do_not_pile_up(pool: ExecutorPool, mortal: None) -> None:
    pool.recycling = Recycling(max_jobs=1)
    booted(pool)
    for now in range(1, 20):
        for child in pool.children:
            child.done = 1
            if child.state == STARTING:
                pool._on_message(child, Ready(HELLO))
                break
        pool.tick(float(now))
    assert len(pool.children) <= 2 * pool.processes


def test_one_that_dies_while_its_successor_starts_is_replaced_by_that(pool: ExecutorPool, mortal: None) -> None:
    pool.recycling = Recycling(max_jobs=10)
    one, *_ = booted(pool)
    one.done = 10
    pool.tick(1.0)
    exits(one, -9)
    pool.tick(2.0)
    assert (one in pool.children, len(pool.children)) == (False, 3)


def test_a_storm_of_deaths_is_slowed_down_and_one_long_life_ends_it(
    pool: ExecutorPool, mortal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 10.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    booted(pool)
    pauses = []
    for _ in range(SHORT_LIVES + 4):
        exits(pool.children[-1], -11)
        pool.tick(now)
        pauses.append(max(0.0, pool.boot_after - now))
        now = max(now + 0.1, pool.boot_after)
        pool.tick(now)
        pool._on_message(pool.children[-1], Ready(HELLO))
    assert pauses[:SHORT_LIVES] == [0.0] * SHORT_LIVES
    assert pauses[SHORT_LIVES:] == [1.0, 2.0, 4.0, 8.0]
    now += SHORT_LIFE_SECONDS + 1
    exits(pool.children[0], -11)
    pool.tick(now)
    assert (pool.short_lives, len(pool.children)) == (0, 3)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"version": "99.0"}, f"version 99.0 of django-pgjobs (protocol {channel.PROTOCOL}, build {build()})"),
        ({"build": "0f0f"}, f"version {__version__} of django-pgjobs (protocol {channel.PROTOCOL}, build 0f0f)"),
    ],
)
def test_another_version_or_build_stops_the_worker(
    pool: ExecutorPool, failed: list[str], mortal: None, other: Any, named: str
) -> None:
    """Protocol trap 18: new code in an old worker."""
    booted(pool)
    pool.spawn()
    pool._on_message(pool.children[-1], Ready({**HELLO, **other}))
    assert failed == ["another version was deployed"]
    assert pool.children[-1].boot_error == (
        f"it runs {named}, this worker {__version__} ({channel.PROTOCOL}, {build()})"
    )
    assert pool.children[-1].state == KILLED
    assert len(pool.children) == 4


def test_a_build_is_another_once_a_file_of_the_package_was_replaced_added_or_removed(tmp_path: Path) -> None:
    for name in ("a.py", "b.sql"):
        (tmp_path / name).write_text("1\n")
    seen = [digest(tmp_path)]
    (tmp_path / "notes.txt").write_text("no code")
    assert digest(tmp_path) == seen[0]
    (tmp_path / "replacement").write_text("2\n")
    os.utime(tmp_path / "replacement", ns=(0, 0))
    (tmp_path / "replacement").rename(tmp_path / "b.sql")
    seen.append(digest(tmp_path))
    (tmp_path / "c.py").touch()
    seen.append(digest(tmp_path))
    (tmp_path / "a.py").unlink()
    seen.append(digest(tmp_path))
    assert len(set(seen)) == 4


def test_after_a_pause_of_the_worker_a_job_is_led_up_rung_by_rung_all_the_same(
    pool: ExecutorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suspended machine wakes up long after a deadline: the job still gets its second, and its neighbours theirs."""
    sent: list[int] = []
    monkeypatch.setattr(children, "_signal_group", lambda pid, number: sent.append(number))
    child = ready(pool, threads=2)
    run = run_of(1, number=1, state="sent", child=child, timeout_seconds=8.0)
    child.add(run)
    child.board.start(0, 1, 1_000_000_000, "sync")
    escalation.lead(child, 5.0, pool.last_check)
    pool.last_check = 5000.0
    for now in (5000.1, 5000.2, 5001.1, 5002.9):
        escalation.lead(child, now, pool.last_check)
    assert sent == []
    escalation.lead(child, 5003.1, pool.last_check)
    assert sent == [signal.SIGTERM]
