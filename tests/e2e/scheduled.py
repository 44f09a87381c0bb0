"""Jobs on a schedule: imported where ``PGJOBS_TEST_CRON`` is set."""

from __future__ import annotations

import os
import threading

from django.apps import apps
from django.db import connection

from django_pgjobs import Backoff, Cron, JobContext, job
from tests.e2e import stage


@job(name="e2e.tick", takes_context=True, cron=Cron("* * * * * *", name="every second", tz="Europe/Berlin"))
def tick(context: JobContext) -> None:
    assert context.fire_at is not None
    stage.here().note("tick", context.cron_entry, context.fire_at.timestamp(), context.id)


def describe_fails(key: str) -> str:
    if apps.ready:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            stage.here().note("describes", cursor.fetchone()[0], threading.current_thread().name)
    return f"fails for {key}"


@job(name="e2e.fails", max_attempts=2, backoff=Backoff(0), description=describe_fails)
def fails(context: JobContext, key: str) -> None:
    stage.here().note("fails", key, context.attempt, context.fire_at and context.fire_at.timestamp())
    raise RuntimeError("as it should")


Cron("* * * * * *", fails.bind("f"), name="failing", overlap="after_completion")


@job(name="e2e.each_ticks")
def each_ticks(context: JobContext) -> None:
    assert context.fire_at is not None
    stage.here().note("each", context.database, context.fire_at.timestamp())


if os.environ["PGJOBS_TEST_CRON"] == "each":
    Cron("* * * * * *", each_ticks.bind(), name="each", each_database=True)
