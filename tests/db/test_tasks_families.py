"""Beside ``django.tasks`` the backport may be installed, and third parties use either (issue 20, §8 point 15).

The tests run for each family that is there: on Django 6.1 the environment has both.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from django.test import override_settings

from django_pgjobs.models import Job
from django_pgjobs.tasks import families
from django_pgjobs.tasks.families import FAMILIES
from django_pgjobs.testing import run_jobs
from tests.db.tasks_ground import BACKEND

TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}

with override_settings(TASKS=TASKS):
    from tests.db import families_cast as cast

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("ours")]


@pytest.fixture
def ours() -> Iterator[None]:
    with override_settings(TASKS=TASKS):
        yield


@pytest.fixture(params=FAMILIES)
def exceptions(request: pytest.FixtureRequest) -> Any:
    """The module of exceptions that somebody catches by."""
    return import_module(f"{request.param}.exceptions")


def invalid_task(exceptions: Any) -> type[Exception]:
    """Return the class under its name in this family; the backport's next release takes Django's."""
    found: type[Exception] = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
    return found


def test_all_families_that_are_installed_are_known() -> None:
    assert [name for name in ("django.tasks", "django_tasks") if find_spec(name)] == list(FAMILIES)


def test_a_task_that_is_not_valid_is_caught_by_the_exception_of_either_family(exceptions: Any) -> None:
    """Raised while ``using()`` validates, and by ``enqueue`` for what cannot be stored."""
    with pytest.raises(invalid_task(exceptions), match="Queue 'mail' is not valid for backend"):
        cast.first.using(queue_name="mail")
    with pytest.raises(invalid_task(exceptions), match="NUL character"):
        cast.first.enqueue("\0")
    assert not Job.objects.exists()


def test_a_result_that_does_not_exist_is_caught_by_the_exception_of_either_family(exceptions: Any) -> None:
    for result_id in ("7", "no id"):
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            cast.first.get_result(result_id)


def test_either_decorator_makes_a_task_of_the_family_in_use() -> None:
    """A library that imports the backport, as Wagtail does, gets Django's own tasks and results on Django 6."""
    assert type(cast.first) is type(cast.last) is families.Task
    results = [cast.first.enqueue(1), cast.last.enqueue(1)]
    run_jobs()
    for result in results:
        result.refresh()
    assert [result.return_value for result in results] == [2, 3]
    assert {type(result) for result in results} == {families.TaskResult}


def test_either_familys_backends_are_ours() -> None:
    """Each family has a handler of its own for ``TASKS``."""
    made = [import_module(family).task_backends["default"] for family in FAMILIES]
    assert {f"{type(backend).__module__}.{type(backend).__qualname__}" for backend in made} == {
        "django_pgjobs.tasks.backend.PgJobsBackend"
    }
    for backend in made:
        assert backend.get_result(cast.first.enqueue(1).id).task == cast.first
