"""Jobs of the end-to-end tests that log."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group

from django_pgjobs import Backoff, JobContext, Next, job
from tests.e2e import stage

logger = logging.getLogger("shop.orders")
logger.setLevel(logging.DEBUG)
logger.propagate = False

NOW = Backoff(0)


class Unprintable:
    def __str__(self) -> str:
        logger.info("a text that logs")
        raise ValueError("no text")


@job(name="logging.plain", takes_context=True, logs="INFO")
def plain(context: JobContext, name: str) -> None:
    """Log what the others must not mix up, and what no table takes as it is."""
    logger.debug("too low")
    logger.info("hello %s", name)
    logger.warning("%s %d", "not a number", "x")
    logger.warning("text %s", Unprintable())
    context.log.info("nul \0 and %s", "\ud800")
    thread = threading.Thread(target=logger.error, args=("of another thread",))
    thread.start()
    thread.join()
    try:
        raise LookupError("it is gone")
    except LookupError:
        logger.exception("caught")


@job(name="logging.coroutine", logs="INFO")
async def coroutine(name: str) -> None:
    logger.info("first of %s", name)
    await asyncio.sleep(0.05)
    await asyncio.gather(inside(name), sync_to_async(logger.info)("in a thread of %s", name))


async def inside(name: str) -> None:
    logger.info("in a task of %s", name)


@job(name="logging.rolled_back", atomic=True, max_attempts=2, backoff=NOW, logs="INFO", takes_context=True)
def rolled_back(context: JobContext) -> None:
    Group.objects.create(name=f"attempt {context.attempt} of {uuid4()}")
    logger.info("attempt %d", context.attempt)
    if context.attempt == 1:
        raise ValueError("once")


@job(name="logging.flood", logs="DEBUG")
def flood(lines: int) -> None:
    for number in range(lines):
        logger.debug("line %d", number)


@job(name="logging.steps", atomic=True, logs="INFO")
def steps() -> Next:
    logger.info("of the first step")
    return Next(flood.bind(1))


@job(name="logging.held", logs="INFO", timeout=None, max_attempts=2, backoff=NOW)
def held(name: str) -> None:
    """Log, and wait for the test."""
    logger.info("before the gate")
    stage.here().note("start", name)
    stage.here().wait(name)
    logger.info("behind the gate")
    stage.here().note("end", name)


@job(name="logging.quiet")
def quiet(**_: Any) -> None:
    logger.error("of a job whose lines nobody keeps")


@job(name="logging.off", logs=None)
def off() -> None:
    logger.error("of a job that keeps none")
