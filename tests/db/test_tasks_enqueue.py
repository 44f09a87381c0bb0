"""Enqueue a task: what is stored, what is refused, and the result that the caller gets. Paper §1.1, §1.2, §3.3."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.models import Job
from django_pgjobs.tasks import enqueue_many
from django_pgjobs.tasks.families import InvalidTask, InvalidTaskJob
from django_pgjobs.testing import run_jobs
from tests.db.tasks_ground import BACKEND, TASKS, cast

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("our_tasks")]


def test_a_task_becomes_a_job_under_its_path_with_its_policy() -> None:
    """§3.1, §3.2: queue and priority are the task's, the rest its policy's."""
    result = cast.send_welcome.enqueue(7, name="Ada")
    job = Job.objects.get()
    assert (job.name, job.queue, job.priority) == ("tests.db.tasks_cast.send_welcome", "mail", 10)
    assert (job.max_attempts, job.timeout_seconds, job.tags) == (3, 300.0, ("welcome",))
    assert job.payload == {"args": [7], "kwargs": {"name": "Ada"}}
    assert job.headers is None
    assert (result.id, result.status, result.enqueued_at) == (str(job.pk), "READY", job.created_at)
    assert (result.args, result.kwargs, result.backend) == ([7], {"name": "Ada"}, "default")
    assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
    assert result.task is cast.send_welcome


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (cast.noop, (), {}),
    (cast.noop, (1, "a", None, True), {"b": "ü"}),
    (cast.noop, ((1, 2), [3.5, 1e16, -0.0], {"a": {1: "int key", None: 2}}), {"t": ("x",)}),
    (cast.noop, ({"$tuple": [1]}, {"$dict": 1}, {"$uuid": "no"}), {}),
    (cast.noop, (b"text",), {}),
    (cast.send_welcome, (7,), {}),
    (cast.moved, (7,), {}),
    (cast.in_2030, (), {}),
    (cast.in_2001, (), {}),
    (cast.in_five_minutes, (), {}),
    (cast.asleep, (1,), {}),
]


@pytest.mark.parametrize(("task", "args", "kwargs"), CALLS)
def test_the_result_of_enqueue_equals_that_of_get_result(task: Any, args: Any, kwargs: Any) -> None:
    """§1.2, §8.2: also what JSON changes: tuples, keys, bytes; and what looks like our own tags stays data."""
    result = task.enqueue(*args, **kwargs)
    assert result == task.get_result(result.id)


def test_arguments_reach_the_task_as_the_result_shows_them() -> None:
    """§1.2: tuples are lists, keys are texts, ``1.0`` is a float."""
    result = cast.echo.enqueue({"t": (1, 1.0), 3: {"$tuple": [1]}})
    run_jobs()
    result.refresh()
    assert result.return_value == {"t": [1, 1.0], "3": {"$tuple": [1]}} == result.args[0]
    assert [type(value) for value in result.return_value["t"]] == [int, float]


@pytest.mark.parametrize(
    ("task", "args", "kind", "words"),
    [
        (cast.send_welcome, (), TypeError, "missing 1 required positional argument"),
        (cast.send_welcome, (1, 2), TypeError, "positional argument"),
        (cast.noop, (timezone.now(),), TypeError, "Unsupported type"),
        (cast.noop, ({1, 2},), TypeError, "Unsupported type"),
        (cast.noop, (b"\xff",), ValueError, "Unsupported value"),
        (cast.noop, (math.nan,), InvalidTaskJob, r"args\[0\] cannot be stored"),
        (cast.noop, ({"a": ["\0"]},), InvalidTaskJob, r"args\[0\]\.a\[0\] cannot be stored"),
        (cast.noop, ("\ud800",), InvalidTaskJob, "cannot be stored"),
        (cast.noop, (10**5000,), InvalidTaskJob, "cannot be stored"),
        (cast.noop, ("x" * 2**20,), InvalidTaskJob, r"BOUNDS\['payload_bytes'\]"),
        (cast.in_2999, (), InvalidTask, "run_at must be"),
        (cast.in_a_century, (), InvalidTask, "delay must be at most"),
    ],
)
def test_bad_input_is_refused_before_the_database_sees_it(task: Any, args: Any, kind: Any, words: str) -> None:
    """§1.2, §8.5: nothing is stored, and an open transaction stays usable."""
    with transaction.atomic():
        with pytest.raises(kind, match=words):
            task.enqueue(*args)
        assert Job.objects.count() == 0
        cast.noop.enqueue()
    assert Job.objects.count() == 1


def test_a_container_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidTaskJob, match="cannot be stored"):
        cast.noop.enqueue(endless)


def test_what_is_refused_is_an_error_of_both_fronts() -> None:
    """§0.4: ``except`` of ours and of each family that is installed works."""
    with pytest.raises(InvalidJob):
        cast.noop.enqueue(math.nan)
    with pytest.raises(InvalidTask):
        cast.noop.enqueue(math.nan)


def test_a_start_in_the_past_is_refused_if_the_settings_say_so(settings: Any) -> None:
    task = cast.noop.using(run_after=timezone.now() - timedelta(hours=1))
    task.enqueue()
    settings.PGJOBS = {"BOUNDS": {"past_seconds": 60}}
    with pytest.raises(InvalidTask, match="at most 60 seconds ago"):
        task.enqueue()


def test_a_timedelta_counts_from_enqueue_by_the_clock_of_the_database() -> None:
    """§1.1: the task keeps it, the result has the instant."""
    task = cast.in_five_minutes
    assert task.run_after == timedelta(minutes=5)
    result = task.enqueue()
    job = Job.objects.get()
    assert job.run_at - job.created_at == timedelta(minutes=5)
    assert result.task.run_after == job.run_at
    assert (result.status, run_jobs().ran) == ("READY", [])


@override_settings(USE_TZ=False)
def test_without_time_zones_instants_are_naive_and_local() -> None:
    task = cast.noop.using(run_after=datetime(2030, 1, 1, 12))
    result = task.enqueue()
    again = task.get_result(result.id)
    assert again.task.run_after == datetime(2030, 1, 1, 12)
    assert again == result
    assert again.enqueued_at.tzinfo is None


def test_the_key_of_a_task_keeps_a_second_one_out() -> None:
    """§1.2: the result is that of the first, and nobody is told of it again."""
    first = cast.index.enqueue(7)
    cast.index.enqueue(8)
    again = cast.index.enqueue(7)
    assert again == first
    assert Job.objects.count() == 2


def test_a_rollback_leaves_no_job() -> None:
    """§8.4: a savepoint's, too."""
    with transaction.atomic():
        cast.noop.enqueue("outer")
        with transaction.atomic():
            cast.noop.enqueue("inner")
            transaction.set_rollback(True)
    assert [job.payload["args"] for job in Job.objects.all()] == [["outer"]]


@pytest.mark.django_db(transaction=True)
def test_async_callers_enqueue_in_the_transaction_of_their_thread() -> None:
    """§1.2: ``aenqueue`` and ``aget_result`` use the connection of other ORM code of the same request."""

    async def use() -> Any:
        result = await cast.asleep.aenqueue(4)
        await result.arefresh()
        return await cast.asleep.aget_result(result.id)

    with transaction.atomic():
        found = async_to_sync(use)()
        assert Job.objects.filter(pk=found.id).exists()
        transaction.set_rollback(True)
    assert not Job.objects.exists()


# Through another alias


def test_another_alias_of_ours_writes_its_own_attempts_and_timeout() -> None:
    """§3.4: what the row says is of the alias that enqueued it; the result knows it, as the task's own does not say."""
    two = {
        **TASKS,
        "patient": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"MAX_ATTEMPTS": 9, "TIMEOUT_SECONDS": None}},
    }
    with override_settings(TASKS=two):
        result = cast.noop.using(backend="patient").enqueue()
        job = Job.objects.get()
        assert (job.max_attempts, job.timeout_seconds, job.headers) == (9, None, {"task": {"backend": "patient"}})
        assert (result.backend, result.task.backend) == ("patient", "patient")
        assert cast.noop.get_result(result.id) == result
        cast.noop.enqueue()
        assert (Job.objects.latest("pk").max_attempts, Job.objects.latest("pk").headers) == (5, None)


def test_an_alias_may_name_a_database(with_options: Any) -> None:
    """§3.4: it has to be PostgreSQL."""
    with with_options(DATABASE="other"), pytest.raises(InvalidTask, match="jobs live on PostgreSQL"):
        cast.noop.enqueue()
    with with_options(DATABASE="default"):
        result = cast.noop.enqueue()
        assert cast.noop.get_result(result.id) == result


def test_a_task_of_another_backend_can_be_enqueued_through_ours() -> None:
    """Its own alias says nothing about jobs, so the first of ours does."""
    mixed = {
        "default": {"BACKEND": "django_pgjobs.tasks.families.BaseTaskBackend"},
        "ours": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"MAX_ATTEMPTS": 2}},
    }
    ours = cast.noop.using(backend="default")
    with override_settings(TASKS=mixed):
        task = type(ours)(func=ours.func, backend="ours")
        result = task.enqueue()
        assert (Job.objects.get().max_attempts, result.backend) == (2, "ours")
        assert task.get_result(result.id) == result


def test_enqueueing_in_asynchronous_code_names_the_twin() -> None:
    """Of the front that was called: a task has no ``aregister``."""

    async def wrong() -> None:
        with pytest.raises(SynchronousOnlyOperation, match="await aenqueue"):
            cast.noop.enqueue()
        with pytest.raises(SynchronousOnlyOperation, match=r"sync_to_async\(enqueue_many\)"):
            enqueue_many(cast.noop, [((), {})])

    async_to_sync(wrong)()
    assert not Job.objects.exists()
