"""Jobs of the end-to-end tests that go through rows, and the effects that they have for each."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection

from django_pgjobs import Backoff, JobContext, job
from tests.e2e import stage

NOW = Backoff(0)


def effect(job_id: int, key: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO walk_effect (job_id, key) VALUES (%s, %s)", [job_id, key])


@job(name="walking.rows", takes_context=True, timeout=None, max_attempts=1000, backoff=NOW)
def rows(context: JobContext, first: int, last: int, seconds: float, every: int = 100) -> None:
    """Go through the groups of these numbers, each in so many seconds."""
    for group in context.each(Group.objects.filter(pk__range=(first, last)), every=every, atomic=True):
        effect(context.id, group.pk)
        time.sleep(seconds)


@job(name="walking.gated", takes_context=True, max_attempts=10, backoff=NOW)
def gated(context: JobContext, name: str, atomic: bool) -> None:
    """Work at the third row until the test opens the gate, or the job hears that it is to end."""
    for number in context.each(range(6), every=4, atomic=atomic):
        effect(context.id, number)
        if number == 2:
            stage.here().note("start", name)
            until = time.monotonic() + stage.GATE_SECONDS
            while not is_over(context, name) and time.monotonic() < until:
                time.sleep(0.005)
            stage.here().note("told", name, context.stopping.why, context.stopping.remaining())


@job(name="walking.agated", takes_context=True, max_attempts=10, backoff=NOW)
async def agated(context: JobContext, name: str, atomic: bool = False) -> None:
    """The same in a coroutine."""
    async for number in context.aeach(range(6), every=4):
        await sync_to_async(effect)(context.id, number)
        if number == 2:
            stage.here().note("start", name)
            until = time.monotonic() + stage.GATE_SECONDS
            while not is_over(context, name) and time.monotonic() < until:
                await asyncio.sleep(0.005)


def is_over(context: JobContext, name: str) -> bool:
    return stage.here().is_open(name) or bool(context.stopping) or context.cancelled


@contextmanager
def laid_out(db: Any = connection) -> Iterator[None]:
    """Have the table of effects."""
    with db.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS walk_effect")
        cursor.execute("CREATE TABLE walk_effect (job_id bigint, key bigint)")
    try:
        yield
    finally:
        with db.cursor() as cursor:
            cursor.execute("DROP TABLE walk_effect")
        Group.objects.all().delete()


def clear() -> None:
    """Delete all effects."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE walk_effect")


def effects(job_id: int) -> list[int]:
    """Return the keys of the rows that a job has had an effect for."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT key FROM walk_effect WHERE job_id = %s ORDER BY key", [job_id])
        return [key for (key,) in cursor.fetchall()]


def counts() -> Counter[int]:
    """Return how many rows have had so many effects."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT n, count(*) FROM (SELECT count(*) AS n FROM walk_effect GROUP BY key) AS of_key GROUP BY n"
        )
        return Counter(dict(cursor.fetchall()))
