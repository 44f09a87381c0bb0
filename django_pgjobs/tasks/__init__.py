"""The ``django.tasks`` front: ``@task`` functions as jobs, on Django's own interface and on its backport.

``TASKS = {"default": {"BACKEND": "django_pgjobs.tasks.PgJobsBackend"}}`` is all that it needs. This module imports no
family of tasks, since a module called ``tasks`` is imported by the discovery of other packages; the names other than
``policy`` come when they are asked for, and raise an ``ImportError`` if there is no family.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from django_pgjobs.tasks.policies import policy

if TYPE_CHECKING:
    from django_pgjobs.tasks.backend import PgJobsBackend
    from django_pgjobs.tasks.bridge import enqueue_many, job_of, result_of
    from django_pgjobs.tasks.running import PgTaskContext

__all__ = ["PgJobsBackend", "PgTaskContext", "enqueue_many", "job_of", "policy", "result_of"]

_LATE = {
    "PgJobsBackend": "backend",
    "PgTaskContext": "running",
    "enqueue_many": "bridge",
    "job_of": "bridge",
    "result_of": "bridge",
}
"""Name → the module that has it."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
