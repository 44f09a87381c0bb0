"""The jobs of the benchmarks."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from typing import Any

from django.apps import apps

from benchmarks import stamps
from django_pgjobs import Event, JobContext, job


@job
def noop(number: int) -> int:
    return number


@job
def answer(number: int) -> str:
    """A job with a result of 150 bytes of JSON."""
    return f"{number:0>148}"


@job(unique=lambda number: f"key {number}")
def keyed(number: int) -> int:
    """A job with a key of its own."""
    return number


@job
def note(number: int) -> None:
    """A job that first records when it started."""
    stamps.write(os.environ["PGJOBS_BENCH_STAMPS"], number)


@job
def nap(seconds: float) -> None:
    time.sleep(seconds)


@job
async def async_nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@job
def carry(text: str) -> int:
    """A job with a big payload."""
    return len(text)


def things() -> Any:
    """Return the manager of the table; this module is imported before Django knows its models."""
    name = "benchmarks.thing"
    return apps.get_model(name)._default_manager


@job
def reads(number: int) -> str:
    """A job that reads one row."""
    return str(things().get(pk=number).name)


@job
async def areads(number: int) -> str:
    """A job on the loop that reads one row."""
    return str((await things().aget(pk=number)).name)


@job
def writes(number: int) -> None:
    """A job that writes one row."""
    things().filter(pk=number).update(count=number)


@job
def inserts(number: int) -> None:
    """A job that inserts one row."""
    things().create(name=f"another {number}")


opened: Event[None] = Event("bench.opened")


@job
def dozes(context: JobContext, number: int) -> int:
    """A durable function that sleeps for a day."""
    context.sleep(timedelta(days=1))
    return number


@job
def waits(context: JobContext, number: int) -> int:
    """A durable function that waits for a day for an event of its own."""
    context.wait_for(opened, number, timeout=timedelta(days=1))
    return number
