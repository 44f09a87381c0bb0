"""One job leaves nothing behind for the next: transactions, settings, connections, contexts, threads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import jobs
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, ended

ARGUMENTS: tuple[str, ...] = ()
WORKER: dict[str, object] = {"threads": 1, "conf": {"POLL_SECONDS": 60}}


def look() -> dict[str, Any]:
    """What the next job finds; there is one thread, so it is the same one."""
    (after,) = ended(jobs.looks.register())
    assert after.outcome == "succeeded", after.error
    assert after.result is not None
    return dict(after.result)


CLEAN = {
    "autocommit": True,
    "atomic": False,
    "database_zone": "UTC",
    "zone": "UTC",
    "language": "en",
    "fresh": True,
}


@pytest.mark.parametrize("how", sorted(jobs.MESSES))
def test_the_next_job_finds_everything_clean(shared_worker: WorkerProcess, how: str) -> None:
    """Protocol trap 14: whatever a job does to its thread's connection and contexts."""
    before = look()
    (mess,) = ended(jobs.makes_a_mess.register(how))
    assert mess.outcome == ("abandoned" if how in ("failed block", "breaks") else "succeeded"), mess.error
    after = look()
    assert {key: after[key] for key in CLEAN} == CLEAN
    assert {key: before[key] for key in CLEAN} == CLEAN


@pytest.mark.parametrize("how", ["transaction", "failed block", "autocommit"])
def test_a_transaction_left_open_is_reported_and_rolled_back(shared_worker: WorkerProcess, how: str) -> None:
    """§4 hygiene: the log names the job; its connection is not used again."""
    before = look()
    (mess,) = ended(jobs.makes_a_mess.register(how))
    shared_worker.wait_for_log(
        rf"job left a transaction open, rolled back name=tests\.e2e\.jobs\.makes_a_mess job={mess.pk}"
    )
    assert look()["backend"] != before["backend"]


def test_connections_are_kept_between_jobs(shared_worker: WorkerProcess) -> None:
    """§4 hygiene: a new one for each job would cost milliseconds. The executor may be recycled meanwhile, once."""
    found = [look() for _ in range(5)]
    processes = {each["pid"] for each in found}
    assert len({each["backend"] for each in found}) == len(processes) <= 2


def test_a_connection_that_the_server_has_ended_costs_no_job_an_attempt(shared_worker: WorkerProcess, raw: Any) -> None:
    """§4 hygiene, P41: kept connections are ended by restarts, timeouts, an operator; the next job gets a new one."""
    backend = look()["backend"]
    raw.query("SELECT pg_terminate_backend(%s)", [backend])
    wait_until(lambda: not raw.query("SELECT pid FROM pg_stat_activity WHERE pid = %s", [backend]), 5, "it is gone")
    (after,) = ended(jobs.looks.using(max_attempts=1).register())
    assert (after.outcome, after.attempt) == ("succeeded", 1), after.error


def test_async_jobs_have_contexts_of_their_own(shared_worker: WorkerProcess) -> None:
    """Protocol trap 12."""
    ended(jobs.amakes_a_mess.register())
    (after,) = ended(jobs.alooks.register())
    assert after.result == {"language": "en", "zone": "UTC", "jobs": 1}


def test_a_job_that_starts_a_thread_does_not_disturb(shared_worker: WorkerProcess) -> None:
    """The thread goes on by itself."""
    (after,) = ended(jobs.starts_a_thread.register("t"))
    assert after.outcome == "succeeded"
    wait_until(lambda: shared_worker.stage.count("thread", "t") == 1, 5, "the thread has run")


def test_the_connections_of_executors_carry_the_workers_name(shared_worker: WorkerProcess, raw: Any) -> None:
    """Protocol trap 7: so that the supervisor can end what a killed one leaves behind."""
    backend = look()["backend"]
    name = raw.value("SELECT application_name FROM pg_stat_activity WHERE pid = %s", [backend])
    assert shared_worker.name in name
    slow = jobs.sleeps_in_the_database.using(timeout=1, max_attempts=1).register()
    (after,) = ended(slow)
    assert after.attempts.get().cause == "timeout"
    wait_until(
        lambda: not raw.query("SELECT pid FROM pg_stat_activity WHERE state = 'active'"
                              " AND query LIKE '%%pg_sleep(60)%%' AND pid <> pg_backend_pid()"
                              " AND application_name LIKE %s", [f"%{shared_worker.name}%"]),
        5, "its statement has been ended in the server",
    )  # fmt: skip
