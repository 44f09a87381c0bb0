"""``pgjobs names`` and the check W006: whether the code of a deploy knows the names that unfinished jobs need."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core import checks as django_checks
from django.db import connection
from django.test import override_settings

from django_pgjobs import Batch, JobContext, Next, job
from django_pgjobs.checks import check_names
from django_pgjobs.definition.registry import registry
from django_pgjobs.models import Job
from django_pgjobs.testing import isolated_registry, run_jobs
from tests.plugins.shell import pgjobs

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_registry", "quiet")]


def shown(status: int) -> dict[tuple[str, str], tuple[int, bool]]:
    exited, out, _ = pgjobs("names", "--format", "json")
    assert exited == status
    return {(row["name"], row["use"]): (row["rows"], row["known"]) for row in json.loads(out)}


def warned(databases: list[str] | None = None) -> list[str]:
    found = django_checks.run_checks(tags=["database"], databases=["default"] if databases is None else databases)
    assert all(message.hint for message in found)
    return [str(message.id) for message in found]


def old() -> None: ...


def paid(order: int) -> int:
    return order


def unfinished() -> None:
    """Leave one of each use behind, and a job that has ended."""

    @job(name="names.refund", takes_context=True)
    def refund(context: JobContext, order: int) -> None: ...

    @job(name="names.order", takes_context=True)
    def order(context: JobContext) -> None:
        context.step.using(undo=refund)(paid, 7)
        context.step.using(undo=refund)(paid, 8)
        context.step(paid, 9)
        context.sleep(3600)

    @job(name="names.ended", takes_context=True)
    def ended(context: JobContext) -> None:
        context.step.using(undo=refund)(paid, 7)

    ended.register()
    second = job(name="names.second")(old)

    @job(name="names.first")
    def first() -> Next:
        return Next(second.bind(), delay=3600)

    order.register()
    first.register()
    run_jobs()
    with Batch("two") as batch:
        batch.add_many([second.using(delay=3600).bind(), second.using(delay=3600).bind()])
    second.using(delay=3600).register()


def test_the_names_of_all_unfinished_jobs_are_shown() -> None:
    unfinished()
    assert shown(0) == {
        ("names.order", "job"): (1, True),
        ("names.refund", "undo"): (2, True),
        ("names.second", "job"): (1, True),
        ("names.second", "member"): (2, True),
        ("names.second", "step"): (1, True),
        ("pgjobs.batch", "job"): (1, True),
    }
    assert warned() == []


def test_names_that_the_code_has_lost_are_found_and_an_alias_is_known() -> None:
    unfinished()
    with isolated_registry():
        job(name="names.new", aliases=["names.second"])(old)
        found = shown(1)
        assert {name for (name, _), (_, known) in found.items() if not known} == {"names.order", "names.refund"}
        exited, out, _ = pgjobs("names")
        lines = [line.split() for line in out.splitlines()]
        assert (exited, lines[0]) == (1, ["NAME", "USE", "ROWS", "KNOWN"])
        assert ["names.refund", "undo", "2", "NO"] in lines
        assert ["names.second", "member", "2", "yes"] in lines


def test_a_compensation_that_somebody_retries_needs_its_own_name_alone() -> None:
    @job(name="names.refund", takes_context=True, max_attempts=1)
    def refund(context: JobContext, order: int) -> None:
        raise ValueError("no")

    @job(name="names.order", takes_context=True, max_attempts=1)
    def order(context: JobContext) -> None:
        context.step.using(undo=refund)(paid, 7)
        raise ValueError("no")

    order.register()
    run_jobs()
    assert Job.objects.filter(name="names.refund").retry().changed == 1
    assert shown(0) == {("names.refund", "member"): (1, True), ("pgjobs.batch", "job"): (1, True)}


def test_what_a_running_undo_still_has_to_call_is_needed() -> None:
    """The job itself has ended; what undoes it has not."""

    @job(name="names.refund", takes_context=True)
    def refund(context: JobContext, order: int) -> None: ...

    @job(name="names.order", takes_context=True, max_attempts=1)
    def order(context: JobContext) -> None:
        context.step.using(undo=refund)(paid, 7)
        raise ValueError("no")

    registered = order.register()
    run_jobs(limit=1)
    registered.refresh_from_db()
    while registered.outcome is None:  # its end is written by another claim
        run_jobs(limit=1)
        registered.refresh_from_db()
    assert shown(0) == {("names.refund", "undo"): (1, True), ("pgjobs.undo", "job"): (1, True)}
    run_jobs()
    assert shown(0) == {}


def test_the_check_warns_where_somebody_asks_for_the_database() -> None:
    unfinished()
    with isolated_registry():
        [warning] = list(check_names(databases=["default"]))
        assert warning.id == "pgjobs.W006"
        assert "names.order (job, 1), names.refund (undo, 2), names.second (job, 1)" in warning.msg
        assert warned() == ["pgjobs.W006"]
        assert warned([]) == []
        assert django_checks.run_checks(tags=["pgjobs"]) == []


def test_the_check_warns_of_tables_that_citus_has_distributed() -> None:
    """Not of those that it knows and has left where they are."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SET LOCAL allow_system_table_mods = on;"
            'CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass, partmethod "char", repmodel "char",'
            " colocationid integer);"
            "INSERT INTO pg_dist_partition VALUES ('pgjobs_job'::regclass, 'n', 's', 0)"
        )
        assert warned() == []
        cursor.execute("INSERT INTO pg_dist_partition VALUES ('auth_user'::regclass, 'h', 's', 1)")
        assert warned() == []
        cursor.execute("INSERT INTO pg_dist_partition VALUES ('pgjobs_attempt'::regclass, 'n', 's', 4)")
        assert warned() == ["pgjobs.W017"]


def test_the_check_is_silent_before_the_tables_are_made() -> None:
    """``migrate`` runs it on an empty database."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgjobs_memo RENAME TO gone")
    assert warned() == []


def test_the_check_says_if_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgjobs.checks.names.STATEMENT_TIMEOUT", "1ms")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION pg_temp.slow() RETURNS boolean LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep(5); RETURN true; END'"
        )
        cursor.execute("ALTER TABLE pgjobs_job RENAME TO slow_job")
        cursor.execute("CREATE VIEW pgjobs_job AS SELECT * FROM slow_job WHERE pg_temp.slow()")
        cursor.execute("INSERT INTO slow_job (name, payload) VALUES ('names.x', '{}')")
    assert warned() == ["pgjobs.W007"]


class NotHere:
    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "pgjobs" else None


@override_settings(DATABASE_ROUTERS=[f"{__name__}.NotHere"])
def test_the_check_reads_only_databases_that_have_jobs(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert warned() == []


def test_each_unfinished_job_is_counted_once_whatever_holds_it() -> None:
    unfinished()
    held = Job.objects.filter(name="names.second", flow=0)
    held.update(hold="parked")
    assert shown(0)["names.second", "job"] == (1, True)
    assert registry.find("names.second") is not None
