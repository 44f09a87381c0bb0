"""Imports Django's test modules so that they meet our backends; not a line of them is changed.

While they are imported, ``override_settings`` is a subclass that replaces the backends' paths in ``TASKS``, and
``SimpleTestCase``, which forbids queries, is a ``TransactionTestCase``. Afterwards the names that they have imported
for Django's two backends are ours, for their ``assertIsInstance``.
"""

from __future__ import annotations

import sys
import unittest
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import django.test
from django.conf import settings
from django.test import TransactionTestCase, override_settings
from django.utils.module_loading import import_string

from django_pgjobs.testing import EagerBackend
from tests.contract.backends import CollectingBackend

MODULES = ("test_custom_backend", "test_dummy_backend", "test_immediate_backend", "test_tasks")

OURS: dict[str, type[Any]] = {
    "django.tasks.backends.dummy.DummyBackend": CollectingBackend,
    "django.tasks.backends.immediate.ImmediateBackend": EagerBackend,
}


class Retargeted(override_settings):
    """``override_settings`` that puts our backends in the place of Django's."""

    def __init__(self, **options: Any) -> None:
        if "TASKS" in options:
            options["TASKS"] = {alias: _retargeted(entry) for alias, entry in options["TASKS"].items()}
        super().__init__(**options)


def _retargeted(entry: dict[str, Any]) -> dict[str, Any]:
    ours = OURS.get(entry["BACKEND"])
    return entry if ours is None else {**entry, "BACKEND": f"{ours.__module__}.{ours.__qualname__}"}


class WithDatabase(TransactionTestCase):
    """What stands in for ``SimpleTestCase`` and ``TransactionTestCase``."""

    databases = {"default"}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Some say that they need no app. With all of them the flush after a test makes no permissions anew.
        cls.available_apps = settings.INSTALLED_APPS


def load(tests: Path) -> unittest.TestSuite:
    """Return all tests of the modules in ``tests/tasks``; ``tests`` goes before everything else on the path."""
    sys.path.insert(0, str(tests))
    with _instead():
        modules = [import_module(f"tasks.{name}") for name in MODULES]
    for module in modules:
        for path, ours in OURS.items():
            name = path.rpartition(".")[2]
            if hasattr(module, name):
                setattr(module, name, ours)
    return unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromModule(module) for module in modules)


@contextmanager
def _instead() -> Iterator[None]:
    with (
        mock.patch.object(django.test, "override_settings", Retargeted),
        mock.patch.object(django.test, "SimpleTestCase", WithDatabase),
        mock.patch.object(django.test, "TransactionTestCase", WithDatabase),
    ):
        yield


@contextmanager
def without_djangos() -> Iterator[None]:
    """Within the block nobody can make one of Django's two backends, so no test passes by them."""
    with ExitStack() as stack:
        for path in OURS:
            stack.enter_context(mock.patch.object(import_string(path), "__init__", _refuse))
        yield


def _refuse(backend: object, *args: object, **kwargs: object) -> None:
    raise AssertionError(f"A test has made {type(backend).__qualname__} of Django.")
