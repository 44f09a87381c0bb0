"""Jobs that take memory. Loaded with ``tests.e2e``. None takes more than 400 MB, whatever its worker does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from django_pgjobs import Backoff, JobContext, job
from django_pgjobs.exceptions import MemoryExceeded
from tests.e2e import stage

NOW = Backoff(0)
LEFT: list[bytes] = []
"""What outlives its job."""


def _more(megabytes: int) -> Iterator[list[bytes]]:
    taken: list[bytes] = []
    for _ in range(megabytes // 10):
        taken.append(b"x" * (10 * 1024 * 1024))
        yield taken


@job(memory=100, max_attempts=2, backoff=NOW)
def leaks(key: str, gate: str = "") -> None:
    stage.here().note("start", key)
    if gate:
        stage.here().wait(gate)
    for _taken in _more(400):
        time.sleep(0.02)
    time.sleep(30)


@job(max_attempts=2, backoff=NOW)
def takes(key: str, megabytes: int, end: str, gate: str = "") -> None:
    """It has no limit of its own."""
    stage.here().note("start", key)
    if gate:
        stage.here().wait(gate)
    for _taken in _more(megabytes):
        time.sleep(0.01)
    stage.here().wait(end)


@job(memory=100, max_attempts=1)
def leaks_deaf(key: str) -> None:
    stage.here().note("start", key)
    for _taken in _more(400):
        for _ in range(4):
            try:
                time.sleep(0.01)
            except MemoryExceeded:
                stage.here().note("stopped", key)
    stage.here().wait("never")


@job(memory=100, max_attempts=2, backoff=NOW)
async def aleaks(key: str, gate: str) -> None:
    stage.here().note("start", key)
    while not stage.here().is_open(gate):
        await asyncio.sleep(0.02)
    for _taken in _more(400):
        await asyncio.sleep(0.02)
    await asyncio.sleep(30)


@job(takes_context=True, max_attempts=1)
def leaves(context: JobContext, megabytes: int) -> int:
    for taken in _more(megabytes):
        LEFT.append(taken[-1])
    return context.attempt
