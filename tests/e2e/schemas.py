"""Jobs that note the schema they find themselves in, and what a setting calls to learn the names of schemas."""

from __future__ import annotations

import json
import os
import time

from asgiref.sync import sync_to_async
from django.db import connection

from django_pgjobs import Backoff, Cron, Event, JobContext, job
from tests.e2e import stage

FILE = "schemas.json"


def names() -> list[str]:
    """The schemas that the test names now."""
    found: list[str] = json.loads((stage.here().path / FILE).read_text())
    return found


def current() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        return str(cursor.fetchone()[0])


def note(context: JobContext, *words: object) -> None:
    stage.here().note("schema", *words, context.schema, current(), context.database)


@job(name="schemas.notes")
def notes(context: JobContext, key: object = "plain", seconds: float = 0) -> None:
    time.sleep(seconds)
    note(context, key)


@job(name="schemas.anotes")
async def anotes(context: JobContext, key: object = "async") -> None:
    await sync_to_async(note)(context, key)


@job(name="schemas.silent")
def silent() -> None:
    """Does nothing."""


@job(name="schemas.waits")
def waits(context: JobContext, gate: str) -> None:
    note(context, "waits")
    stage.here().wait(gate)


opened: Event[str] = Event("schemas.opened")


@job(name="schemas.hears")
def hears(context: JobContext) -> None:
    note(context, context.wait_for(opened, "door", timeout=60))


@job(name="schemas.fails_once", backoff=Backoff(0.2))
def fails_once(context: JobContext) -> None:
    note(context, "tries")
    if context.attempt == 1:
        raise ValueError("once")


@job(name="schemas.spreads")
def spreads(context: JobContext) -> None:
    notes.register("child")
    notes.using(delay=1.5).register("later")
    anotes.register("achild")


@job(name="schemas.aspreads")
async def aspreads(context: JobContext) -> None:
    await notes.aregister("child-of-async")


@job(name="schemas.atomically", atomic=True)
def atomically(context: JobContext) -> None:
    note(context, "atomic")
    notes.register("child-of-atomic")


if os.environ.get("PGJOBS_TEST_CRON") == "schemas":
    Cron("* * * * * */2", notes.bind("everywhere"), name="everywhere", each_database=True)
    Cron("* * * * * */2", notes.bind("at-home"), name="at home")
