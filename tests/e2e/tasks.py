"""The tasks of the end-to-end tests: discovered where ``PGJOBS_TEST_TASKS`` sets ``TASKS``."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from importlib import import_module
from typing import Any

from django_pgjobs import Backoff, Cancel, Cron, Limit
from django_pgjobs.tasks import families, policy
from tests.e2e import stage

task: Any = import_module(families.FAMILY).task

NOW = Backoff(0)


@task
def effect(key: str) -> str:
    stage.here().note("effect", key)
    return key


@task
async def aeffect(key: str) -> list[str]:
    await asyncio.sleep(0)
    stage.here().note("effect", key)
    return [key, threading.current_thread().name]


@task(takes_context=True)
@policy(max_attempts=2, backoff=NOW)
def second_try(context: Any, key: str) -> list[Any]:
    context.job.progress(context.attempt, 2)
    if context.attempt == 1:
        raise LookupError(key)
    return [context.attempt, [error.exception_class_path for error in context.task_result.errors]]


@task
@policy(timeout=0.5, max_attempts=1)
def too_slow() -> None:
    time.sleep(60)


@task
@policy(max_attempts=1)
def kills_its_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task
def returns_no_json() -> Any:
    return {1, 2}


@task(takes_context=True)
def waits(context: Any, key: str) -> str:
    here = stage.here()
    here.note("start", key)
    while not here.is_open(key):
        if context.job.cancelled:
            raise Cancel
        time.sleep(0.01)
    return "done"


@task
@policy(limits=Limit(1))
def alone(key: str, number: int) -> None:
    here = stage.here()
    here.note("begins", key, number)
    time.sleep(0.05)
    here.note("ends", key, number)


if os.environ.get("PGJOBS_TEST_TASKS_CRON"):

    @task
    @policy(cron=Cron("* * * * * *", name="task of every second"))
    def tick() -> None:
        stage.here().note("tick")


def _note(what: str, task_result: Any) -> None:
    """Note the signal, what it says, and what the row says then."""
    status = str(task_result.status)
    task_result.refresh()
    stage.here().note(what, task_result.id, status, task_result.status, task_result.attempts)


if os.environ.get("PGJOBS_TEST_TASKS_SIGNALS"):

    def note_start(task_result: Any, **_: Any) -> None:
        _note("started", task_result)

    def note_end(task_result: Any, **_: Any) -> None:
        _note("finished", task_result)

    families.task_started.connect(note_start)
    families.task_finished.connect(note_end)
