"""What ``validate_task`` allows, at decoration, by ``using``, and again at ``enqueue``. Paper §1.1, §0.4."""

from __future__ import annotations

from datetime import datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from django.test import override_settings

from django_pgjobs.tasks import PgJobsBackend, families
from django_pgjobs.tasks.families import FAMILIES, InvalidTask, InvalidTaskJob, TaskResultDoesNotExist
from tests.db.tasks_ground import BACKEND, TASKS, cast


@pytest.fixture(autouse=True)
def _tasks(our_tasks: None) -> None: ...


def backend(**params: Any) -> PgJobsBackend:
    return PgJobsBackend(alias="default", params={"BACKEND": BACKEND, **params})


def test_all_four_flags_are_set() -> None:
    flags = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
    assert all(getattr(PgJobsBackend, flag) is True for flag in flags)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"queue_name": "a b"}, "queue must be 1 to 100 of the characters"),
        ({"queue_name": ""}, "queue must be 1 to 100 of the characters"),
        ({"priority": 101}, "priority must be a whole number between -100 and 100"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"run_after": timedelta(seconds=-1)}, "run_after must not be negative"),
        ({"run_after": 5}, "run_after must be a datetime or a timedelta, not 5"),
        ({"run_after": datetime(2030, 1, 1)}, "run_after must be an aware datetime"),
        ({"func": print}, "defined at a module level"),
        ({"takes_context": True, "func": cast.echo.func}, "first argument of 'context'"),
    ],
)
def test_a_task_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidTask, match=words):
        backend(QUEUES=[]).validate_task(families.changed(cast.noop, changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": -100},
        {"priority": 2.0},
        {"run_after": timedelta(0)},
        {"run_after": timedelta(days=3)},
        {"func": cast.asleep.func},
        {"takes_context": True, "func": cast.in_context.func},
    ],
)
def test_what_the_contract_allows_is_allowed(changes: dict[str, Any]) -> None:
    """A ``timedelta`` included, which Django's own validation cannot judge."""
    backend().validate_task(families.changed(cast.noop, changes))


@pytest.mark.parametrize(
    ("params", "allowed", "queue", "words"),
    [
        ({}, None, "default", ""),
        ({}, None, "mail", "Queue 'mail' is not valid for backend"),
        ({"QUEUES": []}, None, "mail", ""),
        ({"QUEUES": ["mail"]}, None, "default", "Queue 'default' is not valid"),
        ({"QUEUES": ["mail"]}, ["default"], "mail", r"queue 'mail' is not in PGJOBS\['QUEUES'\]"),
        ({"QUEUES": []}, ["mail"], "mial", r"is not in PGJOBS\['QUEUES'\] \(did you mean 'mail'\?\)"),
        ({"QUEUES": []}, ["mail"], "mail", ""),
    ],
)
def test_both_lists_of_queues_hold(params: Any, allowed: Any, queue: str, words: str) -> None:
    """T17: absent means ``default`` alone, as in Django; an empty list means all."""
    task = families.changed(cast.noop, {"queue_name": queue})
    with override_settings(PGJOBS={"QUEUES": allowed}):
        if not words:
            backend(**params).validate_task(task)
            return
        with pytest.raises(InvalidTask, match=words):
            backend(**params).validate_task(task)


def test_settings_that_are_not_valid_are_a_matter_of_the_checks() -> None:
    """A module with tasks can still be imported, so that the checks can run."""
    with override_settings(PGJOBS={"QUEUES": 7}):
        backend().validate_task(cast.noop)


def test_a_task_is_validated_where_it_is_made() -> None:
    with pytest.raises(InvalidTask, match="must not be negative"):
        cast.noop.using(run_after=timedelta(seconds=-1))
    with override_settings(TASKS={"default": {"BACKEND": BACKEND}}), pytest.raises(InvalidTask, match="'mail'"):
        cast.noop.using(queue_name="mail")
    with pytest.raises(TypeError):
        cast.task(max_attempts=5)(cast.noop.func)  # §1.1: no keyword of ours, as in Django


# Both families


@pytest.mark.parametrize("family", FAMILIES)
def test_exceptions_are_of_every_family_that_is_installed(family: str) -> None:
    """§0.4, §8.15."""
    theirs = import_module(f"{family}.exceptions")
    invalid = getattr(theirs, "InvalidTask", None) or theirs.InvalidTaskError
    with pytest.raises(invalid):
        cast.noop.using(run_after=timedelta(seconds=-1))
    assert issubclass(InvalidTaskJob, invalid)
    with pytest.raises(theirs.TaskResultDoesNotExist):
        cast.noop.get_result("nothing")
    assert issubclass(TaskResultDoesNotExist, theirs.TaskException)


@pytest.mark.parametrize("family", FAMILIES)
def test_whoever_decorates_the_task_is_of_the_family_in_use(family: str) -> None:
    """§0.4, T3: both read the same ``TASKS``."""
    made = import_module(family).task(cast.noop.func)
    assert type(made) is families.Task
    handler = import_module(family).task_backends
    with override_settings(TASKS=TASKS):
        assert isinstance(handler["default"], PgJobsBackend)


def test_a_twin_with_other_fields_is_the_task_if_nothing_differs() -> None:
    """T5: a result's task is the module's, where the row says nothing else."""
    assert families.changed(cast.noop, {"priority": 0}) is cast.noop
    assert families.changed(cast.noop, {"priority": 1}) == cast.noop.using(priority=1)
