"""``pgjobs doctor`` on a real server: each fault is planted, named with its cure, and the cure as printed mends it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import override_settings
from django.utils import timezone

from django_pgjobs import __version__, job
from django_pgjobs.doctor import gather, server
from django_pgjobs.doctor.finding import NOT_READ, Finding, Severity
from django_pgjobs.models import Heartbeat, Job
from django_pgjobs.models.numbers import Minute
from django_pgjobs.store import examining, leading
from django_pgjobs.testing import isolated_registry
from tests.plugins.fix_db import AUTHOR, TABLES, WORKER, RawDatabase, register, wait_until
from tests.plugins.fix_roles import Role
from tests.plugins.fix_worker import database_url
from tests.plugins.shell import BEAT, pgjobs

pytestmark = pytest.mark.usefixtures("committed")

Found = dict[str, Any]


def nothing() -> None: ...


def examined(*options: object) -> tuple[int, list[Found]]:
    status, out, _ = pgjobs("doctor", "--format", "json", *options)
    return status, json.loads(out)["findings"]


def findings(id: str, *options: object) -> list[Found]:
    return [each for each in examined(*options)[1] if each["id"] == id]


def finding(id: str, *options: object) -> Found:
    [found] = findings(id, *options)
    assert found["what"]
    assert found["why"]
    assert found["cure"]
    return found


def typed(sql: str, raw: RawDatabase) -> None:
    """Type a cure of SQL, as into psql: each statement by itself."""
    assert sql.endswith(";")
    for statement in sql.split(";")[:-1]:
        raw.query(statement)


def mends(id: str, raw: RawDatabase, severity: str, *options: object) -> Found:
    """The cure of this finding, typed as printed, leaves none."""
    found = finding(id, *options)
    assert found["severity"] == severity
    typed(found["cure"], raw)
    connections["default"].close()  # settings of the role and the database are those of new sessions
    assert findings(id, *options) == []
    return found


def heart(**facts: Any) -> Any:
    row = {**BEAT, "version": __version__, "queues": None, "excluded_queues": None, **facts}
    return Heartbeat.objects.create(**row)


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    with isolated_registry():
        yield


@pytest.fixture
def analysed(raw: RawDatabase) -> None:
    """The statistics are of now, whatever other tests have written; our own session has told what it wrote."""
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    connection.close()
    gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
    wait_until(lambda: raw.value(gone, [pid]), 10, "the session ends")
    raw.query("SELECT pg_stat_force_next_flush()")
    raw.query(f"ANALYZE {', '.join(TABLES)}")


# The shape of what it says


@pytest.mark.usefixtures("analysed")
def test_a_server_that_is_well_has_no_finding_of_its_own() -> None:
    heart()
    found = {each["id"] for each in examined()[1]}
    assert found <= {"fork", "leader"}, found  # this process has threads, and no worker leads


@pytest.mark.usefixtures("analysed")
def test_the_most_harmful_stands_first_and_decides_the_exit_status(raw: RawDatabase) -> None:
    heart(queues=["other"])
    job(name="f.job", queue="mail")(nothing)
    with override_settings(PGJOBS={"NOTIFY": False, "EXECUTOR_TEMPLATE": False}):
        leading.take_term(raw, AUTHOR, seconds=3600.0)
        status, found = examined()
        assert (status, [each["id"] for each in found]) == (0, ["queue_unserved"])
        assert pgjobs("doctor", "--strict")[0] == 1
        raw.query("ALTER TABLE pgjobs_claim SET (autovacuum_enabled = off)")
        try:
            status, text, _ = pgjobs("doctor")
        finally:
            raw.query("ALTER TABLE pgjobs_claim RESET (autovacuum_enabled)")
    assert status == 1
    assert text == (
        "error: autovacuum: Autovacuum is off for pgjobs_claim.\n"
        "  Why: Dead rows stay, and plans go by old figures.\n"
        "  Type: ALTER TABLE pgjobs_claim RESET (autovacuum_enabled);\n"
        "warning: queue_unserved: No worker serves mail.\n"
        "  Why: The code declares jobs for these queues, which would not run.\n"
        "  Type: manage.py runjobs --queues mail\n"
        "Found 1 error, 1 warning.\n"
    )


def test_wrong_usage_is_refused() -> None:
    assert pgjobs_status("doctor", "--database", "nowhere") == 2
    assert pgjobs_status("doctor", "--from", "rq") == 2
    assert pgjobs_status("doctor", "--from", "celery", "--source", "nowhere.py") == 2


def pgjobs_status(*arguments: str) -> int:
    with pytest.raises(CommandError) as error:
        pgjobs(*arguments)
    return 2 if "invalid choice" in str(error.value) else error.value.returncode


# It only reads, and a probe harms no other


def test_a_probe_that_would_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def writes(patient: server.Patient) -> Iterator[Finding]:
        Job.objects.using(patient.using).update(priority=7)
        yield Finding("never", Severity.ERROR, "", "", "")

    for probes in (server.OF_THE_SERVER, server.OF_THE_TABLES):
        monkeypatch.setitem(probes, "writes", writes)
    register()
    found = findings(NOT_READ)
    assert [each["what"] for each in found] == [
        "The probe writes could not look: cannot execute UPDATE in a read-only transaction"
    ] * 2
    assert Job.objects.get().priority == 0


def test_it_leaves_every_row_and_every_setting_as_it_was(raw: RawDatabase) -> None:
    heart()
    register(3)

    def everything() -> Any:
        return [raw.query(f"SELECT to_jsonb(t) FROM {table} AS t ORDER BY 1") for table in TABLES]

    before = everything(), connections["default"], connection.settings_dict["OPTIONS"]
    examined()
    assert (everything(), connections["default"], connection.settings_dict["OPTIONS"]) == before
    assert raw.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgjobs doctor'") == 0


def test_a_probe_has_a_time_limit_and_the_others_still_look(monkeypatch: pytest.MonkeyPatch, raw: RawDatabase) -> None:
    def sleeps(patient: server.Patient) -> Iterator[Finding]:
        with connections[patient.using].cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")
        yield Finding("never", Severity.ERROR, "", "", "")

    monkeypatch.setattr(gather, "SECONDS", 0.2)
    monkeypatch.setattr(server, "OF_THE_TABLES", {"sleeps": sleeps, "upkeep": server.upkeep})
    raw.query("ALTER TABLE pgjobs_job SET (autovacuum_enabled = off)")
    try:
        found = examined()[1]
    finally:
        raw.query("ALTER TABLE pgjobs_job RESET (autovacuum_enabled)")
    assert [each["what"] for each in found if each["id"] == NOT_READ] == [
        "The probe sleeps could not look: canceling statement due to statement timeout"
    ]
    assert "autovacuum" in [each["id"] for each in found]


def test_what_a_probe_found_before_it_failed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(patient: server.Patient) -> Iterator[Finding]:
        yield Finding("found", Severity.NOTE, "", "", "")
        patient.db.fetch("read_upkeep", {"tables": 1})

    monkeypatch.setattr(server, "OF_THE_TABLES", {"fails": fails})
    found = [each["id"] for each in examined()[1]]
    assert [found.count(each) for each in ("found", NOT_READ)] == [1, 1]


@override_settings(USE_TZ=False)
def test_a_project_without_time_zones() -> None:
    assert [*findings(NOT_READ), *findings("clock")] == []


def seen(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Let the doctor see another server."""
    read = examining.read_server
    monkeypatch.setattr(examining, "read_server", lambda db: read(db)._replace(**facts))


def test_a_pooler_may_be_one_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen(monkeypatch, pid=1)
    found = finding("pooler")
    assert found["severity"] == "note"
    assert found["why"].startswith("If it pools transactions, ")


def test_a_silent_server_is_one_line() -> None:
    known = connection.settings_dict
    connections.settings["away"] = {**known, "HOST": "127.0.0.1", "PORT": "1"}
    try:
        status, found = examined("--database", "away")
    finally:
        del connections.settings["away"]
    [away] = [each for each in found if each["id"] == "database"]
    assert status == 1
    assert away["what"].startswith("'away' does not answer: ")
    assert away["cure"] == "manage.py dbshell --database away"


# The server and the session


@pytest.fixture
def altered(raw: RawDatabase) -> Iterator[Callable[..., None]]:
    """Alter something, and back at the end, whatever the cure did."""
    undo: list[str] = []

    def alter(do: str, back: str) -> None:
        undo.append(back)
        raw.query(do)
        connections["default"].close()

    yield alter
    for each in undo:
        raw.query(each)
    connections["default"].close()


def here(raw: RawDatabase) -> str:
    return f'"{raw.value("SELECT current_database()")}"'


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


# Roles


def test_a_role_without_rights(raw: RawDatabase, role: Callable[..., Role]) -> None:
    """As the role that asks, and as another that is to work."""
    made = role()
    for options in (["--database", made.alias], ["--role", made.name]):
        assert finding("grants", *options)["severity"] == "error"
    found = finding("grants", "--role", made.name)
    assert found["what"].startswith(f"Role {made.name} lacks rights on ")
    typed(found["cure"], raw)
    assert findings("grants", "--role", made.name) == []
    assert findings("grants", "--database", made.alias) == []
    raw.query(f"REVOKE DELETE ON pgjobs_memo FROM {made.name}")
    found = finding("grants", "--database", made.alias)
    assert found["cure"] == f"GRANT DELETE ON TABLE public.pgjobs_memo TO {made.name};"


def test_a_role_that_may_not_ask_which_server_it_is(raw: RawDatabase, role: Callable[..., Role]) -> None:
    """Hardened servers revoke it: no worker could start."""
    made = role()
    typed(finding("grants", "--role", made.name)["cure"], raw)
    raw.query("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    try:
        found = finding("grants", "--database", made.alias)
        assert found["cure"] == f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {made.name};"
        typed(found["cure"], raw)
        assert findings("grants", "--database", made.alias) == []
    finally:
        raw.query("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")


def test_a_role_that_may_not_vacuum(raw: RawDatabase, role: Callable[..., Role]) -> None:
    made = role()
    typed(finding("grants", "--role", made.name)["cure"], raw)
    if raw.raw.info.server_version >= 170000:
        mends("vacuum_right", raw, "note", "--database", made.alias)


def test_nobody_becomes_an_owner_to_vacuum(
    raw: RawDatabase, role: Callable[..., Role], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before PostgreSQL 17 the right is the owner's, who may drop the tables, too."""
    made = role()
    typed(finding("grants", "--role", made.name)["cure"], raw)
    seen(monkeypatch, version=16)
    assert not finding("vacuum_right", "--database", made.alias)["cure"].startswith("GRANT ")


def test_a_role_that_does_not_exist_is_one_line() -> None:
    assert finding(NOT_READ, "--role", "nobody_here")["what"] == (
        'The probe grants could not look: role "nobody_here" does not exist'
    )


# Schemas


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


def test_tables_that_the_search_path_does_not_have_need_no_rights(
    raw: RawDatabase, altered: Callable[..., None], role: Callable[..., Role]
) -> None:
    made, odd = role(), '"Odd, ""one"""'
    raw.query(f"ALTER ROLE {made.name} SET search_path = {odd}")
    altered(f"CREATE SCHEMA {odd}", f"DROP SCHEMA {odd} CASCADE")
    assert findings("grants", "--database", made.alias) == []
    raw.query(f"CREATE TABLE {odd}.pgjobs_job (id int)")
    found = finding("grants", "--database", made.alias)
    assert f"ON TABLE {odd}.pgjobs_job TO {made.name};" in found["cure"]
    typed(found["cure"], raw)
    assert findings("grants", "--database", made.alias) == []


def test_a_schema_where_every_role_may_create(raw: RawDatabase, altered: Callable[..., None]) -> None:
    altered("GRANT CREATE ON SCHEMA public TO PUBLIC", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    assert mends("open_schema", raw, "warning")["cure"] == "REVOKE CREATE ON SCHEMA public FROM PUBLIC;"


# Connections


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


# Workers, code and rows


def test_a_queue_that_nobody_serves() -> None:
    job(name="f.job", queue="mail")(nothing)
    heart(queues=["default"])
    found = finding("queue_unserved")
    assert found["cure"] == "manage.py runjobs --queues mail"
    heart(id="00000000-0000-4000-8000-000000000002", name="mail-1", queues=["mail"])
    assert findings("queue_unserved") == []


def test_workers_of_another_version() -> None:
    heart(version="0.0.9", name="old-1")
    found = finding("versions")
    assert found["what"].endswith(": old-1 0.0.9.")
    assert found["cure"] == "manage.py pgjobs workers drain old-1"


def test_what_check_says_is_among_it() -> None:
    job(name="f.job", queue="mail")(nothing).register()
    heart(queues=["default"])
    found = finding("no_worker")
    assert (found["severity"], found["cure"]) == ("error", "manage.py runjobs --queues mail")


def test_what_check_in_flight_says_is_among_it() -> None:
    register(name="shop.gone")
    assert "shop.gone: 1 would park" in finding("in_flight")["what"]


@override_settings(PGJOBS={"LEASE_SECONDS": 1})
def test_what_the_system_checks_say_is_among_it() -> None:
    found = finding("pgjobs.E005")
    assert found["severity"] == "error"
    assert found["cure"].startswith('Set "LEASE_SECONDS" to ')


@override_settings(PGJOBS={"LEASE_SECOND": 1})
def test_settings_that_are_wrong_are_all_it_says() -> None:
    status, found = examined()
    assert (status, [each["id"] for each in found]) == (1, ["pgjobs.E002"])


counter = 0


def counts() -> None:
    global counter
    counter += 1
    os.environ["TZ"] = "UTC"


lock = threading.Lock()


def counts_alone() -> None:
    global counter
    with lock:
        counter += 1


def test_jobs_that_share_state() -> None:
    job(name="f.counts", queue="old")(counts)
    found = finding("shared_state")
    assert found["what"] == "Job f.counts changes what it shares with others: the global counter, os.environ."
    assert found["cure"] == "manage.py runjobs --queues old --threads 1 --async-slots 1"
    line = counts.__code__.co_firstlineno
    assert found["where"] == [f"{__file__}:{line + 2}", f"{__file__}:{line + 3}"]
    with override_settings(PGJOBS={"THREADS": 1}):
        assert findings("shared_state") == []


def test_a_lock_makes_it_well() -> None:
    job(name="f.counts")(counts_alone)
    assert findings("shared_state") == []


@override_settings(PGJOBS={"RETENTION": {"succeeded": None}})
def test_jobs_that_are_kept_for_ever() -> None:
    found = finding("retention")
    assert found["cure"] == 'PGJOBS = {"RETENTION": {"succeeded": timedelta(hours=24)}}'
    with override_settings(PGJOBS=eval(found["cure"].partition(" = ")[2], {"timedelta": timedelta})):
        assert findings("retention") == []


@override_settings(PGJOBS={"RETENTION": {"succeeded": timedelta(days=3650)}})
def test_a_rate_for_which_no_disk_is_large_enough() -> None:
    register()
    Minute.objects.create(
        worker=WORKER, minute=timezone.now(), queue="default", name="f.job", outcome="succeeded", release="",
        jobs=1_000_000, run_seconds=1, wait_seconds=1, run_histogram=[], wait_histogram=[],
    )  # fmt: skip
    assert finding("retention")["what"].startswith("At the rate of the last hour pgjobs_job will have ")


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


def test_a_role_that_cannot_see_others_is_told_so(raw: RawDatabase, role: Callable[..., Role]) -> None:
    made = role()
    typed(finding("grants", "--role", made.name)["cure"], raw)
    assert mends(NOT_READ, raw, "note", "--database", made.alias)["cure"] == f"GRANT pg_read_all_stats TO {made.name};"


# Several databases


def test_each_of_several_databases_is_examined(raw: RawDatabase, altered: Callable[..., None]) -> None:
    connections.settings["copy"] = {**connection.settings_dict}
    altered(
        "ALTER TABLE pgjobs_job SET (autovacuum_enabled = off)", "ALTER TABLE pgjobs_job RESET (autovacuum_enabled)"
    )
    try:
        with override_settings(PGJOBS={"DATABASES": ["default", "copy"]}):
            found = findings("autovacuum")
            text = pgjobs("doctor")[1]
    finally:
        connections["copy"].close()
        del connections["copy"]
        del connections.settings["copy"]
    assert [each["database"] for each in found] == ["default", "copy"]
    assert "error: copy: autovacuum: Autovacuum is off for pgjobs_job.\n" in text


def test_a_command_names_the_database_where_several_are_served() -> None:
    register(name="shop.gone")
    connections.settings["copy"] = {**connection.settings_dict}
    try:
        with override_settings(PGJOBS={"DATABASES": ["default", "copy"]}):
            found = findings("in_flight")
    finally:
        connections["copy"].close()
        del connections["copy"]
        del connections.settings["copy"]
    assert [each["cure"] for each in found] == [
        "manage.py pgjobs check --in-flight --database default",
        "manage.py pgjobs check --in-flight --database copy",
    ]


# Several schemas


@pytest.fixture
def tenants(raw: RawDatabase) -> Iterator[None]:
    """Two schemas with our tables, and one without."""
    written = StringIO()
    call_command("sqlmigrate", "pgjobs", "0001", stdout=written, no_color=True)
    for name in ("tenant_a", "tenant_b"):
        raw.query(f"CREATE SCHEMA {name}")
        raw.query(f"SET search_path = {name}")
        raw.raw.execute(written.getvalue())
        raw.query("CREATE TABLE django_migrations AS TABLE public.django_migrations")
    raw.query("CREATE SCHEMA tenant_c")
    raw.query("RESET search_path")
    yield
    for name in ("tenant_a", "tenant_b", "tenant_c"):
        raw.query(f"DROP SCHEMA {name} CASCADE")
    raw.query("RESET search_path")


@pytest.mark.usefixtures("tenants")
@override_settings(PGJOBS={"SCHEMAS": lambda: ["tenant_a", "tenant_b"]})
def test_each_schema_is_examined(raw: RawDatabase) -> None:
    raw.query("ALTER TABLE pgjobs_job SET (autovacuum_enabled = off)")  # of a schema that is not served
    try:
        assert {each["id"] for each in examined()[1]} <= {"fork", "leader"}  # no worker leads there
    finally:
        raw.query("ALTER TABLE pgjobs_job RESET (autovacuum_enabled)")
    raw.query("ALTER TABLE tenant_b.pgjobs_job SET (autovacuum_enabled = off)")
    found = mends("autovacuum", raw, "error")
    assert found["what"] == "In schema tenant_b: Autovacuum is off for pgjobs_job."
    assert found["cure"] == 'SET search_path = "tenant_b"; ALTER TABLE pgjobs_job RESET (autovacuum_enabled);'


@pytest.mark.usefixtures("tenants")
@override_settings(PGJOBS={"SCHEMAS": lambda: ["tenant_a"]})
def test_a_role_needs_no_rights_in_schemas_that_are_not_served(raw: RawDatabase, role: Callable[..., Role]) -> None:
    made = role()
    found = finding("grants", "--role", made.name)
    assert found["what"].startswith("In schema tenant_a: ")
    typed(found["cure"], raw)
    assert findings("grants", "--role", made.name) == []
    assert findings("grants", "--database", made.alias) == []


@override_settings(PGJOBS={"SCHEMAS": lambda: 1 / 0})
def test_schemas_that_cannot_be_asked_are_a_finding() -> None:
    found = finding("schemas")
    assert found["severity"] == "error"
    assert found["what"].endswith("cannot be used: division by zero")


@pytest.mark.usefixtures("tenants")
@override_settings(PGJOBS={"SCHEMAS": lambda: ["tenant_a", "tenant_b", "tenant_c"]})
def test_schemas_with_the_same_are_one_finding(raw: RawDatabase) -> None:
    found = finding("migrations")
    assert found["what"] == "In schema tenant_c: Not applied: 0001_initial. Run manage.py migrate."
    for name in ("tenant_a", "tenant_b"):
        raw.query(f"ALTER TABLE {name}.pgjobs_claim SET (autovacuum_enabled = off)")
    found = finding("autovacuum")
    assert found["what"] == "In 2 schemas (tenant_a, tenant_b): Autovacuum is off for pgjobs_claim."


def test_a_probe_that_the_server_does_not_end_is_cut_and_the_next_has_a_connection(
    monkeypatch: pytest.MonkeyPatch, raw: RawDatabase
) -> None:
    def sleeps(patient: server.Patient) -> Iterator[Finding]:
        with connections[patient.using].cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = 0")
            cursor.execute("SELECT pg_sleep(600)")
        yield Finding("never", Severity.ERROR, "", "", "")

    monkeypatch.setattr(gather, "SECONDS", 0.2)
    monkeypatch.setattr(server, "OF_THE_TABLES", {"sleeps": sleeps, "upkeep": server.upkeep})
    raw.query("ALTER TABLE pgjobs_job SET (autovacuum_enabled = off)")
    try:
        found = [each["id"] for each in examined()[1]]
    finally:
        raw.query("ALTER TABLE pgjobs_job RESET (autovacuum_enabled)")
    assert found.count(NOT_READ) == 1
    assert "autovacuum" in found
