"""Migration 0016: the stored column of a job's state goes, whoever uses it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import InternalError, connection, models
from django.db.migrations.state import ProjectState

from django_pgjobs.fields import ComputedStateField
from django_pgjobs.models import Job
from django_pgjobs.operations import ComputeColumn
from tests.db.test_state_lookups import make_one_of_each as make_rows
from tests.migrations.test_migrations import migrate, migrated, relfilenode  # noqa: F401 (a fixture)
from tests.plugins.fix_db import RawDatabase, register

pytestmark = pytest.mark.usefixtures("migrated")

BEFORE, AFTER = "0015_index_of_fires", "0016_state_without_a_column"
OLDER_CODE = 'SELECT "pgjobs_job"."id", "pgjobs_job"."state" FROM "pgjobs_job" WHERE NOT ("pgjobs_job"."state" = %s)'
COLUMN = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'pgjobs_job'::regclass AND attname = 'state'"


@contextmanager
def newer(raw: RawDatabase) -> Iterator[None]:
    """Have what this code's statements name and later migrations bring, where these have not run."""
    there = raw.value(COLUMN.replace("'state'", "'flow'"))
    if not there:
        raw.query(
            "ALTER TABLE pgjobs_job ADD flow smallint NOT NULL DEFAULT 0, ADD parent_id bigint, ADD target_id bigint,"
            " ADD error_class text"
        )
        raw.query("ALTER TABLE pgjobs_heartbeat ADD suspects jsonb, ADD suspects_since timestamptz")
        raw.query("ALTER TABLE pgjobs_action_part ADD former jsonb")
        raw.query("CREATE TABLE pgjobs_gate (job_id bigint, eager boolean)")
        raw.query(
            "CREATE TABLE pgjobs_minute (worker uuid, minute timestamptz, queue text, name text, outcome text,"
            " release text, jobs bigint, run_seconds float8, wait_seconds float8, run_histogram bigint[],"
            " wait_histogram bigint[], UNIQUE (worker, minute, queue, name, outcome, release))"
        )
        raw.query("CREATE TABLE pgjobs_memo (job_id bigint, kind text, result jsonb, finished_at timestamptz)")
    try:
        yield
    finally:
        if not there:
            raw.query("ALTER TABLE pgjobs_job DROP flow, DROP parent_id, DROP target_id, DROP error_class")
            raw.query("ALTER TABLE pgjobs_heartbeat DROP suspects, DROP suspects_since")
            raw.query("ALTER TABLE pgjobs_action_part DROP former")
            raw.query("DROP TABLE pgjobs_gate, pgjobs_memo, pgjobs_minute")


def make_one_of_each(raw: RawDatabase) -> None:
    with newer(raw):
        make_rows(raw)


def test_no_state_changes_and_no_row_is_written(raw: RawDatabase) -> None:
    migrate("pgjobs", BEFORE)
    make_one_of_each(raw)
    stored, file = dict(raw.query("SELECT id, state FROM pgjobs_job")), relfilenode()
    migrate("pgjobs", AFTER)
    assert dict(raw.query("SELECT j.id, j.state FROM pgjobs_job AS j")) == stored
    assert dict(Job.objects.values_list("pk", "state")) == stored
    assert relfilenode() == file
    assert raw.value(COLUMN) == 0


def test_older_code_goes_on_with_the_statements_that_it_has_prepared(
    raw: RawDatabase, db_connection: Callable[..., RawDatabase]
) -> None:
    """A function of another type would end them: ``cached plan must not change result type``."""
    migrate("pgjobs", BEFORE)
    make_one_of_each(raw)
    older = db_connection()

    def read() -> list[tuple[Any, ...]]:
        return sorted(older.raw.execute(OLDER_CODE, ["limited"], prepare=True).fetchall())

    before = read()
    migrate("pgjobs", AFTER)
    assert read() == before
    raw.query("ALTER FUNCTION state(pgjobs_job) RENAME TO kept")
    raw.query("CREATE FUNCTION state(job pgjobs_job) RETURNS text LANGUAGE sql RETURN job.kept")
    try:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="cached plan must not change result type"):
            read()
    finally:
        raw.query("DROP FUNCTION state(pgjobs_job)")
        raw.query("ALTER FUNCTION kept(pgjobs_job) RENAME TO state")


def test_this_code_works_on_the_schema_before(raw: RawDatabase) -> None:
    """Whoever migrates late."""
    migrate("pgjobs", BEFORE)
    make_one_of_each(raw)
    stored = dict(raw.query("SELECT id, state FROM pgjobs_job"))
    assert dict(Job.objects.values_list("pk", "state")) == stored
    with newer(raw):
        assert Job.objects.filter(state="succeeded").cancel().skipped == {"succeeded": 1}
        assert Job.objects.filter(state="parked").only("pk").get().why().code == "parked"


def test_a_view_on_the_column_stops_the_migration_and_is_not_dropped(raw: RawDatabase) -> None:
    """Django's own removal of a field says CASCADE: a report would vanish without a word."""
    migrate("pgjobs", BEFORE)
    raw.query("CREATE VIEW report AS SELECT id, state FROM pgjobs_job")
    try:
        with pytest.raises(InternalError, match="view report depends on column state"):
            migrate("pgjobs", AFTER)
        assert raw.value("SELECT count(*) FROM report") == 0
        assert raw.value(COLUMN) == 1
    finally:
        raw.query("DROP VIEW report")
    migrate("pgjobs", AFTER)
    raw.query("CREATE VIEW report AS SELECT j.id, j.state FROM pgjobs_job AS j")
    raw.query("DROP VIEW report")


def test_an_index_on_the_column_goes_with_it(raw: RawDatabase) -> None:
    """PostgreSQL counts it as a part of the column; the upgrade notes say so."""
    migrate("pgjobs", BEFORE)
    raw.query("CREATE INDEX of_a_report ON pgjobs_job (state)")
    raw.query("CREATE INDEX of_another ON pgjobs_job (name) WHERE state = 'parked'")
    migrate("pgjobs", AFTER)
    assert raw.query("SELECT to_regclass('of_a_report'), to_regclass('of_another')") == [(None, None)]


def test_backwards_the_column_is_there_again_with_the_same_states(raw: RawDatabase) -> None:
    make_one_of_each(raw)
    expected = dict(Job.objects.values_list("pk", "state"))
    migrate("pgjobs", BEFORE)
    assert dict(raw.query("SELECT id, state FROM pgjobs_job")) == expected
    assert raw.query("SELECT to_regprocedure('state(pgjobs_job)')") == [(None,)]
    [one] = register()
    assert raw.value("SELECT state FROM pgjobs_job WHERE id = %s", [one]) == "ready"


def test_a_function_of_that_name_for_other_rows_is_not_in_the_way(raw: RawDatabase) -> None:
    migrate("pgjobs", BEFORE)
    raw.query("CREATE FUNCTION state(of_any anyelement) RETURNS text LANGUAGE sql AS $$ SELECT 'another' $$")
    try:
        migrate("pgjobs", AFTER)
        register()
        assert raw.query("SELECT j.state FROM pgjobs_job AS j") == [("ready",)]
        migrate("pgjobs", BEFORE)
        assert raw.value("SELECT state(1)") == "another"
    finally:
        raw.query("DROP FUNCTION state(anyelement)")


def test_each_schema_of_a_search_path_has_its_own(raw: RawDatabase) -> None:
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


def test_the_operation_describes_itself_and_survives_the_writer() -> None:
    field = ComputedStateField(choices=Job.State.choices)
    operation = ComputeColumn("Job", "state", field, "job.hold")
    name, arguments, options = operation.deconstruct()
    assert name == "ComputeColumn"
    assert ComputeColumn(*arguments, **options).__dict__.keys() == operation.__dict__.keys()
    assert ComputeColumn(*arguments, **options).function == "job.hold"
    assert operation.describe() == "Compute state of Job by a function instead of storing it"
    assert operation.migration_name_fragment == "compute_job_state"


def test_the_field_makes_no_column(raw: RawDatabase) -> None:
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
