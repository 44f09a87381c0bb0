"""The small cast of job functions used everywhere."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from django_pgjobs import Abandon, Backoff, Cancel, JobContext, Snooze, current_context, job

NOW = Backoff(0)


@job
def succeeds(value: object = None) -> object:
    return value


@job(max_attempts=3, backoff=NOW)
def fails(text: str = "no") -> None:
    raise ValueError(text)


@job
def sleeps(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@job
async def asleeps(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@job(max_attempts=2, backoff=NOW)
def exits(status: int = 3) -> None:
    os._exit(status)


@job(max_attempts=2, backoff=NOW)
def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@job(max_attempts=2, backoff=NOW)
def leaves(how: str) -> None:
    raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "generator": GeneratorExit}[how]("left")


@job(timeout=1, max_attempts=1)
def hangs() -> None:
    while True:
        pass


@job
def snoozes(seconds: float = 0) -> int:
    context = current_context()
    if not context.headers.get("again"):
        raise Snooze(seconds)
    return context.attempt


@job
def cancels(reason: str = "") -> None:
    raise Cancel(reason)


@job
def abandons(reason: str = "") -> None:
    raise Abandon(reason)


@job(takes_context=True)
def reports(context: JobContext) -> dict[str, object]:
    context.progress(1, 2, "half")
    return {"id": context.id, "attempt": context.attempt, "claim": context.claim_id}


@job
def overflows() -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1)

    sys.setrecursionlimit(1000)
    deeper(0)


@job
def returns_nonsense() -> object:
    return object()


@job
def calls_back() -> None:
    raise Abandon("calls back")


@calls_back.on_abandon
def calls_back_abandoned(context: JobContext) -> None:
    pass


@calls_back.on_cancel
def calls_back_cancelled(context: JobContext) -> None:
    pass
