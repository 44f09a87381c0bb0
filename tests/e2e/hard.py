"""Jobs that do not stop by themselves, each in its own way. They note what stopped them."""

from __future__ import annotations

import asyncio
import os
import queue
import subprocess
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_pgjobs import Backoff, JobContext, job
from django_pgjobs.exceptions import JobInterrupted
from tests.e2e import stage

NOW = Backoff(0)


def _sleeps() -> None:
    while True:
        time.sleep(0.02)


def _waits_on_a_queue() -> None:
    while True:
        try:
            queue.Queue[int]().get(timeout=0.02)
        except queue.Empty:
            continue


def _spins() -> None:
    while True:
        pass


def _swallows_exceptions() -> None:
    while True:
        try:
            time.sleep(0.02)
        except Exception:
            continue


def _swallows_everything() -> None:
    while True:
        try:
            time.sleep(0.02)
        except BaseException:
            stage.here().note("swallowed")


def _asks_the_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)")


def _asks_in_a_transaction() -> None:
    with transaction.atomic():
        connection.ensure_connection()
        with transaction.atomic():
            _asks_the_database()


def _runs_a_program() -> None:
    subprocess.run(["sleep", "60"], check=True)


def _moves_away() -> None:
    """Out of the process group that its executor leads, into the supervisor's."""
    os.setpgid(0, os.getpgid(os.getppid()))
    stage.here().note("moved", os.getpgid(0))
    _swallows_everything()


WAYS: dict[str, Any] = {
    "moves away": _moves_away,
    "sleeps": _sleeps,
    "queue": _waits_on_a_queue,
    "spins": _spins,
    "swallows exceptions": _swallows_exceptions,
    "swallows everything": _swallows_everything,
    "database": _asks_the_database,
    "transaction": _asks_in_a_transaction,
    "program": _runs_a_program,
}


@job(max_attempts=2, backoff=NOW, retry_on=(KeyError,))
def goes_on(how: str, key: str) -> None:
    """Its retry rule names no exception of ours: for a timeout it is not asked."""
    here = stage.here()
    here.note("start", key)
    try:
        WAYS[how]()
    except BaseException as error:
        here.note("stopped", key, type(error).__name__)
        raise
    finally:
        here.note("finally", key)


@job(max_attempts=2, backoff=NOW, takes_context=True)
def comes_through(context: JobContext, key: str) -> str:
    """Catches what stops it and returns all the same."""
    stage.here().note("start", key)
    try:
        _sleeps()
    except JobInterrupted as error:
        stage.here().note("stopped", key, type(error).__name__, context.cancelled, context.remaining())
    return "came through"


@job(max_attempts=2, backoff=NOW)
async def agoes_on(how: str, key: str) -> None:
    here = stage.here()
    here.note("start", key)
    try:
        await AWAYS[how]()
    except BaseException as error:
        here.note("stopped", key, type(error).__name__)
        raise
    finally:
        here.note("finally", key)


async def _asleeps() -> None:
    await asyncio.sleep(60)


async def _aswallows() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stage.here().note("swallowed")


AWAYS: dict[str, Any] = {
    "sleeps": _asleeps,
    "database": sync_to_async(_asks_the_database),
    "swallows": _aswallows,
}


@job(max_attempts=1)
def gives_up_slowly(key: str) -> None:
    raise ValueError("at once")


@gives_up_slowly.on_abandon
def never_ends(context: JobContext, key: str) -> None:
    stage.here().note("callback", key)
    try:
        _sleeps()
    finally:
        stage.here().note("callback stopped", key)


@job(max_attempts=1)
def ends_about(n: int, seconds: float) -> int:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.0005)
    return n
