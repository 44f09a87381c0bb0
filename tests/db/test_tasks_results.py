"""The result of a task, cell by cell: status, instants, workers, errors. Paper §1.3 to §1.5."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgjobs.exceptions import DeadlinePassed, ExecutorDied, QueueFull
from django_pgjobs.models import Attempt, Job
from django_pgjobs.states import Hold
from django_pgjobs.tasks.families import Task, TaskResultDoesNotExist
from django_pgjobs.testing import run_job, run_jobs
from tests.db.tasks_ground import cast
from tests.plugins.fix_db import RawDatabase, claim

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("our_tasks")]


def job_of(result: Any) -> Job:
    return Job.objects.get(pk=result.id)


# Status


@pytest.mark.parametrize("hold", [None, *Hold])
def test_a_job_that_no_worker_has_is_ready(hold: str | None) -> None:
    """§1.4: ready, waiting, parked, limited, paused."""
    result = cast.noop.enqueue()
    Job.objects.filter(pk=result.id).update(hold=hold)
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == ("READY", False, 0)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_a_job_that_is_retried_is_ready_again_with_its_errors() -> None:
    """§1.3, §1.4: *retrying* is READY, and started once."""
    result = cast.fails.enqueue("first")
    run_jobs(limit=1)
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == ("READY", 1, 1)
    assert result.started_at == result.last_attempted_at is not None
    assert result.finished_at is None


@pytest.mark.parametrize("ending", ["abandoned", "cancelled", "succeeded"])
def test_a_job_of_which_only_the_callback_is_left_is_running(ending: str) -> None:
    """§1.4: its body will not run again, and it has not finished."""
    result = cast.noop.enqueue()
    Job.objects.filter(pk=result.id).update(ending=ending, attempt=1)
    result.refresh()
    assert (result.status, result.is_finished) == ("RUNNING", False)


@pytest.mark.django_db(transaction=True)
def test_a_claimed_job_is_running_and_names_its_worker(committed: None, raw: RawDatabase) -> None:
    """§1.3, §1.4: also while it waits in a buffer of the worker, whose id the claim has."""
    result = cast.noop.enqueue()
    worker = uuid4()
    claim(raw, worker=worker)
    result.refresh()
    assert (result.status, result.worker_ids, result.attempts) == ("RUNNING", [str(worker)], 1)
    assert result.started_at == result.last_attempted_at == job_of(result).claimed_at


def test_a_success_has_its_value_and_its_instants() -> None:
    """§1.3: the last start is that of the body, within the attempt."""
    result = cast.echo.enqueue([1, {"a": None}])
    run_jobs()
    result.refresh()
    job = job_of(result)
    assert (result.status, result.is_finished, result.return_value) == ("SUCCESSFUL", True, [1, {"a": None}])
    assert result.finished_at == job.finished_at
    assert job.claimed_at <= result.last_attempted_at <= result.finished_at
    assert result.started_at == result.last_attempted_at
    assert result.worker_ids == [str(job.worker)]
    assert result.errors == []


def test_a_success_without_a_value_has_none() -> None:
    result = cast.noop.enqueue()
    run_jobs()
    assert cast.noop.get_result(result.id).return_value is None


def test_store_result_false_drops_what_a_task_returns() -> None:
    """T13."""
    result = cast.alone.enqueue()
    run_jobs()
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", None)


# Errors


def test_a_failure_has_an_error_for_each_charged_attempt() -> None:
    """§1.3, §1.5: oldest first; the traceback begins in the task."""
    result = cast.fails.enqueue("no")
    run_jobs()
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == ("FAILED", True, 2)
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert result.errors[0].exception_class_path == "builtins.ValueError"
    assert result.errors[0].traceback.splitlines()[1].endswith("in fails")  # T16
    assert result.started_at < result.last_attempted_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_released_attempts_do_not_count() -> None:
    """§1.3: ``attempts`` is our attempt."""
    result = cast.fails.enqueue("no")
    run_jobs()
    Attempt.objects.create(
        job_id=int(result.id), claim_id=uuid4(), number=1, cause="released", started_at=timezone.now()
    )
    result.refresh()
    assert (result.attempts, len(result.errors)) == (2, 2)


@pytest.mark.parametrize("kind", ["uuid", "set", "nan"])
def test_a_result_that_is_no_json_is_not_retried(kind: str) -> None:
    """§1.5: the work is done. What JSON does not have is a ``TypeError``, as the contract has it."""
    result = cast.unstorable.enqueue(kind)
    assert run_jobs().abandoned == [int(result.id)]
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 1)
    kind_of = result.errors[0].exception_class
    assert kind_of is TypeError if kind != "nan" else kind_of.__name__ == "UnstorableResult"
    assert "Unsupported type" in result.errors[0].traceback or kind == "nan"


def test_a_result_that_is_no_json_is_dropped_if_the_policy_says_so() -> None:
    result = cast.lenient.enqueue()
    run_jobs()
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", None)
    assert "Unsupported type" in str(Job.objects.get(pk=result.id).result)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("plain", KeyError), ("exit", SystemExit), ("nested", cast.Outer.InnerError), ("own", QueueFull)],
)
def test_the_class_of_every_error_can_be_imported(kind: str, expected: type[BaseException]) -> None:
    """§1.5, §8.3: builtins, a class inside a class, our own."""
    result = cast.raises.enqueue(kind)
    run_jobs()
    result.refresh()
    assert [error.exception_class for error in result.errors] == [expected]


def test_a_class_that_nothing_outside_its_function_can_reach_is_named_by_the_traceback() -> None:
    """§1.5."""
    result = cast.raises.enqueue("local")
    run_jobs()
    result.refresh()
    assert result.errors[0].exception_class.__name__ == "AttemptFailed"
    assert "LocalError: here" in result.errors[0].traceback


@pytest.mark.parametrize(
    ("cause", "exception", "expected", "words"),
    [
        ("timeout", "django_pgjobs.exceptions.DeadlinePassed", DeadlinePassed, "DeadlinePassed: late"),
        ("crashed", "django_pgjobs.exceptions.ExecutorDied", ExecutorDied, "ExecutorDied: late"),
        ("lost", "", None, "AttemptFailed: late"),
    ],
)
def test_ends_without_a_traceback_say_what_happened(cause: str, exception: str, expected: Any, words: str) -> None:
    """§1.5."""
    result = cast.noop.enqueue()
    Attempt.objects.create(
        job_id=int(result.id), claim_id=uuid4(), number=1, cause=cause, exception=exception, message="late"
    )
    Job.objects.filter(pk=result.id).update(
        attempt=1, outcome="abandoned", error_class=exception or cause, finished_at=F("created_at")
    )
    result.refresh()
    [error] = result.errors
    assert error.exception_class.__name__ == (expected.__name__ if expected else "AttemptFailed")
    assert error.traceback == f"django_pgjobs.exceptions.{words}"


def test_a_cancelled_task_has_failed_and_says_by_whom() -> None:
    """§1.4, §1.5: every poll loop ends, and ``errors[0]`` is there."""
    result = cast.noop.enqueue()
    job_of(result).cancel(by="ops", reason="not needed")
    result.refresh()
    assert (result.status, result.is_finished) == ("FAILED", True)
    [error] = result.errors
    assert (error.exception_class.__name__, error.traceback) == ("Cancel", "Cancelled by ops: not needed")


def test_a_task_that_cancels_itself_has_failed() -> None:
    result = cast.raises.enqueue("cancel")
    run_jobs()
    result.refresh()
    assert result.status == "FAILED"
    assert result.errors[-1].traceback == "Cancelled: by itself"


def test_an_abandoned_task_says_by_whom_after_its_own_errors() -> None:
    """§1.5."""
    result = cast.fails.enqueue()
    run_jobs(limit=1)
    job_of(result).abandon(by="ops", reason="hopeless")
    result.refresh()
    assert [error.exception_class.__name__ for error in result.errors] == ["ValueError", "Abandon"]
    assert result.errors[-1].traceback == "Abandoned by ops: hopeless"


# The task of a result


def test_the_task_has_the_queue_and_the_priority_of_the_row() -> None:
    """§1.3: an operator may have moved it, also to where the settings allow no task."""
    result = cast.noop.enqueue()
    job_of(result).reschedule(queue="elsewhere", priority=3)
    task = cast.noop.get_result(result.id).task
    assert (task.queue_name, task.priority, task.func) == ("elsewhere", 3, cast.noop.func)


def test_a_result_of_another_task_is_a_mismatch() -> None:
    result = cast.noop.enqueue()
    with pytest.raises(Exception, match="does not match") as caught:
        cast.echo.get_result(result.id)
    assert type(caught.value).__name__ == "TaskResultMismatch"


@pytest.mark.skipif("__reduce__" not in vars(Task), reason="tasks can be pickled from Django 6.1 on")
def test_tasks_and_results_can_be_pickled() -> None:
    """§8.16."""
    result = cast.send_welcome.enqueue(7)
    run_jobs()
    result.refresh()
    again = pickle.loads(pickle.dumps(result))
    assert (again, again.return_value) == (result, "welcome 7")


def test_a_result_is_read_by_one_statement() -> None:
    """§1.3: with attempts and claim."""
    result = cast.fails.enqueue()
    run_jobs()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        result.refresh()
    assert len([query for query in queries if "SELECT" in query["sql"]]) == 1


# Results that there are not


WRONG = ["", "-1", "0", "１２", "1" * 30, "9223372036854775808", None, 1, 1.0, "1.0", " 1", "1_0", "01", "0x1", b"1"]


@pytest.mark.parametrize("wrong", WRONG)
def test_an_id_that_is_none_is_refused_before_any_query(wrong: Any, django_assert_num_queries: Any) -> None:
    """§1.3, T7: the transaction stays usable."""
    with django_assert_num_queries(0), pytest.raises(TaskResultDoesNotExist, match="is not the id of a result"):
        cast.noop.get_result(wrong)


def test_an_unknown_id_does_not_exist() -> None:
    with transaction.atomic():
        with pytest.raises(TaskResultDoesNotExist, match="There is no job 9223372036854775807"):
            cast.noop.get_result("9223372036854775807")
        assert Job.objects.count() == 0


def test_a_result_whose_code_is_gone_does_not_exist() -> None:
    """§1.3: there is no task to build, and the message names it."""
    result = cast.noop.enqueue()
    Job.objects.filter(pk=result.id).update(name="tests.db.tasks_cast.gone")
    with pytest.raises(TaskResultDoesNotExist, match=r"tests\.db\.tasks_cast\.gone"):
        result.refresh()


# In the task


def test_a_task_gets_its_context_with_earlier_errors() -> None:
    """§1.6: of the family in use, with the job's own context."""
    result = cast.in_context.enqueue(value=1)
    run_jobs()
    first, second = cast.calls
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.task_result.id == result.id
    assert (second.task_result.status, second.task_result.kwargs) == ("RUNNING", {"value": 1})
    assert [error.exception_class for error in second.task_result.errors] == [ValueError]
    assert second.job.max_attempts == 2
    result.refresh()
    assert result.return_value == [2, int(result.id), 1]


def test_an_async_task_gets_its_context() -> None:
    result = cast.async_in_context.enqueue()
    run_jobs()
    result.refresh()
    assert result.return_value == [1, int(result.id)]
    assert cast.calls[0].task_result.started_at is not None


def test_a_deferred_task_runs_when_it_is_due() -> None:
    result = cast.in_five_minutes.enqueue()
    assert run_jobs().ran == []
    run_job(job_of(result))
    result.refresh()
    assert result.status == "SUCCESSFUL"
    assert result.task.run_after == result.enqueued_at + timedelta(minutes=5)


HEADERS_OF_OTHERS: list[Any] = [
    ["task"],
    {"task": "an older middleware's"},
    {"task": None},
    {"task": {"backend": ["a"], "delay": "soon", "run_after": 5}},
    {"task": {"backend": None, "delay": None}},
    {"task": {"delay": 1e300}},
    {"task": {"run_after": "tomorrow"}},
]


@pytest.mark.parametrize("headers", HEADERS_OF_OTHERS, ids=str)
def test_a_header_that_is_not_ours_hides_no_result(headers: Any) -> None:
    """A project's middleware may have stored it before it used tasks."""
    result = cast.noop.enqueue()
    Job.objects.filter(pk=result.id).update(headers=headers)
    result.refresh()
    assert (result.status, result.backend, result.task.run_after) == ("READY", "default", None)
