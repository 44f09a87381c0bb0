"""Who leads when leaders die, leave, stand still and lose their connections; and duties that meet a locked table."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable

import pytest
from django.db.models import Max

from django_pgjobs.models import Heartbeat, Job, LeaderTerm, QueueState
from django_pgjobs.models.attempts import Claim
from tests.chaos.helping import FAST, Record, Recovery, running
from tests.e2e import jobs
from tests.e2e.stage import Stage
from tests.plugins.fix_db import RawDatabase, patience, wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers, ended, history

REPLACED = 10.0
"""Seconds from a leader's death until another leads (W4)."""


def leader() -> str:
    """Return the name of the worker whose term runs; empty while nobody leads."""
    term = LeaderTerm.current()
    return term.worker_name if term is not None else ""


def led(process: WorkerProcess) -> Callable[[], bool]:
    return lambda: leader() == process.name


def first_and_standby(worker: Workers, **options: object) -> tuple[WorkerProcess, WorkerProcess]:
    """Start a worker that leads, and another."""
    first = worker(**options)  # type: ignore[arg-type]
    wait_until(led(first), 10, "the first leads")
    second = worker(**options)  # type: ignore[arg-type]
    wait_until(lambda: Heartbeat.objects.filter(name=second.name).exists(), 10, "the second works")
    return first, second


def kill(process: WorkerProcess) -> None:
    for pid in [process.pid, *process.executors()]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def put(raw: RawDatabase, count: int) -> None:
    """Store ended jobs past their retention."""
    raw.query(
        "INSERT INTO pgjobs_job (name, payload, outcome, finished_at)"
        " SELECT 'gone', '{}', 'succeeded', statement_timestamp() - interval '25 h' FROM generate_series(1, %s)",
        [count],
    )


def pruned() -> bool:
    return not Job.objects.filter(name="gone").exists()


def test_a_leader_that_is_killed_is_replaced_within_ten_seconds(
    worker: Workers, raw: RawDatabase, record_property: Record
) -> None:
    """W4 W1: the worst case, killed just after it has renewed; and its duties go on."""
    first, second = first_and_standby(worker)
    renewed = LeaderTerm.objects.get().expires_at
    wait_until(lambda: LeaderTerm.objects.get().expires_at > renewed, 10, "it has renewed this moment")
    kill(first)
    fault = Recovery(record_property)
    wait_until(led(second), 15, "the second leads")
    fault.check(REPLACED)
    put(raw, 10)
    wait_until(pruned, 20, "it prunes")
    assert LeaderTerm.objects.get().term == 2


def test_a_leader_that_is_stopped_is_replaced_in_a_moment(worker: Workers, record_property: Record) -> None:
    """W8 W3: it resigns, and the flag is nobody's until another has taken it."""
    first, second = first_and_standby(worker)
    assert first.stop() == 0
    fault = Recovery(record_property)
    assert leader() != first.name
    wait_until(led(second), 10, "the second leads")
    fault.check(4.0)


def test_a_worker_that_stands_by_shuts_down_at_once(worker: Workers, record_property: Record) -> None:
    """W6: nothing waits for the next question who leads, and the leader leads on."""
    first, second = first_and_standby(worker)
    fault = Recovery(record_property)
    assert second.stop() == 0
    fault.check(1.0)
    assert leader() == first.name
    assert LeaderTerm.objects.get().term == 1


def test_a_leader_whose_connection_is_terminated_leads_on(worker: Workers, raw: RawDatabase) -> None:
    """W7: it connects again and renews the term, which is still its own; its duties go on."""
    first, second = first_and_standby(worker)
    raw.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s",
        [f"pgjobs {first.name} maintenance"],
    )
    before = raw.value("SELECT statement_timestamp()")
    first.wait_for_log("database trouble, will try again loop=maintenance")
    renewed = LeaderTerm.objects.filter(taken_at__lt=before, expires_at__gt=before)
    wait_until(lambda: renewed.aggregate(at=Max("expires_at"))["at"] is not None, 5, "its term runs")
    until = LeaderTerm.objects.get().expires_at
    wait_until(lambda: LeaderTerm.objects.get().expires_at > until, 10, "it has renewed")
    assert (leader(), LeaderTerm.objects.get().term) == (first.name, 1)
    put(raw, 10)
    wait_until(pruned, 20, "it prunes")
    assert not second.said("were pruned")


def test_two_leaders_at_once_do_nothing_twice(worker: Workers, stage: Stage, raw: RawDatabase) -> None:
    """W11: the leader stands still, another takes over, then both run. Pruned, rescued and let go: once.

    The one that wakes up believes in nothing: its own clock tells it, and the row does.
    """
    frozen, heir = first_and_standby(worker, conf=FAST)
    [job] = running(stage, "k", 1)
    everything = [frozen.pid, *frozen.executors(), heir.pid, *heir.executors()]
    owner = Job.objects.get(pk=job.pk).worker
    mine = Heartbeat.objects.get(name=frozen.name).pk == owner
    os.kill(frozen.pid, signal.SIGSTOP)
    wait_until(led(heir), 20, "the heir leads")
    os.kill(heir.pid, signal.SIGSTOP)
    put(raw, 500)
    for pid in everything:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    frozen.wait_for_log("worker leads no more, another has taken over")
    wait_until(pruned, 30, "they are pruned")
    counts = [count(process) for process in (frozen, heir)]
    wait_until(lambda: sum(count(process) for process in (frozen, heir)) >= 500, 30, "it is told")
    assert sum(count(process) for process in (frozen, heir)) == 500, counts
    stage.open("k")
    (after,) = ended(job, timeout=40)
    lost = [cause for _, cause in history(job) if cause == "lost"]
    assert len(lost) == after.attempt - 1
    assert len(lost) <= 1 + (not mine)
    wait_until(lambda: not Claim.objects.exists(), 20, "no claim is left")
    assert LeaderTerm.objects.get().term >= 2


def count(process: WorkerProcess) -> int:
    """Return how many jobs a worker says that it has pruned."""
    return sum(map(int, re.findall(r"ended jobs were pruned jobs=(\d+)", process.log)))


@pytest.mark.parametrize("table", ["pgjobs_claim", "pgjobs_queue_state"])
def test_a_duty_that_fails_stops_no_other(
    worker: Workers, stage: Stage, raw: RawDatabase, other: RawDatabase, table: str
) -> None:
    """W10: one table is locked; duties that need it fail and are tried again, the others have their turns.

    The term is renewed meanwhile, though each of them is waited for as long as a statement may take.
    """
    process = worker(conf=FAST)
    wait_until(led(process), 10, "it leads")
    other.query(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
    put(raw, 100)
    began = time.monotonic()
    wait_until(pruned, 20, "it prunes all the same")
    if table == "pgjobs_claim":
        process.wait_for_log("duty failed, tried again at its next turn duty=rescue")
        raw.query("INSERT INTO pgjobs_job (name, payload, hold) VALUES ('held', '{}', 'paused')")
        wait_until(lambda: not Job.objects.filter(hold="paused").exists(), 20, "held jobs are let go")
        Job.objects.filter(name="held").cancel()
    wait_until(lambda: time.monotonic() > began + 8, 20, "a term and more has passed")
    assert (leader(), LeaderTerm.objects.get().term) == (process.name, 1)
    other.rollback()
    assert ended(jobs.effect.register("after"), timeout=20)[0].outcome == "succeeded"
    if table != "pgjobs_claim":
        assert list(QueueState.objects.current()) == []


def test_what_is_due_at_an_election_begins_at_once(worker: Workers, raw: RawDatabase) -> None:
    """W9: in the log the first duty follows the election; what is done each minute waits for its first minute."""
    put(raw, 10)
    raw.query(
        "INSERT INTO pgjobs_heartbeat (id, name, host, pid, processes, threads, async_slots, version, last_beat_at)"
        " VALUES (gen_random_uuid(), 'long ago', 'h', 1, 1, 1, 1, '1', statement_timestamp() - interval '9 days')"
    )
    process = worker()
    process.wait_for_log("worker leads now term=1")
    began = time.monotonic()
    process.wait_for_log("ended jobs were pruned jobs=10")
    assert time.monotonic() - began < patience(5)
    assert process.log.index("worker leads now") < process.log.index("were pruned")
    assert Heartbeat.objects.filter(name="long ago").exists()
