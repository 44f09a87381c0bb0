"""Jobs that go through rows, what they have done, and the rows of each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction

from django_pgjobs import Backoff, JobContext, job
from django_pgjobs.models import Job
from django_pgjobs.values import stopping

NOW = Backoff(0)
NAMES = [f"g{number:03}" for number in range(8)]

said: list[Any] = []
"""What the jobs of this process have seen, row by row."""

troubles: dict[str, str] = {}
"""What happens at a row, once: by its name."""


def groups(count: int) -> list[Group]:
    return Group.objects.bulk_create(Group(name=f"g{number:03}") for number in range(count))


@pytest.fixture(autouse=True)
def some_groups() -> Iterator[list[Group]]:
    said.clear()
    troubles.clear()
    yield groups(8)
    assert not troubles, "each trouble has happened"


def stop(context: JobContext, why: str = stopping.DRAIN) -> None:
    """Let a job hear that it is to stop."""
    context._cancellation.stopping.announce(why, None)


def effect(name: str) -> None:
    User.objects.create(username=f"{name} {User.objects.count()}", first_name=name)


def effects() -> list[str]:
    return list(User.objects.order_by("pk").values_list("first_name", flat=True))


def meet(context: JobContext, name: str) -> None:
    """Have the effect of a row, and its trouble behind that."""
    said.append(name)
    effect(name)
    match troubles.pop(name, ""):
        case "stop":
            stop(context)
        case "fail":
            raise ValueError(name)
        case "fail in the database":
            with transaction.atomic():
                Group.objects.create(name=name)


@job(name="each.plain", takes_context=True, max_attempts=3, backoff=NOW)
def plain(context: JobContext, every: int = 3) -> int:
    done = 0
    for group in context.each(Group.objects.all(), every=every):
        meet(context, group.name)
        done += 1
    return done


@job(name="each.atomic", takes_context=True, max_attempts=3, backoff=NOW)
def atomic(context: JobContext, every: int = 3) -> int:
    done = 0
    for group in context.each(Group.objects.all(), every=every, atomic=True):
        meet(context, group.name)
        done += 1
    return done


def cursors(row: Job) -> Any:
    row.refresh_from_db()
    return (row.options or {}).get("each")
