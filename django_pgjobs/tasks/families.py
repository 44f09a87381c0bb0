"""The one place that imports ``django.tasks``, or its backport ``django_tasks`` where Django has none.

On Django 6.0 and later tasks are of the core family, whichever family's decorator made them: both ask the same
``TASKS`` for a backend. Exceptions are raised as classes of every family that is installed, so each ``except`` works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from django_pgjobs.exceptions import InvalidJob

if TYPE_CHECKING:
    from django.dispatch import Signal
    from django_tasks import base as types
    from django_tasks.backends.base import BaseTaskBackend as BaseTaskBackend
    from django_tasks.base import TaskContext as TaskContext
    from django_tasks.base import TaskError as TaskError
    from django_tasks.base import TaskResultStatus as TaskResultStatus

    Task = types.Task[..., Any]
    TaskResult = types.TaskResult[Any]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

CORE, BACKPORT = "django.tasks", "django_tasks"

FAMILIES = tuple(name for name in (CORE, BACKPORT) if find_spec(name) is not None)
"""The modules of the families that are installed; the first is the one in use."""

if not FAMILIES:
    raise ImportError(
        "There is no django.tasks to be a backend of: it needs Django 6.0 or later, or on Django 5.2 the backport, "
        "which pip install 'django-pgjobs[tasks]' brings."
    )

FAMILY = FAMILIES[0]

_base = import_module(f"{FAMILY}.base")
_signals = import_module(f"{FAMILY}.signals")

if not TYPE_CHECKING:
    BaseTaskBackend = import_module(f"{FAMILY}.backends.base").BaseTaskBackend
    Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
    TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus

TASK_CLASSES: tuple[type[object], ...] = tuple(import_module(f"{name}.base").Task for name in FAMILIES)
"""Classes that ``isinstance`` takes for a task."""

DEFAULT_ALIAS = "default"

task_enqueued: Signal = _signals.task_enqueued
task_started: Signal = _signals.task_started
task_finished: Signal = _signals.task_finished
log_task_enqueued: Callable[..., None] = _signals.log_task_enqueued
log_task_started: Callable[..., None] = _signals.log_task_started
log_task_finished: Callable[..., None] = _signals.log_task_finished


class TaskOf(Protocol[P, R_co]):
    """A task of either family, for type checkers: those of the backport know their arguments."""

    @property
    def func(self) -> Callable[P, R_co]: ...
    @property
    def module_path(self) -> str: ...


# Exceptions


def _bases(*names: str) -> tuple[type[Exception], ...]:
    """Return an exception's class in each family, under the first of ``names`` that the family has."""
    found: list[type[Exception]] = []
    for family in FAMILIES:
        module = import_module(f"{family}.exceptions")
        found.append(next(getattr(module, name) for name in names if hasattr(module, name)))
    return tuple(found)


if TYPE_CHECKING:
    OF_INVALID = (Exception,)

    class InvalidTask(Exception):
        """The task is not valid."""

    class TaskResultDoesNotExist(Exception):
        """There is no such result, or none any more."""

else:
    OF_INVALID = _bases("InvalidTask", "InvalidTaskError")

    class InvalidTask(*OF_INVALID):
        """The task is not valid."""

    class TaskResultDoesNotExist(*_bases("TaskResultDoesNotExist")):
        """There is no such result, or none any more."""


class InvalidTaskJob(InvalidJob, InvalidTask):
    """The job of a task is not valid: its options or its arguments."""


# Tasks


def is_task(value: object) -> bool:
    """Return whether ``value`` is a task, of either family."""
    return isinstance(value, TASK_CLASSES)


def changed(task: Task, changes: Mapping[str, object]) -> Task:
    """Return ``task`` with other fields, unchecked: the row counts, regardless of the present settings."""
    if all(getattr(task, name) == value for name, value in changes.items()):
        return task
    return made(type(task), {**{field.name: getattr(task, field.name) for field in fields(task)}, **changes})


def made(kind: type[Task], values: Mapping[str, object]) -> Task:
    """Return a task of these fields, the others by default, unchecked."""
    task = object.__new__(kind)
    for field in fields(kind):
        object.__setattr__(task, field.name, values.get(field.name, field.default))
    return task
