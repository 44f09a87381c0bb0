"""``EagerBackend`` runs tasks as they are enqueued, in the test's own transaction (issue 20, paper §4, T14)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from django_pgjobs import job
from django_pgjobs.models import Job
from django_pgjobs.models.attempts import Claim
from django_pgjobs.tasks import enqueue_many, families
from django_pgjobs.testing import assert_registered, run_jobs

TASKS = {
    "default": {"BACKEND": "django_pgjobs.testing.EagerBackend"},
    "later": {"BACKEND": "django_pgjobs.tasks.PgJobsBackend"},
}

with override_settings(TASKS=TASKS):
    from tests.db import eager_cast as cast

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("eager")]

READY, SUCCESSFUL, FAILED = (getattr(families.TaskResultStatus, name) for name in ("READY", "SUCCESSFUL", "FAILED"))


@job
def natively(word: str) -> None:
    cast.said.append(word)


@pytest.fixture
def eager() -> Iterator[None]:
    cast.said.clear()
    with override_settings(TASKS=TASKS):
        yield


def test_a_task_has_run_when_enqueue_returns() -> None:
    """Its result comes from the database: a tuple has become a list."""
    result = cast.makes_user.enqueue("ann")
    user = User.objects.get(username="ann")
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, [user.pk, ["ann"]], 1)
    assert result == cast.makes_user.get_result(result.id)


def test_all_of_it_belongs_to_the_callers_transaction() -> None:
    with transaction.atomic():
        assert cast.makes_user.enqueue("ann").status == SUCCESSFUL
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    assert not User.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_task_runs_in_autocommit_where_no_transaction_is_open() -> None:
    assert cast.makes_user.enqueue("ann").status == SUCCESSFUL
    assert not connection.in_atomic_block
    assert User.objects.filter(username="ann").exists()


def test_the_policy_holds(caplog: pytest.LogCaptureFixture) -> None:
    """A failed attempt leaves the task ready for its retry, which is a minute away."""
    result = cast.fails.enqueue()
    assert (result.status, [error.exception_class for error in result.errors]) == (READY, [ValueError])
    assert run_jobs().ran == []

    run_jobs(include_scheduled=True)
    result.refresh()
    assert (result.status, len(result.errors), cast.said) == (FAILED, 2, ["failed"] * 2)


def test_a_task_of_later_waits() -> None:
    tomorrow = timezone.now() + timedelta(days=1)
    assert cast.makes_user.using(run_after=tomorrow).enqueue("ann").status == READY
    assert not User.objects.exists()


def test_a_task_that_a_task_enqueues_runs_after_it() -> None:
    assert cast.enqueues.enqueue("ann").return_value == "done"
    assert cast.said == [READY.value]
    assert User.objects.filter(username="ann").exists()
    assert not Job.objects.filter(finished_at=None).exists()


def test_whatever_else_is_due_runs_too() -> None:
    """So a test may mix both kinds of jobs, and aliases."""
    natively.register("native")
    waiting = cast.makes_user.using(backend="later").enqueue("bob")
    assert waiting.status == READY
    assert_registered(natively, "native")

    cast.makes_user.enqueue("ann")
    waiting.refresh()
    assert (waiting.status, cast.said) == (SUCCESSFUL, ["native"])


def test_many_tasks_have_run_when_enqueue_many_returns() -> None:
    ids = enqueue_many(cast.makes_user, [(["ann"], {}), ([], {"name": "bob"})])
    assert [cast.makes_user.get_result(each).status for each in ids] == [SUCCESSFUL, SUCCESSFUL]
    assert User.objects.filter(username__in=("ann", "bob")).count() == 2


def test_arguments_that_do_not_fit_are_refused_and_nothing_is_stored() -> None:
    with pytest.raises(TypeError, match="nick"):
        cast.makes_user.enqueue(nick="ann")
    assert not Job.objects.exists()


def test_an_interrupt_is_recorded_and_raised() -> None:
    """As Immediate raises it, so that Ctrl-C ends the tests."""
    with pytest.raises(KeyboardInterrupt, match="stop the tests"):
        cast.interrupts.enqueue()
    recorded = Job.objects.get()
    assert (recorded.attempt, recorded.attempts.get().exception) == (1, "KeyboardInterrupt")
    assert not Claim.objects.exists()


def test_system_exit_is_an_error_of_the_task() -> None:
    (error,) = cast.leaves.enqueue().errors
    assert error.exception_class is SystemExit


def test_the_exception_is_live_while_task_finished_is_sent(caplog: pytest.LogCaptureFixture, settings: Any) -> None:
    """Django's logger takes it from ``sys.exc_info()``; an error monitor, too."""
    settings.PGJOBS = {"DEFAULT_MAX_ATTEMPTS": 1}
    live: list[BaseException | None] = []

    def listen(sender: type[Any], task_result: Any, **_: Any) -> None:
        live.append(sys.exc_info()[1])

    families.task_finished.connect(listen)
    try:
        cast.leaves.enqueue()
        cast.makes_user.enqueue("ann")
    finally:
        families.task_finished.disconnect(listen)
    assert [type(error) for error in live] == [SystemExit, type(None)]
    (record,) = [each for each in caplog.records if (each.name, each.levelname) == (families.FAMILY, "ERROR")]
    assert record.exc_info is not None
    assert record.exc_info[1] is live[0]


def test_asynchronous_code_enqueues_both_colours() -> None:
    async def enqueue() -> tuple[Any, Any]:
        return await cast.asleep.aenqueue(6), await cast.makes_user.aenqueue("ann")

    first, second = async_to_sync(enqueue)()
    assert (first.return_value, second.status) == (7, SUCCESSFUL)


def test_settings_may_name_it_where_models_import_tasks(tmp_path: Path) -> None:
    """The backend is made while ``@task`` is applied, here before Django has any models."""
    app = tmp_path / "early"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "models.py").write_text("from early import tasks\n")
    (app / "tasks.py").write_text(f"from {families.FAMILY} import task\n\n@task\ndef noop():\n    pass\n")
    program = (
        "from django.conf import settings; import django\n"
        "settings.configure(INSTALLED_APPS=['early', 'django_pgjobs'], DEFAULT_AUTO_FIELD='django.db.models.AutoField',"
        " TASKS={'default': {'BACKEND': 'django_pgjobs.testing.EagerBackend'}})\n"
        "django.setup()\n"
        "from early.tasks import noop; print(type(noop.get_backend()).__name__)"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("EagerBackend", "")
