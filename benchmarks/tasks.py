"""The tasks of the benchmarks: the same functions as the jobs, by the decorator of ``django.tasks``."""

from __future__ import annotations

from importlib import import_module

from django_pgjobs.tasks import families

task = import_module(families.FAMILY).task


@task  # type: ignore[untyped-decorator]
def noop(number: int) -> int:
    return number
