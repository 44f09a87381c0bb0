"""Tasks that their tests enqueue on ``EagerBackend``. ``test_eager`` imports it under its settings."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from django.contrib.auth.models import User

from django_pgjobs import Backoff
from django_pgjobs.tasks import policy
from django_pgjobs.tasks.families import FAMILY

task: Any = import_module(FAMILY).task

said: list[Any] = []


@task
def makes_user(name: str) -> list[Any]:
    return [User.objects.create(username=name).pk, (name,)]


@task
@policy(max_attempts=2, backoff=Backoff(60))
def fails() -> None:
    said.append("failed")
    raise ValueError("no")


@task
def interrupts() -> None:
    raise KeyboardInterrupt("stop the tests")


@task
def leaves() -> None:
    sys.exit(3)


@task
def enqueues(name: str) -> str:
    said.append(makes_user.enqueue(name).status.value)
    return "done"


@task
async def asleep(value: int) -> int:
    return value + 1
