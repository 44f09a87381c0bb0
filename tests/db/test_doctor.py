"""``pgjobs doctor`` on a real server: how it looks, what it prints, and that it harms nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import override_settings

from django_pgjobs import job
from django_pgjobs.doctor import gather, server
from django_pgjobs.doctor.finding import NOT_READ, Finding, Severity
from django_pgjobs.models import Job
from django_pgjobs.store import leading
from tests.db.doctor_ground import altered, analysed, apart, examined, finding, findings, heart, mends, nothing, typed
from tests.plugins.fix_db import AUTHOR, TABLES, RawDatabase, register
from tests.plugins.fix_roles import Role
from tests.plugins.shell import pgjobs

__all__ = ["altered", "analysed", "apart"]

pytestmark = pytest.mark.usefixtures("committed")


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


@override_settings(USE_TZ=False)
def test_a_project_without_time_zones() -> None:
    assert [*findings(NOT_READ), *findings("clock")] == []


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


def test_what_a_probe_found_before_it_failed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(patient: server.Patient) -> Iterator[Finding]:
        yield Finding("found", Severity.NOTE, "", "", "")
        patient.db.fetch("read_upkeep", {"tables": 1})

    monkeypatch.setattr(server, "OF_THE_TABLES", {"fails": fails})
    found = [each["id"] for each in examined()[1]]
    assert [found.count(each) for each in ("found", NOT_READ)] == [1, 1]


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
