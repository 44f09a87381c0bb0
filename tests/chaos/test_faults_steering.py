"""Requests of operators that faults strike: steered workers, limits set at run time, places, sequences.

What an operator has been told is so, and holds; what broke off holds whole or not at all, and may be asked again.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_pgjobs.models import Heartbeat, Job, LimitOverride
from django_pgjobs.queues import Queue
from django_pgjobs.steering import workers as steering
from tests.chaos import history as h
from tests.chaos.ground import Ground, django_on, text_of
from tests.chaos.jobs import act
from tests.chaos.proxy import Proxy
from tests.db.sequences_ground import broken, judged, stuck
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, ended

pytestmark = pytest.mark.chaos


@pytest.fixture
def way(ground: Ground) -> Iterator[Proxy]:
    """A way to the server of its own."""
    with Proxy.before(ground.server.url) as proxy:
        yield proxy


def beat_of(worker: WorkerProcess) -> Heartbeat:
    wait_until(Heartbeat.objects.filter(name=worker.name).exists, 20, "it beats")
    return Heartbeat.objects.get(name=worker.name)


def ask(worker: WorkerProcess, verb: str) -> bool:
    [found] = steering.ask("default", [beat_of(worker).pk], verb, by="anna")
    return bool(found.was)


def naps(ground: Ground, count: int, definition: Any = act, seconds: float = 0.05) -> list[Job]:
    return ground.register.many([(definition, "sleep", "", {"seconds": seconds})] * count)


# Requests to workers


@pytest.mark.parametrize("verb", ["drain", "recycle"])
def test_a_worker_killed_as_it_reads_a_request_leaves_it_to_no_other(ground: Ground, way: Proxy, verb: str) -> None:
    """The row says that the request was not taken up, and the other worker runs all jobs."""
    victim, other = ground.workers(env={"DATABASE_URL": way.url}).ready(), ground.workers().ready()
    made = naps(ground, 60, seconds=0.1)
    held = way.hold_reply(text_of("beat"))
    assert ask(victim, verb)
    assert held.hit.wait(20), "a heartbeat that has read the request is under way"
    with ground.fault(h.KILL, victim.pid):
        os.kill(victim.pid, signal.SIGKILL)
    ground.gone(victim)
    ended(*made, timeout=60)
    row, beside = beat_of(victim), beat_of(other)
    assert (row.control, row.control_number, row.control_taken, row.is_asked) == (verb, 1, 0, True)
    assert (beside.control_number, other.process.poll()) == (0, None)
    wait_until(lambda: not ask(victim, verb), 20, "it counts as gone")
    ground.check()


def test_a_request_whose_heartbeats_get_no_answer_is_obeyed_once(ground: Ground, way: Proxy) -> None:
    """I28: the answers that brought it, and that took its acknowledgement, are lost."""
    worker = ground.workers(env={"DATABASE_URL": way.url}, processes=1).ready()
    made = naps(ground, 40)
    lost = way.lose_reply(text_of("beat"), times=3)
    with ground.fault("cut", worker.pid):
        assert ask(worker, "recycle")
        wait_until(lambda: lost.hits >= 3, 60, "three answers are lost")
    wait_until(lambda: not beat_of(worker).is_asked, 60, "it has taken the request up")
    ended(*made, timeout=60)
    worker.wait_for_log("executor has been recycled", 60)
    naps_after = naps(ground, 10)
    ended(*naps_after, timeout=60)
    assert worker.log.count("executor is recycled, its successor starts first") == 1
    row = beat_of(worker)
    assert (row.control_number, row.control_taken) == (1, 1)
    ground.check()


# Limits at run time

OVER = """
CREATE TABLE over_limit (n bigint);
CREATE FUNCTION over_limit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- One admission at a time; the numbers that an operator sets here are 1 and 2.
    INSERT INTO over_limit
    SELECT count(*) FROM pgjobs_job AS j
    WHERE j.limit_key IS NOT NULL AND j.hold IS NULL AND j.finished_at IS NULL HAVING count(*) > 2;
    RETURN NULL;
END $$;
CREATE TRIGGER over_limit AFTER UPDATE ON pgjobs_job FOR EACH ROW
WHEN (OLD.hold = 'limited' AND NEW.hold IS NULL) EXECUTE FUNCTION over_limit();
"""
NO_MORE = "DROP FUNCTION IF EXISTS over_limit() CASCADE; DROP TABLE IF EXISTS over_limit"


@contextmanager
def watched(ground: Ground) -> Iterator[None]:
    """Inside, the database notes when more jobs are admitted than either number allows."""
    ground.server.ask(f"{NO_MORE}; {OVER}")
    try:
        yield
        assert ground.server.ask("SELECT * FROM over_limit") == []
    finally:
        ground.server.start()
        ground.server.ask(NO_MORE)


def crashes(ground: Ground, worker: WorkerProcess) -> None:
    ground.crash()


def freezes(ground: Ground, worker: WorkerProcess) -> None:
    """The server stands still for longer than a lease."""
    with ground.fault("blackhole"):
        hole = ground.proxy.blackhole()
        threading.Event().wait(2.0)
        ground.proxy.heal(hole)


def cuts(ground: Ground, worker: WorkerProcess) -> None:
    with ground.fault("cut"):
        ground.proxy.cut()


def kills(ground: Ground, worker: WorkerProcess) -> None:
    pids = worker.processes()
    with ground.fault(h.KILL, worker.pid, *pids):
        for pid in [worker.pid, *pids]:
            os.kill(pid, signal.SIGKILL)
    ground.gone(worker)


STRIKES: list[Callable[[Ground, WorkerProcess], None]] = [crashes, freezes, cuts, kills]


@pytest.mark.parametrize("strike", STRIKES)
def test_a_limit_that_was_set_holds_whatever_is_struck(
    ground: Ground, strike: Callable[[Ground, WorkerProcess], None]
) -> None:
    """I29: never more at once than the larger of two numbers, and all run in the end."""
    with watched(ground):
        victim, _ = ground.workers(processes=1, threads=4), ground.workers(processes=1, threads=4)
        Queue("default").limit(1, by="anna")
        made = naps(ground, 60)
        admitted = Job.objects.filter(limit_key="")
        wait_until(lambda: admitted.filter(outcome="succeeded").count() > 3, 60, "some were admitted")
        Queue("default").limit(2, by="anna")
        strike(ground, victim)
        assert LimitOverride.objects.get().concurrency == 2
        Queue("default").limit(1, by="anna")
        ended(*made, timeout=90)
        ground.check()


@pytest.mark.parametrize("lost", ["lose_request", "lose_reply"])
def test_a_limit_whose_commit_is_lost_is_set_whole_or_not_at_all(ground: Ground, way: Proxy, lost: str) -> None:
    """And it may be set again."""
    with django_on(way.url):
        connection.ensure_connection()
        rule = getattr(way, lost)("^COMMIT")
        with pytest.raises(OperationalError):
            Queue("default").limit(1, by="anna")
        assert rule.hits == 1
    there = ground.server.ask("SELECT concurrency FROM pgjobs_limit")
    trail = ground.server.ask("SELECT kind FROM pgjobs_action")
    assert (len(there), len(trail)) == ((0, 0) if lost == "lose_request" else (1, 1))
    Queue("default").limit(1, by="anna")
    assert LimitOverride.objects.get().concurrency == 1


# Places


@pytest.mark.parametrize("strike", [crashes, freezes, cuts])
def test_a_place_is_given_once_whatever_is_struck(
    ground: Ground, strike: Callable[[Ground, WorkerProcess], None]
) -> None:
    """I26: a job that runs on while the server is away keeps its place; the other queue is not kept waiting."""
    worker = ground.workers("--places", "narrow=1", processes=2, threads=2)
    narrow = naps(ground, 20, act.using(queue="narrow"), 0.1)
    wide = naps(ground, 40)
    wait_until(lambda: ground.journal.count("end") > 5, 60, "some have run")
    strike(ground, worker)
    ended(*narrow, *wide, timeout=90)
    ids = {job.pk for job in narrow}
    running: set[int] = set()
    for line in ground.journal.lines("start", "end"):
        if line["job"] in ids:
            (running.add if line["what"] == "start" else running.discard)(line["job"])
            assert len(running) <= 1, line
    ground.check()


# Sequences


@pytest.mark.parametrize("strike", STRIKES)
def test_no_order_breaks_whatever_is_struck(ground: Ground, strike: Callable[[Ground, WorkerProcess], None]) -> None:
    """I30: two workers, ten sequences, and each job fails once."""
    with judged():
        victim, _ = ground.workers(processes=1, threads=4), ground.workers(processes=1, threads=4)
        wanted: list[Any] = [(act.using(sequence=f"s{n}"), "fail", "", {}) for _ in range(6) for n in range(10)]
        made = ground.register.many(wanted)
        wait_until(lambda: Job.objects.filter(outcome="succeeded").count() > 10, 60, "some have ended")
        strike(ground, victim)
        ended(*made, timeout=90)
        assert (broken(), stuck()) == ([], [])
        ground.check()


@pytest.mark.parametrize("lost", ["lose_request", "lose_reply"])
def test_an_unblock_whose_commit_is_lost_passes_the_turn_whole_or_not_at_all(
    ground: Ground, way: Proxy, lost: str
) -> None:
    """And it may be asked again; the sequence goes on in its order."""
    with judged():
        ground.workers()
        ordered = act.using(sequence="s", max_attempts=1)
        first = ground.register(ordered, "raise")
        ended(first)
        second, third = naps(ground, 2, ordered)
        assert Job.objects.get(pk=second.pk).state == "blocked"
        with django_on(way.url):
            connection.ensure_connection()
            rule = getattr(way, lost)("^COMMIT")
            with pytest.raises(OperationalError), transaction.atomic():
                Job.objects.filter(pk=second.pk).unblock(by="anna")
            assert rule.hits == 1
        done = lost == "lose_reply"
        assert ground.server.ask("SELECT flow & 128 <> 0 FROM pgjobs_job WHERE id = %s", first.pk) == [(done,)]
        assert Job.objects.filter(pk=second.pk).unblock(by="anna").changed == (not done)
        ended(second, third)
        assert Job.objects.get(pk=second.pk).finished_at < Job.objects.get(pk=third.pk).claimed_at  # type: ignore[operator]
        ground.check()
