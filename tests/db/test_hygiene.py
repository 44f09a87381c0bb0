"""What a thread's connections and caches are like before, between and after its jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest
from django.core.cache import caches
from django.core.cache.backends.locmem import LocMemCache
from django.db import connection, connections
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext

from django_pgjobs.worker.executor import cleanup
from tests.plugins.fix_db import RawDatabase, wait_until


class ClosingCache(LocMemCache):
    """A cache that holds something for each thread."""

    closed = 0

    def close(self, **_: Any) -> None:
        self.closed += 1


@pytest.fixture
def mine(committed: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The connections of this thread as an executor knows them; the thread has made one."""
    cleanup.mine().clear()  # jobs that bypassed the queue in earlier tests ran in this thread, too
    cleanup.closing_caches.cache_clear()
    monkeypatch.setattr(cleanup, "remember_connections", lambda: None)
    connection.close()
    connection_created.connect(cleanup._remember)
    connection.ensure_connection()
    yield cleanup.mine()
    connection_created.disconnect(cleanup._remember)
    cleanup.mine().clear()
    cleanup.closing_caches.cache_clear()
    connections["default"].close()


@pytest.fixture
def named(committed: None) -> Iterator[None]:
    """An executor's preparations are undone afterwards."""
    settings = {alias: dict(connections.settings[alias]) for alias in connections.settings}
    cleanup.mine().clear()
    connection.close()
    yield
    cleanup._process.application_name = None
    connection_created.disconnect(dispatch_uid="django_pgjobs.remember")
    for alias, before in settings.items():
        connections.settings[alias].update(before)
    cleanup.mine().clear()
    connection.close()


def test_connections_carry_the_executors_name_and_die_with_it(named: None) -> None:
    """Protocol trap 7: the supervisor ends the sessions of a killed executor; the server notices by itself too."""
    cleanup.prepare_connections("pgjobs one", 60.0)
    with connection.cursor() as cursor:
        for name, value in (("application_name", "pgjobs one"), ("client_connection_check_interval", "500ms")):
            cursor.execute(f"SHOW {name}")
            assert cursor.fetchone() == (value,)
    assert cleanup.mine() == [connections["default"]]


@pytest.mark.parametrize(
    ("settings", "age"),
    [
        ({"CONN_MAX_AGE": 0}, 60.0),
        ({"CONN_MAX_AGE": 0, "OPTIONS": {"pool": True}}, 0),
        ({"CONN_MAX_AGE": 5}, 5),
        ({"CONN_MAX_AGE": None}, None),
    ],
    ids=str,
)
def test_connections_are_kept_unless_the_project_says_how_long_or_has_a_pool(
    named: None, settings: dict[str, Any], age: float | None
) -> None:
    connections.settings["default"].update({"OPTIONS": {}, **settings})
    cleanup.prepare_connections("pgjobs one", 60.0)
    found: Any = connections.settings["default"]
    assert found["CONN_MAX_AGE"] == age
    assert not found["OPTIONS"] or found["OPTIONS"]["pool"].keys() == {"reset"}


def test_a_connection_that_is_too_old_or_has_ended_is_closed_before_the_next_job(
    mine: list[Any], raw: RawDatabase
) -> None:
    """P41: and one that is sound is kept, without a question to the server."""
    wrapper: Any = mine[0]
    wrapper.close_at = None
    with CaptureQueriesContext(wrapper) as asked:
        cleanup.refresh()
    assert (wrapper.connection is not None, len(asked)) == (True, 0)
    wrapper.close_at = time.monotonic() - 1
    cleanup.refresh()
    assert wrapper.connection is None
    wrapper.connect()
    wrapper.close_at = None
    pid = cast(Any, wrapper).connection.info.backend_pid
    raw.query("SELECT pg_terminate_backend(%s)", [pid])
    wait_until(lambda: not raw.query("SELECT pid FROM pg_stat_activity WHERE pid = %s", [pid]), 5, "it is gone")
    wait_until(lambda: cleanup._has_news(wrapper), 5, "the word of it has arrived")
    cleanup.refresh()
    assert wrapper.connection is None


def test_caches_that_hold_something_are_closed_after_a_job(mine: list[Any], settings: Any) -> None:
    settings.CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "held": {"BACKEND": f"{__name__}.ClosingCache"},
    }
    cleanup.closing_caches.cache_clear()
    assert cleanup.closing_caches() == ("held",)
    cleanup.tidy("job")
    assert cast(ClosingCache, caches["held"]).closed == 1


def test_a_thread_that_cannot_be_tidied_keeps_no_connection(
    mine: list[Any], settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows what the job has left on it; the next one gets a new one."""
    [wrapper] = mine
    raw = wrapper.connection

    def fail(**_: Any) -> None:
        raise RuntimeError("cache is broken")

    settings.CACHES = {"default": {"BACKEND": f"{__name__}.ClosingCache"}}
    cleanup.closing_caches.cache_clear()
    with monkeypatch.context() as broken:
        broken.setattr(caches["default"], "close", fail)
        cleanup.tidy("name=shop.sell job=7")
    assert "cannot tidy up after name=shop.sell job=7" in caplog.text
    assert raw.closed
    assert mine == []
    assert connections["default"] is not wrapper


def test_what_psycopg_has_prepared_runs_again_after_a_reset(mine: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The reset has deallocated it on the server, so psycopg is to prepare it anew."""
    [wrapper] = mine
    options = {**wrapper.settings_dict["OPTIONS"], "prepare_threshold": 0}
    monkeypatch.setitem(wrapper.settings_dict, "OPTIONS", options)
    wrapper.close()
    wrapper.connect()
    wrapper.close_at = None
    raw = wrapper.connection
    for _ in range(2):
        with psycopg.Cursor(raw) as cursor:
            cursor.execute("SELECT set_config('app.tenant', %s, false)", ["other"])
        cleanup.tidy("job=7")
        cleanup.refresh()
    assert wrapper.connection is raw, "it was reset and kept"
    with wrapper.cursor() as cursor:
        cursor.execute("SELECT current_setting('app.tenant', true)")
        assert cursor.fetchone() in ((None,), ("",))


def test_all_of_a_threads_connections_are_closed_at_its_end(mine: list[Any]) -> None:
    [wrapper] = mine
    cleanup.close_all()
    assert (wrapper.connection, mine) == (None, [])


def test_a_transaction_left_open_is_rolled_back_and_the_job_named(
    mine: list[Any], raw: RawDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Trap 14: the job's uncommitted work is rolled back, and none of its locks stays."""
    [wrapper] = mine
    pid = wrapper.connection.info.backend_pid
    wrapper.set_autocommit(False)
    with wrapper.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(7)")
    cleanup.tidy("job=7")
    assert mine == []
    assert "job left a transaction open, rolled back job=7 alias=default" in caplog.text
    wait_until(
        lambda: not raw.query("SELECT pid FROM pg_stat_activity WHERE pid = %s", [pid]), 5, "its connection is gone"
    )


def test_a_connection_that_cannot_be_looked_at_is_discarded(
    mine: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A database engine of the project may raise anything; the job that is about to start is not to blame."""
    [wrapper] = mine
    monkeypatch.setattr(wrapper, "close_at", "noon")
    cleanup.refresh()
    assert mine == []
    assert "connection cannot be looked at, discarded alias=default" in caplog.text


def test_a_connection_of_a_pool_gives_its_place_back(mine: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    [wrapper] = mine
    raw = wrapper.connection
    given: list[Any] = []

    class Pool:
        putconn = given.append

    with monkeypatch.context() as pooled:
        pooled.setattr(type(wrapper), "pool", Pool)
        cleanup.discard(wrapper)
    assert (given, raw.closed) == ([raw], True)
