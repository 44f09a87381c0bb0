"""Two aliases of ours in two databases. Paper §3.4, §8.6."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test import override_settings

from django_pgjobs.models import Job
from django_pgjobs.tasks import enqueue_many, families, job_of, result_of
from django_pgjobs.tasks.families import TaskResultDoesNotExist
from django_pgjobs.testing import run_jobs
from tests.db.tasks_ground import BACKEND, TASKS, cast
from tests.db.test_replica import elsewhere

pytestmark = pytest.mark.usefixtures("committed", "our_tasks")

OWN = ("pgjobs_job", "pgjobs_attempt", "pgjobs_claim")
"""The tables that the second database has for itself; it shares the others, as a schema may."""

TWO: dict[str, Any] = {**TASKS, "second": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"DATABASE": "second"}}}


@pytest.fixture
def second(committed: None) -> Iterator[str]:
    """A database whose jobs are its own, ids included."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA second")
        for table in OWN:
            cursor.execute(f"CREATE TABLE second.{table} (LIKE public.{table} INCLUDING ALL)")
    made = elsewhere("second", search_path="second,public")
    alias = next(made)
    connections.settings[alias] = connections[alias].settings_dict
    with override_settings(TASKS=TWO):
        yield alias
    del connections.settings[alias]
    for _ in made:
        pass
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA second CASCADE")


@pytest.fixture
def finished() -> Iterator[list[Any]]:
    """The results that ``task_finished`` brought."""
    told: list[Any] = []

    def note(task_result: Any, **_: Any) -> None:
        told.append(task_result)

    families.task_finished.connect(note)
    yield told
    families.task_finished.disconnect(note)


def test_a_task_goes_where_its_alias_says_and_is_found_there_alone(second: str) -> None:
    here = cast.noop.enqueue("here")
    there = cast.echo.using(backend="second").enqueue("there")
    assert [job.payload["args"] for job in Job.objects.all()] == [["here"]]
    assert [job.payload["args"] for job in Job.objects.using(second).all()] == [["there"]]
    assert cast.echo.using(backend="second").get_result(there.id) == there
    there.refresh()
    assert (there.backend, there.args) == ("second", ["there"])
    assert result_of(Job.objects.using(second).get()) == there
    Job._base_manager.filter(pk=here.id)._raw_delete("default")
    with pytest.raises(TaskResultDoesNotExist):
        cast.echo.get_result(there.id)


def test_each_end_is_told_with_the_row_of_its_own_database(second: str, finished: list[Any]) -> None:
    """Ids are those of a database, so another's row of this id is another job's."""
    there = cast.in_context.using(backend="second").enqueue(value=7)
    cast.echo.enqueue("other")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgjobs_job SET id = %s", [there.id])
    assert run_jobs(database=second).succeeded == [int(there.id)]
    assert cast.calls[0].task_result.kwargs == {"value": 7}
    assert [(told.backend, told.kwargs) for told in finished] == [("second", {"value": 7})]
    Job.objects.get(pk=there.id).cancel()
    assert [(told.backend, told.args) for told in finished[1:]] == [("default", ["other"])]
    again = cast.noop.using(backend="second").enqueue("third")
    Job.objects.using(second).get(pk=again.id).cancel(by="ops")
    assert [(told.backend, told.args) for told in finished[2:]] == [("second", ["third"])]


def test_a_definition_may_name_another_database_than_its_alias(second: str) -> None:
    """§3.3."""
    job = job_of(cast.noop).using(database=second).register("x")
    assert Job.objects.using(second).get() == job
    assert result_of(job).args == ["x"]


def test_a_warning_names_the_caller_and_not_sentry_s_wrapper_of_enqueue(
    second: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = families.Task.enqueue
    module = {"__name__": "sentry_sdk.integrations.django.tasks", "plain": plain}
    exec("def wrapped(self, *args, **kwargs):\n    return plain(self, *args, **kwargs)\n", module)
    monkeypatch.setattr(families.Task, "enqueue", module["wrapped"])
    with transaction.atomic():
        cast.noop.using(backend="second").enqueue()
    [line] = [line for line in caplog.messages if line.startswith("job registered outside of the open transaction")]
    assert f"at={__file__}" in line


def test_a_job_outside_of_the_open_transaction_is_warned_of(second: str, caplog: pytest.LogCaptureFixture) -> None:
    """§8.4: it stays if that transaction is rolled back."""
    with transaction.atomic():
        for _ in range(2):
            cast.noop.using(backend="second").enqueue()
        cast.echo.using(backend="second").enqueue()
        async_to_sync(cast.echo.using(backend="second").aenqueue)()
        async_to_sync(cast.noop.using(backend="second").aenqueue)()
        transaction.set_rollback(True)
    lines = [line for line in caplog.messages if line.startswith("job registered outside of the open transaction")]
    assert [line.split("tasks_cast.")[1].split()[0] for line in lines] == ["noop", "echo", "echo", "noop"]
    assert all(f"at={__file__}" in line for line in lines[:2])
    assert Job.objects.using(second).count() == 5
    assert connections[second].in_atomic_block is False


class NoopsElsewhere:
    """Would send some jobs by name where no result is looked up."""

    def db_for_write(self, model: type, **hints: Any) -> str | None:
        return "second" if str(hints.get("name")).endswith(".noop") else None


def test_a_task_goes_where_its_result_is_looked_up(second: str, settings: Any) -> None:
    """Ids repeat: a result that is looked up elsewhere would be that of another job."""
    settings.DATABASE_ROUTERS = [NoopsElsewhere()]
    result = cast.noop.enqueue("here")
    assert cast.noop.get_result(result.id).args == ["here"]
    [other] = enqueue_many(cast.noop, [(("there",), {})])
    assert cast.noop.get_result(other).args == ["there"]
    assert Job.objects.using(second).count() == 0
