"""The migrations: complete, reversible, harmless elsewhere, and to the letter the schema that was measured."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection, connections, models
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.test import override_settings

from django_pgjobs.fields import ComputedStateField
from django_pgjobs.models import Job
from django_pgjobs.models.operations import CreateRowFunction, SetStorageParameters
from django_pgjobs.store import keeping
from django_pgjobs.store.database import on
from tests.migrations.schema import FILE, read_schema
from tests.plugins.fix_db import TABLES, RawDatabase, claim, register

FIRST = "0001_initial"


class RefuseJobs:
    """A router that keeps our tables out of every database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "pgjobs" else None


def ours(alias: str = "default") -> set[str]:
    with connections[alias].cursor() as cursor:
        return {name for name in connections[alias].introspection.table_names(cursor) if name.startswith("pgjobs_")}


def migrate(*arguments: str, **options: Any) -> None:
    call_command("migrate", *arguments, verbosity=0, interactive=False, **options)


def options_of(relation: str) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE oid = %s::regclass", [relation])
        found = cursor.fetchone()[0] or []
    return dict(option.split("=", 1) for option in found)


@pytest.fixture
def migrated(committed: None) -> Iterator[None]:
    """Whatever a test does, the latest schema is there afterwards."""
    yield
    if ours() != set(TABLES):
        migrate("pgjobs", "zero", fake=not ours())
    migrate("pgjobs")


def test_the_models_are_migrated_completely(committed: None) -> None:
    out = StringIO()
    call_command("makemigrations", "pgjobs", check=True, dry_run=True, stdout=out)
    assert "No changes detected" in out.getvalue()


def test_the_migrations_go_forwards_backwards_and_forwards(migrated: None) -> None:
    before = {name: options_of(name) for name in ours()}
    migrate("pgjobs", "zero")
    assert ours() == set()
    migrate("pgjobs")
    assert ours() == set(TABLES)
    assert {name: options_of(name) for name in ours()} == before
    [one] = register()
    assert claim(on("default")).ids == [one]


def test_a_database_without_tables_is_told_from_ours(migrated: None) -> None:
    """A worker that is started before its migration waits for it, instead of failing at every claim."""
    assert keeping.read_identity(on("default")).table is not None
    migrate("pgjobs", "zero")
    assert keeping.read_identity(on("default")).table is None


def test_the_schema_is_the_written_one(committed: None) -> None:
    """Order of columns and storage parameters included, of which the models say nothing and on which speed depends."""
    with connection.cursor() as cursor:
        assert read_schema(cursor) == FILE.read_text(encoding="utf-8")


def test_the_storage_parameters_are_set(committed: None) -> None:
    """A page needs room for the second version of each row, or no claim is heap-only."""
    job = options_of("pgjobs_job")
    assert job["fillfactor"] == "45"
    assert job["autovacuum_vacuum_cost_delay"] == "0"
    assert options_of("pgjobs_job_claim_order") == {"deduplicate_items": "off"}
    assert options_of("pgjobs_claim")["autovacuum_vacuum_threshold"] == "1000"


def test_another_kind_of_database_migrates_and_has_no_table_of_ours(committed: None) -> None:
    migrate(database="other")
    assert "auth_user" in connections["other"].introspection.table_names()
    assert ours("other") == set()
    recorded = MigrationExecutor(connections["other"]).loader.applied_migrations
    assert recorded is not None
    assert ("pgjobs", FIRST) in recorded
    migrate("pgjobs", "zero", database="other")
    migrate("pgjobs", database="other")
    assert ours("other") == set()


def test_a_router_that_refuses_gets_no_table(migrated: None) -> None:
    migrate("pgjobs", "zero")
    with override_settings(DATABASE_ROUTERS=[RefuseJobs()]):
        migrate("pgjobs")
        assert ours() == set()
        migrate("pgjobs", "zero")


def operation() -> SetStorageParameters:
    return SetStorageParameters(
        "Claim", {"fillfactor": 70}, index="pgjobs_claim_check", index_parameters={"fillfactor": 60}
    )


def run(alias: str, *, backwards: bool = False) -> None:
    state = ProjectState.from_apps(apps)
    with connections[alias].schema_editor() as editor:
        work = operation().database_backwards if backwards else operation().database_forwards
        work("pgjobs", editor, state, state)


def test_storage_parameters_are_set_and_taken_back(migrated: None) -> None:
    before = options_of("pgjobs_claim"), options_of("pgjobs_claim_check")
    run("default")
    assert options_of("pgjobs_claim")["fillfactor"] == "70"
    assert options_of("pgjobs_claim_check") == {"fillfactor": "60"}
    run("default", backwards=True)
    assert (options_of("pgjobs_claim"), options_of("pgjobs_claim_check")) == before


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_storage_parameters_do_nothing_where_a_router_refuses(migrated: None, backwards: bool) -> None:
    before = options_of("pgjobs_claim")
    with override_settings(DATABASE_ROUTERS=[RefuseJobs()]):
        run("default", backwards=backwards)
    assert options_of("pgjobs_claim") == before


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_storage_parameters_do_nothing_on_another_kind_of_database(migrated: None, backwards: bool) -> None:
    run("other", backwards=backwards)


def test_each_schema_of_a_search_path_has_its_own_function_of_the_state(raw: RawDatabase) -> None:
    """As tenants have it: the tables of each are found by the path, and so is the function."""
    raw.query("CREATE SCHEMA tenant")
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET search_path TO tenant")
        migrate()
        register()
        assert Job.objects.get().state == "ready"
        with connection.cursor() as cursor:
            cursor.execute("SELECT j.state FROM pgjobs_job AS j")
            assert cursor.fetchall() == [("ready",)]
            cursor.execute("SET search_path TO public")
        assert Job.objects.count() == 0
        asked = "SELECT pronamespace::regnamespace::text FROM pg_proc WHERE proname = 'state' ORDER BY 1"
        assert raw.query(asked) == [("public",), ("tenant",)]
    finally:
        connection.close()
        raw.query("SET client_min_messages TO error")
        raw.query("DROP SCHEMA tenant CASCADE")


def test_a_function_of_that_name_for_other_rows_is_not_in_the_way(migrated: None, raw: RawDatabase) -> None:
    migrate("pgjobs", "zero")
    raw.query("CREATE FUNCTION state(of_any anyelement) RETURNS text LANGUAGE sql AS $$ SELECT 'another' $$")
    try:
        migrate("pgjobs")
        register()
        assert raw.query("SELECT j.state FROM pgjobs_job AS j") == [("ready",)]
        migrate("pgjobs", "zero")
        assert raw.value("SELECT state(1)") == "another"
    finally:
        raw.query("DROP FUNCTION state(anyelement)")


def test_the_field_of_the_state_makes_no_column(raw: RawDatabase) -> None:
    """A schema editor that makes the table from the model, as without migrations, leaves it out."""
    with connection.schema_editor(collect_sql=True, atomic=False) as editor:
        editor.create_model(Job)
    [create] = [statement for statement in editor.collected_sql if statement.startswith("CREATE TABLE")]
    assert '"outcome" text' in create
    assert '"state"' not in create
    cloned = Job._meta.get_field("state").clone()
    assert isinstance(cloned, ComputedStateField)
    assert cloned.deconstruct()[1:] == Job._meta.get_field("state").deconstruct()[1:]
    assert ProjectState.from_apps(apps).apps.get_model("pgjobs", "Job")._meta.get_field("state").column == "state"
    assert isinstance(cloned, models.GeneratedField)


def test_inspection_lists_no_state(raw: RawDatabase, capsys: Any) -> None:
    call_command("inspectdb", "pgjobs_job")
    shown = capsys.readouterr().out
    assert "outcome = " in shown
    assert "state = " not in shown


FUNCTION = CreateRowFunction("Job", "word", "text", "job.hold")


@pytest.mark.parametrize(
    ("operation", "described", "fragment"),
    [
        (operation(), "Set storage parameters of Claim", "claim_storage"),
        (FUNCTION, "Create function word of Job", "job_word"),
    ],
)
def test_an_operation_describes_itself_and_survives_the_writer(
    operation: Operation, described: str, fragment: str
) -> None:
    assert operation.describe() == described
    assert operation.migration_name_fragment == fragment
    assert operation.reversible
    name, arguments, options = operation.deconstruct()
    assert name == type(operation).__name__
    assert type(operation)(*arguments, **options).__dict__ == operation.__dict__


@pytest.mark.parametrize("alias", ["default", "other"])
def test_a_function_is_made_only_where_the_table_is(migrated: None, alias: str) -> None:
    """Not where a router refuses, and not on another kind of database."""
    state = ProjectState.from_apps(apps)
    with override_settings(DATABASE_ROUTERS=[RefuseJobs()]), connections[alias].schema_editor() as editor:
        FUNCTION.database_forwards("pgjobs", editor, state, state)
        FUNCTION.database_backwards("pgjobs", editor, state, state)
    if alias == "default":
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regprocedure('word(pgjobs_job)')")
            assert cursor.fetchone() == (None,)
