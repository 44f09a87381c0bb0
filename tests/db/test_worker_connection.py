"""How the worker's own connections are made."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections

from django_pgjobs import clock
from django_pgjobs.worker.shared.connection import WorkerConnection
from tests.plugins.fix_db import Background, RawDatabase, patience, wait_until


@pytest.fixture
def options(committed: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The OPTIONS of the database alias, for a test to change."""
    connection.ensure_connection()  # one that is opened while they are changed would keep them
    changed: dict[str, Any] = {}
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", changed)
    return changed


def test_a_server_that_has_vanished_is_given_up_before_leases_run_out(committed: None, options: dict[str, Any]) -> None:
    """No packet says that it has: without an answer the kernel would wait a quarter of an hour, or two hours."""
    options["keepalives_idle"] = 77
    db = WorkerConnection("default", "test", statement_seconds=5.0)
    try:
        asked = db.connection.info.get_parameters()
    finally:
        db.close()
    assert asked["tcp_user_timeout"] == "30000"
    assert asked["connect_timeout"] == "10"
    assert asked["keepalives_idle"] == "77"
    assert db.gone


def test_a_connection_without_an_answer_is_cut(
    committed: None, background: Background, raw: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the main thread; and one that answers, or that has not been asked, never."""
    db = WorkerConnection("default", "test", statement_seconds=60.0)
    try:
        assert not db.cut_if_mute(1e12)
        monkeypatch.setattr("django_pgjobs.worker.shared.connection.statement", lambda name: "SELECT pg_sleep(60)")
        asked = background(db.fetch, "beat", {})
        wait_until(lambda: db.asked_at is not None, 10, "it has been asked")
        assert not db.cut_if_mute(clock.monotonic())
        assert db.cut_if_mute(clock.monotonic() + db.patience)
        with pytest.raises(psycopg.OperationalError):
            asked.result(patience(30))
        assert (db.gone, db.asked_at) == (True, None)
    finally:
        db.close()


def test_between_two_statements_of_the_orm_no_answer_is_waited_for(
    committed: None, background: Background, raw: RawDatabase
) -> None:
    """A page of problems takes many statements, each bounded: together they may take longer than one that hangs."""
    db = WorkerConnection("default", "test", statement_seconds=60.0)

    def cuts() -> bool:
        sleeps = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
        wait_until(lambda: raw.value(sleeps, [db.pid]) == 1, 10, "it has been asked")
        return db.cut_if_mute(clock.monotonic() + db.patience)

    def asks() -> None:
        with db.orm() as using, connections[using].cursor() as cursor:
            cursor.execute("SELECT 1")
            assert not db.cut_if_mute(1e12)
            cut = background(cuts)
            try:
                cursor.execute("SELECT pg_sleep(60)")
            finally:
                assert cut.result(patience(30))

    try:
        with pytest.raises(OperationalError):
            asks()
        assert (db.gone, db.asked_at) == (True, None)
    finally:
        db.close()


def test_a_commit_that_failed_waits_for_no_answer(committed: None, raw: RawDatabase) -> None:
    """Else what is closed would be cut, and said to be silent, at each tick of an outage that begins so."""
    db = WorkerConnection("default", "test", statement_seconds=60.0)

    def loses_its_commit() -> None:
        with db.transaction():
            db.fetch("read_pauses", {})
            raw.query("SELECT pg_terminate_backend(%s, 10000)", [db.pid])

    try:
        with pytest.raises(psycopg.OperationalError):
            loses_its_commit()
        assert (db.gone, db.asked_at) == (True, None)
        assert not db.cut_if_mute(1e12)
    finally:
        db.close()


def test_a_statement_is_given_up_after_its_time(committed: None) -> None:
    db = WorkerConnection("default", "test", statement_seconds=5.0)
    try:
        [(timeout,)] = db.connection.execute("SHOW statement_timeout").fetchall()
        assert timeout == "5s"
        with pytest.raises(psycopg.ProgrammingError):
            db.connection.execute("SELECT nonsense")
        assert not db.gone
    finally:
        db.close()


def test_a_server_that_ends_idle_sessions_ends_none_of_a_worker(committed: None, options: dict[str, Any]) -> None:
    """Else each thread that waits would lose its connection and warn of it, again and again."""
    options["options"] = "-c idle_session_timeout=100ms"
    db = WorkerConnection("default", "test", statement_seconds=5.0)
    try:
        assert db.connection.execute("SHOW idle_session_timeout").fetchone() == ("0",)
    finally:
        db.close()
