"""The migrations: complete, reversible, harmless elsewhere, and never a rewrite of the job table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import IntegrityError, connection, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.test import override_settings

from django_pgjobs.models import Job
from django_pgjobs.operations import SetStorageParameters
from django_pgjobs.store import statements as store
from tests.plugins.fix_db import TABLES, Background, RawDatabase, claim, register, wait_until

FIRST = "0001_initial"
COLUMNS = "0003_schedules_limits_keys"
PLAIN = "INSERT INTO pgjobs_job (name, payload) VALUES ('shop.jobs.charge', '[]')"
WITH_KEY = (
    "INSERT INTO pgjobs_job (name, payload, unique_key) VALUES ('shop.jobs.charge', '[]', 'order:1') RETURNING id"
)


class RefuseJobs:
    """A router that keeps our tables out of every database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "pgjobs" else None


def ours(alias: str = "default") -> set[str]:
    with connections[alias].cursor() as cursor:
        return {name for name in connections[alias].introspection.table_names(cursor) if name.startswith("pgjobs_")}


def migrate(*arguments: str, **options: Any) -> None:
    call_command("migrate", *arguments, verbosity=0, interactive=False, **options)


def relfilenode() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_relation_filenode('pgjobs_job')")
        return int(cursor.fetchone()[0])


def options_of(relation: str) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE oid = %s::regclass", [relation])
        found = cursor.fetchone()[0] or []
    return dict(option.split("=", 1) for option in found)


def later() -> list[str]:
    """Names of the migrations after the first, in order."""
    names = sorted(name for label, name in MigrationLoader(None).graph.nodes if label == "pgjobs")
    assert names[0] == FIRST
    return names[1:]


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
    assert claim(store.on("default")).ids == [one]


def test_every_step_back_and_forth_works_on_a_filled_table(migrated: None) -> None:
    """A migration that cannot be taken back keeps somebody on a release that does not work for him."""
    names = [FIRST, *later()]
    register(10)
    claim(store.on("default"), 5)
    for name in [*reversed(names), *names]:
        migrate("pgjobs", name)
    assert Job.objects.count() == 10


def test_older_tables_are_told_from_ours(migrated: None) -> None:
    """A worker that is started before its migration waits for the last one, instead of failing at every claim."""
    assert store.read_identity(store.on("default")).table is not None
    for name in ("0005_actions", "0004_indexes_of_keys_and_limits", COLUMNS, "0002_leader_term"):
        migrate("pgjobs", name)
        assert store.read_identity(store.on("default")).table is None
    # What registers goes on with plain jobs meanwhile.
    assert len(register()) == 1


def test_no_later_migration_rewrites_the_job_table(migrated: None) -> None:
    """A rewrite holds ACCESS EXCLUSIVE: 37 s for 8.6 million jobs. New states are data in ``hold``."""
    migrate("pgjobs", FIRST)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO pgjobs_job (name, payload) SELECT 'a', '{}' FROM generate_series(1, 10)")
    before = relfilenode()
    for name in later():
        migrate("pgjobs", name)
        assert relfilenode() == before, name


def test_who_reads_and_writes_jobs_does_not_wait_while_an_index_is_built(
    migrated: None, db_connection: Callable[..., RawDatabase], background: Background
) -> None:
    """Each build is held up by a transaction that is open; nobody else is held up by the build."""
    writer, other, watch = db_connection(autocommit=False), db_connection(), db_connection()
    other.query("SET lock_timeout = '200ms'")
    migrate("pgjobs", COLUMNS)
    built = []

    def work_meanwhile(builder: int) -> None:
        asked = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        try:
            wait_until(lambda: watch.value(asked, [builder]), 10, "the build waits for the open transaction")
            other.query(PLAIN)
            assert other.value("SELECT count(*) FROM pgjobs_job") >= 1
        finally:
            writer.rollback()

    def held_up(execute: Callable[..., Any], text: Any, params: Any, many: bool, context: Any) -> Any:
        building = str(text).startswith("CREATE") and "CONCURRENTLY" in str(text)
        if not building or 'ON "pgjobs_job"' not in str(text):
            return execute(text, params, many, context)
        writer.query(PLAIN)
        working = background(work_meanwhile, context["connection"].connection.info.backend_pid)
        try:
            return execute(text, params, many, context)
        finally:
            working.result()
            built.append(text)

    with connection.execute_wrapper(held_up):
        migrate("pgjobs")
    assert len(built) == 13


def test_a_build_that_failed_is_made_good_by_the_next(migrated: None, raw: RawDatabase) -> None:
    """What is left of it is an index that nobody may use, and that has the name."""
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('pgjobs_job_unique_key')"
    migrate("pgjobs", COLUMNS)
    one, other = raw.value(WITH_KEY), raw.value(WITH_KEY)
    with pytest.raises(IntegrityError):
        migrate("pgjobs")
    assert raw.query(valid) == [(False,)]
    assert store.read_identity(store.on("default")).table is None
    raw.query("DELETE FROM pgjobs_job WHERE id = %s", [other])
    migrate("pgjobs")
    assert raw.query(valid) == [(True,)]
    with pytest.raises(psycopg.errors.UniqueViolation):
        raw.query(WITH_KEY)
    assert Job.objects.get().pk == one


def test_the_storage_parameters_are_set(committed: None) -> None:
    """A page needs room for the second version of each row, or no claim is heap-only."""
    job = options_of("pgjobs_job")
    assert job["fillfactor"] == "45"
    assert job["autovacuum_vacuum_cost_delay"] == "0"
    assert options_of("pgjobs_job_claim_order") == {"deduplicate_items": "off"}
    assert options_of("pgjobs_claim")["autovacuum_vacuum_threshold"] == "1000"


def test_backwards_a_page_has_as_much_room_as_before(migrated: None) -> None:
    """Not the default of 100, which no claim would survive heap-only."""
    migrate("pgjobs", "0002")
    assert options_of("pgjobs_job")["fillfactor"] == "50"
    migrate("pgjobs")
    assert options_of("pgjobs_job")["fillfactor"] == "45"


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


def test_the_operation_describes_itself_and_survives_the_writer() -> None:
    assert operation().describe() == "Set storage parameters of Claim"
    assert operation().migration_name_fragment == "claim_storage"
    assert operation().reversible
    name, arguments, options = operation().deconstruct()
    assert SetStorageParameters(*arguments, **options).__dict__ == operation().__dict__
    assert name == "SetStorageParameters"
