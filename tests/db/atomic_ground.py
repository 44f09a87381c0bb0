"""Atomic jobs of the tests in this process. They make users, whose names are unique."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db import connection, transaction

from django_pgjobs import Abandon, Backoff, JobContext, Next
from django_pgjobs import job as define

told: list[Any] = []
"""What hooks and callbacks said, in order."""


@define(name="atomic.makes", atomic=True, max_attempts=3, backoff=Backoff(60))
def makes(name: str, then: str = "") -> str:
    User.objects.create(username=name)
    transaction.on_commit(lambda: told.append(f"hook {name}"))
    if then == "fail":
        raise ValueError("no")
    if then == "abandon":
        raise Abandon("why")
    if then == "undo":
        transaction.set_rollback(True)
    if then in ("COMMIT", "ROLLBACK"):
        with connection.cursor() as cursor:
            cursor.execute(then)
        User.objects.create(username=f"{name} later")
    return name


@define(name="atomic.goes_on", atomic=True, max_attempts=3, backoff=Backoff(60))
def goes_on(name: str) -> Next:
    User.objects.create(username=name)
    return Next(makes.bind(f"{name}'s heir"))


@define(name="atomic.keyed", atomic=True, idempotency_key="{name}")
def keyed(name: str) -> str:
    User.objects.create(username=name)
    return name


@define(name="atomic.marks", atomic=True, max_attempts=3, backoff=Backoff(60))
def marks(name: str) -> str:
    User.objects.create(username=name)
    return name


@marks.on_success
def marked(context: JobContext, name: str) -> None:
    told.append((name, User.objects.filter(username=name).exists()))
