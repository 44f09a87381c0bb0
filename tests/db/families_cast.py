"""One task by the decorator of each family that is installed. ``test_tasks_families`` imports it under its settings."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django_pgjobs.tasks.families import FAMILIES

by_first: Any = import_module(FAMILIES[0]).task
by_last: Any = import_module(FAMILIES[-1]).task


@by_first
def first(value: int) -> int:
    return value + 1


@by_last
def last(value: int) -> int:
    return value + 2
