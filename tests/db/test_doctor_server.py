"""``pgjobs doctor`` on faults of the server: each is planted, named with its cure, and the cure as printed mends it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest
from django.db import connection, connections
from django.test import override_settings

from django_pgjobs.doctor import server
from django_pgjobs.models import Job
from django_pgjobs.store import examining
from tests.db.doctor_ground import altered, analysed, apart, finding, findings, heart, here, mends, seen, typed
from tests.plugins.fix_db import RawDatabase, register, wait_until
from tests.plugins.fix_roles import Role
from tests.plugins.fix_worker import database_url

__all__ = ["altered", "analysed", "apart"]

pytestmark = pytest.mark.usefixtures("committed")


# The session


@pytest.mark.parametrize(
    ("name", "value", "id", "severity"),
    [
        ("default_transaction_isolation", "'repeatable read'", "isolation", "warning"),
        ("default_transaction_read_only", "on", "read_only", "error"),
    ],
)
def test_a_setting_of_the_database(
    raw: RawDatabase, altered: Callable[..., None], name: str, value: str, id: str, severity: str
) -> None:
    reset = f"ALTER DATABASE {here(raw)} RESET {name}"
    raw.query("SET default_transaction_read_only = off")
    altered(f"ALTER DATABASE {here(raw)} SET {name} = {value}", reset)
    assert mends(id, raw, severity)["cure"].startswith("ALTER DATABASE ")


def test_a_setting_of_the_role(raw: RawDatabase, role: Callable[..., Role]) -> None:
    made = role(f"{raw.value('SELECT current_user')}")
    raw.query(f"ALTER ROLE {made.name} SET default_transaction_isolation = serializable")
    found = finding("isolation", "--database", made.alias)
    assert found["what"] == "Transactions begin at SERIALIZABLE."
    assert found["cure"] == f"ALTER ROLE {made.name} RESET default_transaction_isolation;"
    typed(found["cure"], raw)
    assert findings("isolation", "--database", made.alias) == []


def test_the_isolation_level_of_the_options() -> None:
    level = {"isolation_level": psycopg.IsolationLevel.REPEATABLE_READ}
    connections.settings["strict"] = {**connection.settings_dict, "OPTIONS": level}
    try:
        found = finding("isolation", "--database", "strict")
    finally:
        connections["strict"].close()
        del connections["strict"]
        del connections.settings["strict"]
    assert found["what"] == "Transactions begin at REPEATABLE READ."
    assert found["cure"] == 'del DATABASES["strict"]["OPTIONS"]["isolation_level"]'


def test_tables_in_two_schemas(raw: RawDatabase, altered: Callable[..., None]) -> None:
    home = raw.value("SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
                     " WHERE c.oid = 'pgjobs_job'::regclass")  # fmt: skip
    altered("CREATE SCHEMA tenant", "DROP SCHEMA tenant CASCADE")
    altered("CREATE TABLE tenant.pgjobs_job (id int)", "SELECT 1")
    path = f"ALTER DATABASE {here(raw)} SET search_path = {home}, tenant"
    altered(path, f"ALTER DATABASE {here(raw)} RESET search_path")
    found = finding("schemas")
    assert found["what"] == f"Several schemas on the search_path have the tables: {home} is used, tenant not."
    assert found["severity"] == "warning"
    assert "=" not in found["cure"]  # no line replaces other OPTIONS


# Its upkeep


def test_autovacuum_of_the_server(raw: RawDatabase, altered: Callable[..., None]) -> None:
    """The server takes its own configuration up in its own time."""
    altered("ALTER SYSTEM SET autovacuum = off", "ALTER SYSTEM RESET autovacuum")
    raw.query("SELECT pg_reload_conf()")
    try:
        until(raw, "autovacuum", "off")
        found = finding("autovacuum")
        assert found["severity"] == "error"
        typed(found["cure"], raw)
        until(raw, "autovacuum", "on")
        assert findings("autovacuum") == []
    finally:
        raw.query("ALTER SYSTEM RESET autovacuum")
        raw.query("SELECT pg_reload_conf()")


def until(raw: RawDatabase, name: str, value: str) -> None:
    wait_until(lambda: raw.value(f"SHOW {name}") == value, 10, f"{name} is {value}")


def test_autovacuum_of_a_table(raw: RawDatabase, altered: Callable[..., None]) -> None:
    altered(
        "ALTER TABLE pgjobs_job SET (autovacuum_enabled = false)", "ALTER TABLE pgjobs_job RESET (autovacuum_enabled)"
    )
    assert mends("autovacuum", raw, "error")["what"] == "Autovacuum is off for pgjobs_job."


@pytest.mark.usefixtures("analysed")
def test_statistics_of_another_time(raw: RawDatabase) -> None:
    raw.query("ALTER TABLE pgjobs_depth SET (autovacuum_enabled = false)")
    try:
        raw.query(
            "INSERT INTO pgjobs_depth (minute, queue, ready, scheduled, running, held)"
            " SELECT statement_timestamp(), 'q' || n, 0, 0, 0, 0 FROM generate_series(1, 60000) AS n"
        )
        raw.query("DELETE FROM pgjobs_depth WHERE ready = 0")
        raw.query("SELECT pg_stat_force_next_flush()")
        assert mends("statistics", raw, "warning")["cure"] == "ANALYZE pgjobs_depth;"
    finally:
        raw.query("ALTER TABLE pgjobs_depth RESET (autovacuum_enabled)")


# Indexes


def test_an_index_that_failed_to_be_made(raw: RawDatabase) -> None:
    register(2)
    with pytest.raises(psycopg.errors.UniqueViolation):
        raw.query("CREATE UNIQUE INDEX CONCURRENTLY test_twice ON pgjobs_job (name)")
    try:
        found = mends("index_invalid", raw, "error")
        assert found["cure"] == "DROP INDEX CONCURRENTLY test_twice;"
    finally:
        raw.query("DROP INDEX IF EXISTS test_twice")


def test_an_index_of_ours_that_failed_is_made_again(raw: RawDatabase) -> None:
    name = Job._meta.indexes[0].name
    raw.query("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", [name])
    try:
        assert mends("index_invalid", raw, "error")["cure"] == f"REINDEX INDEX CONCURRENTLY {name};"
    finally:
        raw.query("UPDATE pg_index SET indisvalid = true WHERE indexrelid = %s::regclass", [name])


def test_an_index_that_is_being_built_is_left_alone(raw: RawDatabase, other: RawDatabase) -> None:
    """The build waits for a transaction that wrote before it."""
    other.query("BEGIN")
    other.query("LOCK TABLE pgjobs_depth IN ROW EXCLUSIVE MODE")
    build = "CREATE INDEX CONCURRENTLY test_built ON pgjobs_depth (ready)"
    builder = threading.Thread(target=raw.query, args=[build])
    builder.start()
    try:
        with connection.cursor() as cursor:
            there = (
                "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('test_built') AND NOT indisvalid)"
            )
            wait_until(lambda: cursor.execute(there) or cursor.fetchone()[0], 10, "the build waits")
        found = findings("index_invalid")
    finally:
        other.query("ROLLBACK")
        builder.join()
        raw.query("DROP INDEX IF EXISTS test_built")
    assert found == []


@pytest.mark.parametrize("name", [index.name for model in server._models() for index in server._indexes_of(model)])
def test_an_index_that_is_gone(raw: RawDatabase, name: str) -> None:
    """No cure keeps others from writing while it reads the table."""
    definition = "SELECT pg_get_indexdef(%s::regclass)"
    constraint = "SELECT pg_get_constraintdef(oid), conrelid::regclass::text FROM pg_constraint WHERE conname = %s"
    before, of = raw.value(definition, [name]), raw.query(constraint, [name])
    raw.query(f"ALTER TABLE {of[0][1]} DROP CONSTRAINT {name}" if of else f"DROP INDEX {name}")
    try:
        found = mends("index_missing", raw, "error")
        assert name in found["what"]
        assert " INDEX CONCURRENTLY " in found["cure"].partition(";")[0]
        assert (raw.value(definition, [name]), raw.query(constraint, [name])) == (before, of)
    finally:
        if raw.value("SELECT to_regclass(%s)", [name]) is None:
            raw.query(f"ALTER TABLE {of[0][1]} ADD CONSTRAINT {name} {of[0][0]}" if of else before)


# Connections


def test_a_pooler_may_be_one_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen(monkeypatch, pid=1)
    found = finding("pooler")
    assert found["severity"] == "note"
    assert found["why"].startswith("If it pools transactions, ")


def test_a_role_with_too_few_connections(raw: RawDatabase, role: Callable[..., Role]) -> None:
    made = role()
    typed(finding("grants", "--role", made.name)["cure"], raw)
    raw.query(f"ALTER ROLE {made.name} CONNECTION LIMIT 12")
    heart(processes=2, threads=4)
    found = finding("connections", "--database", made.alias)
    assert found["severity"] == "error"
    assert found["what"] == (f"1 workers may need 16 connections, others have 0. Role {made.name} allows 12.")
    typed(found["cure"], raw)
    assert findings("connections", "--database", made.alias) == []


@override_settings(PGJOBS={"PROCESSES": 100, "THREADS": 8})
def test_a_declared_worker_that_needs_more_than_the_server_has() -> None:
    found = finding("connections")
    assert found["severity"] == "error"
    assert found["what"].startswith("The worker that the settings describe may need 808 connections")
    processes, threads = (int(word) for word in found["cure"].split() if word.isdecimal())
    assert processes > 1
    with override_settings(PGJOBS={"PROCESSES": processes, "THREADS": threads}):
        assert findings("connections") == []


def test_the_bound_that_is_exceeded_most_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    heart(processes=2, threads=4)
    bounds = [examining.ConnectionBound(*each) for each in [("ROLE", 40, 0), ("DATABASE", 60, 40), ("SYSTEM", 90, 85)]]
    monkeypatch.setattr(examining, "read_bounds", lambda db: bounds)
    assert "The server allows 90." in finding("connections")["what"]


# What keeps dead rows


def test_a_transaction_that_was_forgotten(
    raw: RawDatabase, other: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SNAPSHOT_SECONDS", 0.0)
    other.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other.query("SELECT count(*) FROM pgjobs_job")
    assert mends("snapshot", raw, "warning")["cure"] == f"SELECT pg_terminate_backend({other.pid});"


@pytest.fixture
def catalogs(raw: RawDatabase, altered: Callable[..., None]) -> Callable[[str, str], object]:
    """Show a catalog with other rows."""
    altered("CREATE SCHEMA seen", "DROP SCHEMA seen CASCADE")
    path = f"ALTER DATABASE {here(raw)} SET search_path = seen, pg_catalog, public"
    altered(path, f"ALTER DATABASE {here(raw)} RESET search_path")
    return lambda name, rows: raw.query(f"CREATE VIEW seen.{name} AS {rows}")


def test_only_a_slot_of_a_standby_keeps_rows_of_tables(catalogs: Callable[[str, str], object]) -> None:
    catalogs(
        "pg_replication_slots",
        "SELECT 'cdc' AS slot_name, 'logical' AS slot_type, false AS active, null::xid AS xmin,"
        " '7'::xid AS catalog_xmin UNION ALL SELECT 'standby', 'physical', false, '7', null",
    )
    cure = "start its reader; only if none is to come back, SELECT pg_drop_replication_slot('standby')"
    assert finding("snapshot")["cure"] == cure


def test_a_prepared_transaction_of_this_database(catalogs: Callable[[str, str], object]) -> None:
    rows = "SELECT '{0}' AS gid, 'x' AS owner, {1} AS database, timestamptz '2020-01-01' AS prepared"
    both = rows.format("here", "current_database()"), rows.format("there", "'elsewhere'")
    catalogs("pg_prepared_xacts", " UNION ALL ".join(both))
    assert finding("snapshot")["cure"].startswith("COMMIT PREPARED 'here', if ")


def test_vacuum_and_other_databases_keep_no_rows(
    catalogs: Callable[[str, str], object], other: RawDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SNAPSHOT_SECONDS", 0.0)
    other.query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other.query("SELECT count(*) FROM pgjobs_job")
    catalogs("pg_stat_progress_vacuum", f"SELECT {other.pid} AS pid")
    with psycopg.connect(database_url(NAME="postgres")) as elsewhere:
        elsewhere.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        elsewhere.execute("SELECT count(*) FROM pg_class")
        assert findings("snapshot") == []
