"""Jobs that behave badly towards their process. Loaded with ``tests.e2e``."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from django.db import connection

from django_pgjobs import job
from django_pgjobs.models import Job
from tests.e2e import stage


@job
def behaves_badly(how: str) -> str:
    """Does what a job should not, and returns."""
    stage.here().note("badly", how)
    BADLY[how]()
    return how


@job
def looks_around() -> dict[str, object]:
    """What a job finds in its process."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('search_path'), current_user::text, 1 + 1")
        search_path, role, two = cursor.fetchone()
    Job.objects.count()
    return {"search_path": search_path, "role": role, "two": two, "pid": os.getpid(), "clock": time.time() > 1e9}


class Raises:
    """Its end raises."""

    def __del__(self) -> None:
        raise RuntimeError("raised while an object goes")


def _leaves_garbage() -> None:
    Raises()
    ring = [Raises()]
    ring.append(ring)  # type: ignore[arg-type]


def _sql(text: str) -> Callable[[], None]:
    def run() -> None:
        with connection.cursor() as cursor:
            cursor.execute(text)

    return run


def _starts_threads() -> None:
    def linger() -> None:
        Job.objects.count()
        time.sleep(3600)

    for _ in range(20):
        threading.Thread(target=linger, daemon=True).start()


def _closes_standard_streams() -> None:
    for descriptor in (0, 1, 2):
        os.close(descriptor)


def _handles_signals() -> None:
    """Only the main thread may: a job's is another."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except ValueError:
        return
    raise AssertionError("a job runs in the main thread")


def _replaces_the_clock() -> None:
    time.time = lambda: 0.0
    time.monotonic = lambda: 0.0
    time.sleep = lambda _seconds: None


def _raises_a_long_chain() -> None:
    error: BaseException = ValueError("link 0")
    for number in range(1, 5000):
        following = ValueError(f"link {number}")
        following.__cause__ = error
        error = following
    raise error


def _overflows() -> None:
    _overflows()


def _sets_the_environment() -> None:
    os.environ.update(
        DATABASE_URL="postgres://nobody@nowhere/nothing", DJANGO_SETTINGS_MODULE="nothing", TZ="Asia/Tokyo"
    )
    time.tzset()


def _changes_the_directory() -> None:
    left = tempfile.mkdtemp()
    os.chdir(left)
    os.rmdir(left)


def _sets_an_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.01)


BADLY: dict[str, Callable[[], object]] = {
    "search_path": _sql("SET search_path = nowhere"),
    "role": _sql("SET ROLE pg_monitor"),
    "session authorization": _sql("SET SESSION AUTHORIZATION pg_monitor"),
    "statement_timeout": _sql("SET statement_timeout = 1"),
    "read only": _sql("SET default_transaction_read_only = on"),
    "lock": _sql("SELECT pg_advisory_lock(42)"),
    "listen": _sql("LISTEN nowhere"),
    "prepared": _sql("PREPARE nothing AS SELECT 1"),
    "signals blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
    "signals handled": _handles_signals,
    "alarm": _sets_an_alarm,
    "threads": _starts_threads,
    "directory": _changes_the_directory,
    "environment": _sets_the_environment,
    "standard streams": _closes_standard_streams,
    "clock": _replaces_the_clock,
    "garbage": _leaves_garbage,
    "logging": logging.shutdown,
    "logging off": lambda: logging.disable(logging.CRITICAL),
    "no collection": gc.disable,
    "recursion limit": lambda: sys.setrecursionlimit(200),
    "umask": lambda: os.umask(0o777),
    "nice": lambda: os.nice(10),
    "print": lambda: print("x" * 1_000_000),  # noqa: T201
    "exit": lambda: sys.exit(1),
    "chain": _raises_a_long_chain,
    "recursion": _overflows,
    "memory": lambda: bytearray(1 << 62),
    "generator": lambda: next(iter(())),
    "hard exit": lambda: os._exit(0),
}
