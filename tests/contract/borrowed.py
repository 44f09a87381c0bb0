"""The backport under the name ``django.tasks``, for a Django that has none: the tests import nothing else."""

from __future__ import annotations

import logging
import sys
from importlib import import_module

MODULES = (
    "",
    ".base",
    ".exceptions",
    ".signals",
    ".backends",
    ".backends.base",
    ".backends.dummy",
    ".backends.immediate",
)


def lend() -> None:
    """From now on ``django.tasks`` is ``django_tasks``, with Django's names of exceptions and its logger.

    Our package must have chosen its family before: it would take the name for the real one.
    """
    import django

    for name in MODULES:
        sys.modules[f"django.tasks{name}"] = import_module(f"django_tasks{name}")
    django.tasks = sys.modules["django.tasks"]  # type: ignore[attr-defined]
    exceptions = sys.modules["django.tasks.exceptions"]
    for name in ("InvalidTask", "InvalidTaskBackend"):
        if not hasattr(exceptions, name):
            setattr(exceptions, name, getattr(exceptions, f"{name}Error"))
    logging.Logger.manager.loggerDict["django.tasks"] = logging.getLogger("django_tasks")
