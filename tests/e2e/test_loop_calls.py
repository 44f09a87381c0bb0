"""Connections of ``async def`` jobs: a job has one of its own, which the next job finds as new."""

from __future__ import annotations

from typing import Any

import pytest

from django_pgjobs.models import Job
from tests.e2e import loop_calls, sessions
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_worker import WorkerProcess, ended, history

SLOTS = 4
ARGUMENTS = (f"--async-slots={SLOTS}",)
WORKER: dict[str, object] = {"threads": 1}


def result(job: Job) -> Any:
    (after,) = ended(job)
    assert (after.outcome, after.attempt) == ("succeeded", 1), after.error
    return after.result


def is_gone(raw: RawDatabase, backend: int) -> bool:
    return not raw.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [backend])


def test_many_jobs_share_as_many_connections_as_run_at_once(shared_worker: WorkerProcess, raw: RawDatabase) -> None:
    """Not one a job: the server has seen no other session of this worker."""
    jobs = ended(*[loop_calls.asks_once.register() for _ in range(100)])
    assert [job.outcome for job in jobs] == ["succeeded"] * 100
    served = {(job.result or [])[0] for job in jobs}
    assert 1 <= len(served) <= SLOTS
    living = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s) AND application_name LIKE %s"
    assert raw.value(living, [list(served), f"%{shared_worker.name}%"]) == len(served)


@pytest.mark.parametrize("how", sorted(sessions.LEFT))
def test_the_next_job_finds_a_session_as_new(shared_worker: WorkerProcess, how: str) -> None:
    """Settings, roles, locks, channels, temporary tables, cursors, prepared statements, transactions."""
    before, _ = result(loop_calls.atells_its_session.register())
    left = loop_calls.aleaves_behind.register(how)
    backend = result(left)
    found, next_backend = result(job := loop_calls.atells_its_session.register())
    assert found == before
    assert Job.objects.get(pk=job.pk).description == "written", "what it wrote was rolled back"
    is_open = how.partition(" ")[0] in ("transaction", "failed")
    if is_open:
        shared_worker.wait_for_log(rf"job left a transaction open, rolled back .* job={left.pk}")
    if is_open or how in ("read-only transactions", "execute wrapper"):
        assert next_backend != backend
    else:
        assert next_backend == backend, "the session that it found as new is the same one"


def test_all_calls_of_a_job_share_one_connection(shared_worker: WorkerProcess) -> None:
    """A transaction in several calls, also of its tasks, beside as many neighbours that do the same."""
    jobs = ended(*[loop_calls.asks_in_turns.register() for _ in range(2 * SLOTS)])
    expected = {"backends": 1, "inside": "rolled back", "outside": "", "setting": True}
    assert [job.result for job in jobs] == [expected] * len(jobs), [job.error for job in jobs]


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_query_on_a_kept_connection_is_cancelled(shared_worker: WorkerProcess, raw: RawDatabase, how: str) -> None:
    """The server stops it; a late request to cancel can hit no other job, since the connection is closed."""
    backend, _ = result(loop_calls.asks_once.register())
    job = loop_calls.asleeps_in_the_database.using(timeout=1 if how == "timeout" else 60).register(how)
    wait_until(lambda: shared_worker.stage.count("backend", how, backend) == 1, 10, "it got the kept connection")
    sleeping = "SELECT query LIKE '%%pg_sleep(60)%%' AND state = 'active' FROM pg_stat_activity WHERE pid = %s"
    wait_until(lambda: raw.value(sleeping, [backend]), 10, "it waits for its query")
    if how == "cancel":
        job.cancel(mode="interrupt")
    (after,) = ended(job)
    outcomes = {"cancel": ("cancelled", "cancelled"), "timeout": ("abandoned", "timeout")}
    assert (after.outcome, *[cause for _, cause in history(after)]) == outcomes[how], after.error
    wait_until(lambda: is_gone(raw, backend), 5, "its session has ended")
    assert result(loop_calls.asks_once.register())[0] != backend


def test_a_session_that_the_server_has_ended_costs_no_job_an_attempt(
    shared_worker: WorkerProcess, raw: RawDatabase
) -> None:
    backend, _ = result(loop_calls.asks_once.register())
    raw.query("SELECT pg_terminate_backend(%s)", [backend])
    wait_until(lambda: is_gone(raw, backend), 5, "it is gone")
    assert result(loop_calls.asks_once.register())[0] != backend


def test_a_task_that_its_job_leaves_running_reaches_no_other_job(shared_worker: WorkerProcess) -> None:
    """It gets a connection of its own."""
    before, _ = result(loop_calls.atells_its_session.register())
    result(loop_calls.leaves_a_task.register())
    shared_worker.stage.open("later")
    wait_until(lambda: shared_worker.stage.count("later") == 1, 10, "the task goes on")
    found, backend = result(loop_calls.atells_its_session.register())
    assert found == before
    (trace,) = shared_worker.stage.traces("later")
    assert trace.words[1] != str(backend)


def test_an_exception_from_outside_costs_no_thread(shared_worker: WorkerProcess) -> None:
    """It arrives as the thread gets its next call, which is made all the same."""
    _, ident = result(loop_calls.asks_once.register())
    assert result(loop_calls.strikes.register(ident)) == 1
    assert result(loop_calls.asks_once.using(timeout=10).register())[1] == ident
    shared_worker.wait_for_log("thread beside the event loop interrupted, continuing")


def test_a_child_that_a_call_forks_ends_there(shared_worker: WorkerProcess) -> None:
    """It shares the socket of the connection, and its end is none of the session's."""
    before, after, status = result(loop_calls.forks_in_a_call.using(timeout=20).register())
    assert (before, status) == (after, 0)


def test_a_cursor_that_a_job_has_left_disturbs_no_later_transaction(shared_worker: WorkerProcess) -> None:
    """Python closes it when it finds it unused: by then the session would know no such cursor."""
    for _ in range(3):
        backend = result(loop_calls.reads_one_of_many.register("later"))
        assert result(loop_calls.lets_the_iterators_go.register()) != backend
    for _ in range(3):
        result(loop_calls.reads_one_of_many.register("at once"))
        result(loop_calls.lets_the_iterators_go.register())
