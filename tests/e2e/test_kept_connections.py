"""How long executors keep connections: as the project's settings say, else as long as they can be made as new."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.load import unless
from tests.e2e import loop_calls, sessions
from tests.plugins.fix_db import RawDatabase, wait_until
from tests.plugins.fix_worker import Workers, ended


def told(**databases: Any) -> dict[str, str]:
    return {"PGJOBS_TEST_DATABASES": json.dumps(databases)}


def backends(count: int = 4) -> set[Any]:
    """Which server processes have served so many jobs of one thread."""
    found = ended(*[sessions.leaves_behind.register("own setting") for _ in range(count)])
    assert [job.outcome for job in found] == ["succeeded"] * count, [job.error for job in found]
    return {job.result for job in found}


@pytest.mark.parametrize(("given", "count"), [({"CONN_MAX_AGE": 0}, 4), ({"CONN_MAX_AGE": None}, 1), ({}, 1)], ids=str)
def test_a_connection_is_kept_as_long_as_the_settings_say(worker: Workers, given: dict[str, Any], count: int) -> None:
    """A 0 of the project's is not our default: each job has a connection of its own."""
    worker(threads=1, env=told(default=given))
    assert len(backends()) == count
    assert len({asked_by_a_coroutine() for _ in range(4)}) == count


def test_connections_of_coroutines_go_when_none_comes_any_more(worker: Workers, raw: RawDatabase) -> None:
    """The threads of a burst end, and not only when a later job finds their connections too old."""
    worker(threads=1, conf={"EXECUTOR_CONN_MAX_AGE_SECONDS": 2})
    burst = ended(*[loop_calls.asks_once.register() for _ in range(50)])
    assert {job.outcome for job in burst} == {"succeeded"}
    backends = [(job.result or [])[0] for job in burst]
    kept = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)"
    wait_until(lambda: raw.value(kept, [backends]) == 0, 10, "their connections are closed")
    assert asked_by_a_coroutine() not in backends


def asked_by_a_coroutine() -> int:
    """Which server process has served a job on the loop."""
    (job,) = ended(loop_calls.asks_once.register())
    assert job.outcome == "succeeded", job.error
    backend, _ = job.result or (0, 0)
    return int(backend)


def test_nothing_of_a_job_is_met_on_another_engine(worker: Workers, tmp_path: Path) -> None:
    """No reset is known there, so what is left ends with the connection."""
    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "lite")}
    worker(threads=1, env=told(lite=lite, broken={"ENGINE": "no.such.engine"}))
    (left, found) = (ended(each.register())[0] for each in (sessions.leaves_in_sqlite, sessions.finds_in_sqlite))
    assert (left.outcome, left.error) == ("succeeded", "")
    assert found.result == {"temporary tables": 0, "secure_delete": left.result}, found.error


POOL = {"OPTIONS": {"pool": {"min_size": 1, "max_size": 1}}}


def test_nothing_of_a_job_is_met_on_a_connection_of_djangos_pool(worker: Workers) -> None:
    """The pool has one connection, which every job gets as new: none opens another unless it has left a transaction."""
    unless(find_spec("psycopg_pool") is None, "psycopg_pool is not installed")
    worker(threads=1, env=told(default=POOL))
    before = found_by_a_job()
    for how in ("own setting", "role", "lock", "temporary table", "prepared", "transaction", "read-only transactions"):
        (left,) = ended(sessions.leaves_behind.register(how))
        assert left.outcome == "succeeded", left.error
        assert found_by_a_job() == before, how
    assert len(backends()) == 1


def found_by_a_job() -> dict[str, Any]:
    (job,) = ended(sessions.tells_its_session.register())
    assert job.outcome == "succeeded", job.error
    return dict(job.result or {})
