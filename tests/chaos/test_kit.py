"""The kit itself: each tool does what the fault tests rely on, on a real server and real workers."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.chaos import history as h
from tests.chaos.failpoints import armed
from tests.chaos.ground import Ground, text_of
from tests.chaos.jobs import act, called
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import ended

pytestmark = pytest.mark.chaos


def through(ground: Ground, name: str = "one") -> psycopg.Connection[Any]:
    """A connection through the proxy."""
    return psycopg.connect(ground.proxy.url, autocommit=True, application_name=name, connect_timeout=5)


def test_a_cut_ends_only_the_connections_named(ground: Ground) -> None:
    one, two = through(ground, "one"), through(ground, "two")
    assert ground.proxy.names() == ["one", "two"]
    assert ground.proxy.cut("one") == 1
    with pytest.raises(psycopg.OperationalError):
        one.execute("SELECT 1")
    assert two.execute("SELECT 2").fetchone() == (2,)
    ground.proxy.cut("two", how="fin")
    with pytest.raises(psycopg.OperationalError):
        two.execute("SELECT 1")


def test_a_refusing_proxy_lets_nobody_in_until_it_is_healed(ground: Ground) -> None:
    kept = through(ground)
    ground.proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        through(ground)
    assert kept.execute("SELECT 1").fetchone() == (1,)
    ground.proxy.heal()
    through(ground).close()
    kept.close()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_black_hole_swallows_until_it_is_healed(ground: Ground, direction: Any) -> None:
    """Downwards the statement is done all the same, and the answer comes late."""
    ground.server.ask("CREATE TABLE IF NOT EXISTS drops (n integer)")
    ground.server.ask("TRUNCATE drops")
    with through(ground) as raw, ThreadPoolExecutor() as pool:
        hole = ground.proxy.blackhole("one", direction=direction)
        asked = pool.submit(raw.execute, "INSERT INTO drops VALUES (1)")
        hole.wait()
        if direction == "down":
            wait_until(lambda: ground.server.ask("SELECT n FROM drops"), 5, "the row is there")
        assert not asked.done()
        assert bool(ground.server.ask("SELECT n FROM drops")) == (direction == "down")
        ground.proxy.heal(hole)
        assert asked.result(10).rowcount == 1


def test_a_delay_counts_each_way_and_a_throttle_slows(ground: Ground) -> None:
    with through(ground) as raw:
        ground.proxy.delay(0.1)
        began = time.monotonic()
        raw.execute("SELECT 1")
        assert 0.2 <= time.monotonic() - began < 2
        ground.proxy.heal()
        ground.proxy.throttle(100_000, direction="down")
        began = time.monotonic()
        raw.execute("SELECT repeat('x', 50000)").fetchone()
        assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize("lost", ["lose_request", "lose_reply"])
def test_a_lost_commit_is_committed_only_if_it_was_the_reply(ground: Ground, lost: str) -> None:
    ground.server.ask("CREATE TABLE IF NOT EXISTS commits (n integer)")
    ground.server.ask("TRUNCATE commits")
    rule = getattr(ground.proxy, lost)("COMMIT", "one")
    raw = psycopg.connect(ground.proxy.url, application_name="one")
    raw.execute("INSERT INTO commits VALUES (%s)", [1])
    with pytest.raises(psycopg.OperationalError):
        raw.commit()
    rule.wait()
    assert bool(ground.server.ask("SELECT n FROM commits")) == (lost == "lose_reply")


def test_the_reply_to_a_prepared_statement_in_autocommit_can_be_lost_or_held(ground: Ground) -> None:
    """As workers send them: parsed once, then bound by name only."""
    ground.server.ask("CREATE TABLE IF NOT EXISTS autos (n integer)")
    ground.server.ask("TRUNCATE autos")
    text = "INSERT INTO autos VALUES (%s)"
    raw = through(ground)
    for n in range(2):
        raw.execute(text, [n], prepare=True)
    held = ground.proxy.hold_reply("INSERT INTO autos")
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(raw.execute, text, [5], prepare=True)
        held.wait()
        assert len(ground.server.ask("SELECT n FROM autos")) == 3
        assert not asked.done()
        ground.proxy.heal(held)
        assert asked.result(10).rowcount == 1
    lost = ground.proxy.lose_reply("INSERT INTO autos")
    with pytest.raises(psycopg.OperationalError):
        raw.execute(text, [2], prepare=True)
    lost.wait()
    assert len(ground.server.ask("SELECT n FROM autos")) == 4
    assert ground.proxy.names() == []


def test_a_run_without_faults_is_in_order(ground: Ground) -> None:
    """Every kind of end, a rolled-back registration, an operator's retry; the checker finds nothing."""
    ground.workers(processes=2)
    jobs = [ground.register(act) for _ in range(20)]
    jobs += [
        ground.register(act, "fail", times=2),
        ground.register(act, "snooze"),
        ground.register(act, "cancel"),
        ground.register(act, "register_child"),
        ground.register(act, "register_child", commit=False),
        ground.register(called, "raise"),
    ]
    ground.register(act, rolled_back=True)
    abandoned = ground.register(act, "abandon")
    ended(*jobs, abandoned)
    ground.retry(abandoned)
    ended(abandoned)
    report = ground.check()
    assert report.counts["registered"] == 28, report
    assert report.counts["rolled_back"] == 2, report
    assert report.counts["succeeded"] == 25, report
    assert report.counts["starts"] >= 32, report


def test_a_fail_point_strikes_once_where_it_is_armed(ground: Ground) -> None:
    """kill −9 of an executor with the outcome of its job unsent: charged, run again."""
    worker = ground.workers(env=armed(finished={"do": "kill"}))
    job = ground.register(act)
    assert ended(job)[0].attempt == 2
    assert ground.journal.count("failpoint", name="finished") == 1
    assert worker.said("executor")
    assert ground.check().counts["attempts_crashed"] == 1


def test_what_a_flush_has_written_is_known_when_its_answer_is_lost(ground: Ground) -> None:
    """The ambiguous commit of an end: a second look finds it recorded."""
    ground.workers()
    lost = ground.proxy.lose_reply(text_of("finalise_success_fast"), " finalise$")
    jobs = [ground.register(act) for _ in range(5)]
    lost.wait()
    with ground.fault("cut"):
        ended(*jobs)
    report = ground.check()
    assert report.counts["starts"] == 5, report


def test_a_worker_killed_is_rescued_and_the_history_says_so(ground: Ground) -> None:
    """The audit has the lease, the journal the start, the checker the time it took."""
    first = ground.workers()
    job = ground.register(act, "wait", gate="go")
    wait_until(lambda: ground.journal.count("start"), 10, "it runs")
    second = ground.workers()
    with ground.fault("kill", first.pid, *first.executors()):
        first.process.kill()
        ground.gone(first)
    wait_until(lambda: ground.journal.count("start") == 2, 10, "it runs again")
    ground.stage.open("go")
    assert ended(job)[0].attempt == 2
    assert second.said("job rescued")
    report = ground.check(recovery_seconds=4)
    assert report.counts["attempts_lost"] == 1, report
    assert 0 < report.recovery_seconds < 4, report


def test_a_crash_of_the_server_is_survived_and_explained(ground: Ground) -> None:
    worker = ground.workers()
    jobs = [ground.register(act, "sleep", seconds=0.5) for _ in range(4)]
    wait_until(lambda: ground.journal.count("start") == 4, 10, "they run")
    ground.crash()
    ended(*jobs, timeout=30)
    assert worker.process.poll() is None
    assert ground.check().counts["succeeded"] == 4


def test_the_audit_survives_a_crash_with_what_it_tells_of(ground: Ground) -> None:
    job = ground.register(act)
    ground.crash()
    history = ground.history()
    assert [(change.job, change.key) for change in history.changes] == [(job.pk, history.rows[0].key)]
    assert h.check(history).kinds == {"stranded": 1}
