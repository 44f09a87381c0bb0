"""The jobs of the fault tests. Each plays a role, and notes its start and its end in the journal.

    act.register("k1")                                   # succeeds
    act.register("k2", "sleep", seconds=3)               # ticks in the journal while it sleeps
    act.using(max_attempts=3).register("k3", "fail", times=2)
    called.register("k4", "raise")                       # with on_abandon and on_cancel, which take a role too
    aact.register("k5", "sleep", seconds=1)              # on the event loop

``key`` is what the checker knows a job by: unlike an id it is never given out twice, not even by a server that
crashed. ``ROLES`` says what there is; ``wait`` waits for the test to open the gate of that name on its stage.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db import connection, transaction

from django_pgjobs import Abandon, Backoff, Cancel, JobContext, Snooze, current_context, job
from django_pgjobs.exceptions import JobSuspended
from django_pgjobs.models import Job
from tests.chaos import journal
from tests.e2e import stage

SOON = Backoff(0.05, factor=1)
TICK_SECONDS = 0.05

Role = Callable[..., Any]


class Told(Exception):
    """A job was told to fail."""


@job(max_attempts=5, backoff=SOON, timeout=60)
def act(key: str, role: str = "succeed", **facts: Any) -> Any:
    return perform("body", key, role, facts)


@job(max_attempts=5, backoff=SOON, timeout=60)
async def aact(key: str, role: str = "succeed", **facts: Any) -> Any:
    return await aperform("body", key, role, facts)


@job(max_attempts=2, backoff=SOON, timeout=60)
def called(key: str, role: str = "succeed", callback: str = "succeed", **facts: Any) -> Any:
    return perform("body", key, role, facts)


@job(max_attempts=2, backoff=Backoff(2, factor=1, jitter=0), timeout=60)
def patient(key: str, role: str = "succeed", **facts: Any) -> Any:
    return perform("body", key, role, facts)


@called.on_abandon
def called_on_abandon(
    context: JobContext, /, key: str, role: str = "", callback: str = "succeed", **facts: Any
) -> None:
    perform("on_abandon", key, callback, facts)


@called.on_cancel
def called_on_cancel(context: JobContext, /, key: str, role: str = "", callback: str = "succeed", **facts: Any) -> None:
    perform("on_cancel", key, callback, facts)


def perform(part: str, key: str, role: str, facts: dict[str, Any]) -> Any:
    """Play a role between a start line and an end line."""
    with noted(part, key):
        return ROLES[role](key, **facts)


async def aperform(part: str, key: str, role: str, facts: dict[str, Any]) -> Any:
    """The same on the event loop."""
    with noted(part, key):
        return await (AROLES[role](key, **facts) if role in AROLES else _at_once(role, key, facts))


@contextlib.contextmanager
def noted(part: str, key: str) -> Iterator[None]:
    """Note in the journal that the block starts, and how it ends; ``worker`` is the process above this one."""
    _note("start", part, key, worker=os.getppid())
    try:
        yield
    except BaseException as error:
        _note("end", part, key, how=_how(error))
        raise
    _note("end", part, key, how="returned")


async def _at_once(role: str, key: str, facts: dict[str, Any]) -> Any:
    return ROLES[role](key, **facts)


def _note(what: str, part: str, key: str, **facts: Any) -> None:
    context = current_context()
    journal.here().note(
        what, part=part, key=key, job=context.id, claim=context.claim_id, attempt=context.attempt, **facts
    )


def _how(error: BaseException) -> str:
    if isinstance(error, Snooze):
        return "snoozed"
    if isinstance(error, BaseExceptionGroup):  # of a TaskGroup: how the first of its tasks ended
        return _how(error.exceptions[0])
    if isinstance(error, JobSuspended | asyncio.CancelledError):  # tasks beside the body are cut off
        return "suspended"
    return "raised" if isinstance(error, Exception) else "interrupted"


# Roles


def succeed(key: str) -> str:
    return key


def sleep(key: str, seconds: float = 1.0) -> None:
    """Sleep, saying now and then that it still lives."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(TICK_SECONDS, left))
        _note("tick", "body", key)


async def asleep(key: str, seconds: float = 1.0) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(TICK_SECONDS, left))
        _note("tick", "body", key)


def fail(key: str, times: int = 1) -> None:
    """Fail the first ``times`` attempts."""
    if current_context().attempt <= times:
        raise Told(f"{key} fails {times} times")


def raises(key: str) -> None:
    raise Told(key)


def snooze(key: str, seconds: float = 0.1, times: int = 1) -> None:
    """Snooze ``times`` times; what it has done before stands in the journal."""
    done = journal.here().count("end", key=key, how="snoozed")
    if done < times:
        raise Snooze(seconds)


def cancel(key: str) -> None:
    raise Cancel("of its own will")


def abandon(key: str) -> None:
    raise Abandon("of its own will")


def wait(key: str, gate: str = "") -> None:
    stage.here().wait(gate or key)


async def await_gate(key: str, gate: str = "") -> None:
    here = stage.here()
    while not here.is_open(gate or key):
        await asyncio.sleep(0.01)


def obey(key: str, seconds: float = 20) -> None:
    """Work until asked to stop."""
    until = time.monotonic() + seconds
    while not current_context().cancelled and time.monotonic() < until:
        time.sleep(0.005)
    if current_context().cancelled:
        _note("told", "body", key, reason=current_context().cancel_reason)
        raise Told("asked to stop")


def busy(key: str, seconds: float = 1) -> None:
    """Burn the interpreter in Python code."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def deaf(key: str, seconds: float = 1) -> None:
    """Sleep in one piece, and make nothing of being interrupted."""
    with contextlib.suppress(BaseException):
        time.sleep(seconds)


def hold_gil(key: str, seconds: float = 0) -> None:
    """Never let go of the interpreter: for ever in a regular expression, or for some seconds in C."""
    if seconds:
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    else:
        re.match(r"(a+)+$", "a" * 64 + "b")


def die(key: str, how: str = "kill", times: int = 1000) -> None:
    """End its process, the first ``times`` attempts."""
    if current_context().attempt <= times:
        journal.here().note("dying", how=how)
        DEATHS[how]()


def fork(key: str, how: str = "return") -> int:
    """Fork; the child returns from the job too, or leaves, or stays."""
    child = os.fork()
    if child == 0:
        if how == "exit":
            os._exit(0)
        if how == "stay":
            time.sleep(600)
        return 0
    if how != "stay":
        os.waitpid(child, 0)
    return child


def start_program(key: str, seconds: float = 600) -> int:
    """Start a program that outlives the job."""
    return subprocess.Popen(["sleep", str(seconds)]).pid


def start_thread(key: str, seconds: float = 600) -> None:
    threading.Thread(target=time.sleep, args=(seconds,), daemon=True).start()


def block_signals(key: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))


def allocate(key: str, megabytes: int = 100, keep: bool = False) -> int:
    block = b"x" * (megabytes * 1024 * 1024)
    if keep:
        _kept.append(block)
    return len(block)


_kept: list[bytes] = []


def leave_transaction(key: str) -> None:
    transaction.atomic().__enter__()
    Job.objects.count()


def close_connection(key: str) -> None:
    connection.close()


def end_backend(key: str) -> None:
    """Have its own server process terminated."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def change_session(key: str, setting: str = "search_path", value: str = "pg_catalog") -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config(%s, %s, false)", [setting, value])


def query(key: str, seconds: float = 0.0) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [seconds])


def register_child(key: str, commit: bool = True) -> None:
    """Register a child in a transaction that is committed or rolled back; both are noted as the producer does."""
    child = f"{key}/{current_context().claim_id}"
    try:
        with transaction.atomic():
            made = act.register(child)
            journal.here().note("registering", key=child, job=made.pk)
            if not commit:
                raise Told("rolled back")
        journal.here().note("registered", key=child, fate="committed")
    except Told:
        journal.here().note("registered", key=child, fate="rolled back")


def return_value(key: str, what: str = "large") -> Any:
    return {"large": "x" * 2_000_000, "nul": "\0", "nan": float("nan"), "surrogate": "\ud800", "object": object()}[what]


def _terminate_itself() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)


DEATHS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "abort": os.abort,
    "term": _terminate_itself,
    "group": lambda: os.killpg(0, signal.SIGKILL),
}

ROLES: dict[str, Role] = {
    "succeed": succeed,
    "sleep": sleep,
    "fail": fail,
    "raise": raises,
    "snooze": snooze,
    "cancel": cancel,
    "abandon": abandon,
    "wait": wait,
    "obey": obey,
    "busy": busy,
    "deaf": deaf,
    "hold_gil": hold_gil,
    "die": die,
    "fork": fork,
    "start_program": start_program,
    "start_thread": start_thread,
    "block_signals": block_signals,
    "allocate": allocate,
    "leave_transaction": leave_transaction,
    "close_connection": close_connection,
    "end_backend": end_backend,
    "change_session": change_session,
    "query": query,
    "register_child": register_child,
    "return_value": return_value,
}

AROLES: dict[str, Role] = {"sleep": asleep, "wait": await_gate}
