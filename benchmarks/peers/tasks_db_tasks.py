"""The tasks of django-tasks-db's side, importable by their paths."""

from __future__ import annotations

from django.tasks import task

from benchmarks import stamps
from benchmarks.peers import side


@task
def noop(number: int) -> None:
    pass


@task
def note(number: int) -> None:
    stamps.write(side.STAMPS, number)
