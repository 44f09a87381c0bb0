"""What people write who come from other job queues, or by mistake: one sentence that says what to write instead."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.core.exceptions import SynchronousOnlyOperation
from django.db import ProgrammingError, connection, transaction
from django.test import override_settings
from psycopg.errors import UndefinedColumn, UndefinedTable

from django_pgjobs import job as declare
from django_pgjobs import register_many
from django_pgjobs.definition import queue_names
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Attempt, Job
from django_pgjobs.store import finalising, registering
from tests import jobs
from tests.plugins.fix_db import AUTHOR, FAILURE, RawDatabase, claim, job, register

pytestmark = pytest.mark.usefixtures("committed")

succeeds: Any = jobs.succeeds


@pytest.mark.parametrize("given", [jobs.succeeds, (1,), None, "x"], ids=["definition", "tuple", "none", "text"])
def test_register_many_names_what_is_no_call(given: Any) -> None:
    with transaction.atomic():
        with pytest.raises(InvalidJob, match=r"takes calls, made by a definition's bind\(…\), not "):
            register_many([jobs.succeeds.bind(), given])
        assert Job.objects.count() == 0


@pytest.mark.parametrize(
    ("word", "cure"),
    [
        ("delay", r"has no delay\(\): write register\(…\), or using\(delay=…\)"),
        ("enqueue", r"has no enqueue\(\): write register\(…\)"),
        ("defer", r"has no defer\(\): write register\(…\)"),
        ("apply_async", r"has no apply_async\(\): write using\(…\).register\(…\)"),
        ("nonsense", "'JobDefinition' object has no attribute 'nonsense'"),
    ],
)
def test_the_verbs_of_other_queues_name_ours(word: str, cure: str) -> None:
    with pytest.raises(AttributeError, match=cure):
        getattr(succeeds, word)
    assert not hasattr(succeeds, word)
    assert not hasattr(type(succeeds), word)
    assert word not in dir(succeeds), "or a traceback would suggest it for what resembles it"
    assert not hasattr(Mock(spec=succeeds), word)


def test_a_definition_is_still_copied_and_pickled_by_its_name() -> None:
    assert copy.deepcopy(jobs.succeeds) is copy.copy(jobs.succeeds) is jobs.succeeds
    assert pickle.loads(pickle.dumps(jobs.succeeds)) is jobs.succeeds


@pytest.mark.parametrize("timeout", ["x", True, object()], ids=["text", "flag", "object"])
def test_waiting_for_no_time_at_all_is_refused(timeout: Any) -> None:
    registered = jobs.succeeds.register()
    with transaction.atomic():
        with pytest.raises(InvalidJob, match="timeout must be seconds, a timedelta, or None to wait without limit"):
            registered.wait(timeout)
        assert Job.objects.count() == 1


def test_registering_in_asynchronous_code_names_the_twin() -> None:
    async def wrong() -> None:
        for ask in (jobs.succeeds.register, jobs.succeeds.using(delay=1).register, jobs.succeeds.bind().register):
            with pytest.raises(SynchronousOnlyOperation, match="await aregister"):
                ask()
        with pytest.raises(SynchronousOnlyOperation, match="await aregister_many"):
            register_many([jobs.succeeds.bind()])
        await jobs.succeeds.aregister()

    async_to_sync(wrong)()
    assert Job.objects.count() == 1


def test_a_job_is_not_deleted_whatever_its_state(raw: RawDatabase) -> None:
    """A worker may be running it: its end would be *lost*, and its key free while it works."""
    [one] = register()
    claim(raw)
    with transaction.atomic():
        with pytest.raises(TypeError, match=r"A job is not deleted.*cancel\(\) or abandon\(\).*pgjobs prune"):
            job(one).delete()
        with pytest.raises(TypeError, match="A job is not deleted"):
            Job.objects.filter(pk=one).delete()
        assert not hasattr(Job.objects, "delete")
        assert job(one).state == "running"


def test_what_points_to_a_job_goes_without_it(raw: RawDatabase) -> None:
    """Its history may be deleted, and a test's own clean-up goes below the model."""
    [one] = register()
    failed = claim(raw)
    raw_end = failed.ends(cause="failed", seconds=1.0, outcome="abandoned", failure=FAILURE)
    finalising.finalise_end(raw, raw_end, AUTHOR)
    assert Attempt.objects.filter(job_id=one).delete()[0] == 1
    assert Job._base_manager.filter(pk=one).delete()[0] == 1


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The warnings of a process that has checked no queue name yet and knows one job, in ``reports``."""
    monkeypatch.setattr(queue_names, "_checked", set())
    caplog.set_level(logging.WARNING, "django_pgjobs")
    return lambda: [record.getMessage() for record in caplog.records]


def report_of() -> None: ...


@pytest.fixture
def report() -> Iterator[Any]:
    """A job in the queue ``reports``; no other job is known."""
    with registry.isolated():
        yield declare(name="report", queue="reports")(report_of)


def test_a_queue_that_is_probably_misspelt_is_told_once(warnings: Callable[[], list[str]], report: Any) -> None:
    with transaction.atomic():
        for _ in range(3):
            report.using(queue="reprots").register()
            report.bind().using(queue="reprots").register()
            report.using(delay=1).using(queue="reprots").register()
    [told] = warnings()
    assert "queue=reprots name=report close=reports" in told
    assert "PGJOBS['QUEUES']" in told
    assert Job.objects.filter(queue="reprots").count() == 9


@pytest.mark.parametrize("queue", ["reports", "mail", "reports2", "billing", "reports-by-night"])
def test_a_queue_that_is_declared_or_unlike_any_other_is_nobodys_business(
    warnings: Callable[[], list[str]], report: Any, queue: str
) -> None:
    report.using(queue=queue).register()
    assert warnings() == []


def test_moving_jobs_to_a_queue_that_is_probably_misspelt_is_told_once(
    warnings: Callable[[], list[str]], report: Any
) -> None:
    job = report.register()
    for _ in range(2):
        assert job.reschedule(queue="reprots").changed == 1
    [told] = warnings()
    assert "queue=reprots call=reschedule close=reports" in told
    assert Job.objects.get().queue == "reprots"
    Job.objects.all().reschedule(queue="reports")
    Job.objects.all().reschedule(priority=3)
    assert len(warnings()) == 1


@override_settings(PGJOBS={"QUEUE_LIMITS": {"slow": {"concurrency": 1}}})
def test_a_setting_that_names_a_queue_knows_it(warnings: Callable[[], list[str]], report: Any) -> None:
    report.using(queue="slow")
    assert warnings() == []
    report.using(queue="slwo")
    assert "close=slow" in warnings()[0]


@override_settings(PGJOBS={"QUEUES": ["reports", "reprots"]})
def test_where_the_settings_say_which_queues_there_are_nothing_is_guessed(
    warnings: Callable[[], list[str]], report: Any
) -> None:
    report.using(queue="reprots")
    with pytest.raises(InvalidJob, match=r"is not in PGJOBS\['QUEUES'\] \(did you mean"):
        report.using(queue="reporst")
    assert warnings() == []


def test_before_every_module_of_jobs_is_imported_nothing_is_guessed(
    warnings: Callable[[], list[str]], report: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apps, "ready", False)
    report.using(queue="reprots")
    assert warnings() == []
    monkeypatch.setattr(apps, "ready", True)
    report.using(queue="reprots")
    assert len(warnings()) == 1


def test_names_made_up_without_end_are_not_remembered_without_end(
    warnings: Callable[[], list[str]], report: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_names, "MOST", 5)
    for number in range(20):
        report.using(queue=f"customer-{number}")
    assert len(queue_names._checked) == 5
    assert warnings() == []


@pytest.mark.parametrize(
    ("change", "back", "cause"),
    [
        ("RENAME TO pgjobs_elsewhere", "ALTER TABLE pgjobs_elsewhere RENAME TO pgjobs_job", UndefinedTable),
        ("RENAME COLUMN payload TO load", "ALTER TABLE pgjobs_job RENAME COLUMN load TO payload", UndefinedColumn),
    ],
    ids=["table", "column"],
)
def test_a_missing_migration_is_named_by_registering(change: str, back: str, cause: type[Exception]) -> None:
    def alter(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    alter(f"ALTER TABLE pgjobs_job {change}")
    try:
        for ask in (
            jobs.succeeds.register,
            jobs.succeeds.using(tags=["a"]).register,
            lambda: jobs.succeeds.register_many([()]),
            lambda: jobs.succeeds.register_many([()] * registering.COPY_FROM_JOBS),
        ):
            with pytest.raises(ProgrammingError, match=r"run manage\.py migrate .*pgjobs_job") as raised:
                ask()
            assert isinstance(raised.value.__cause__, cause)
            assert "\n" not in str(raised.value)
    finally:
        alter(back)
    assert jobs.succeeds.register().state == "ready"


def test_a_table_that_a_trigger_of_the_project_misses_keeps_its_own_words() -> None:
    with connection.cursor() as cursor:
        cursor.execute("""
            CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO shop_audit VALUES (new.id); RETURN new; END $$;
            CREATE TRIGGER audit AFTER INSERT ON pgjobs_job FOR EACH ROW EXECUTE FUNCTION audit();
        """)
    try:
        with pytest.raises(ProgrammingError, match=r'"shop_audit" does not exist') as raised:
            jobs.succeeds.register()
        assert "migrate" not in str(raised.value)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION audit CASCADE")
