"""Jobs that use libraries which need their process to be like any other: children, streams, exit callbacks."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from django_pgjobs import Batch, Unique, job, register_many
from django_pgjobs.models import Job
from tests.e2e import importing, stage

_drawn: list[float] = []


@job(max_attempts=1, timeout=30)
def maps_in_a_pool(method: str) -> list[int]:
    """Its context manager ends the pool by ``terminate``, whatever its children do."""
    with multiprocessing.get_context(method).Pool(2) as pool:
        pool.apply_async(time.sleep, (60,))
        return pool.map(abs, [-1, -2, -3])


@job(max_attempts=1, timeout=30)
def maps_in_an_executor(method: str) -> list[int]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        return list(pool.map(abs, [-1, -2, -3]))


@job(max_attempts=1, timeout=30)
def ends_children() -> dict[str, int | None]:
    """How children end that were forked or started and are ended by signals."""
    ended: dict[str, int | None] = {}
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        os.kill(child.pid or 0, number)
        child.join(10)
        ended[number.name] = child.exitcode
        child.kill()
    return {**ended, "false": subprocess.run(["false"], check=False).returncode}


@job(max_attempts=1, timeout=1)
def waits_for_a_child(key: str) -> int | None:
    """Takes longer than its timeout and swallows its interrupt: only the end of its child lets it go on."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    while child.is_alive():
        try:
            time.sleep(0.02)
        except BaseException as error:
            stage.here().note("swallowed", key, type(error).__name__)
    return child.exitcode


@job(max_attempts=1)
def prints(key: str) -> dict[str, object]:
    """Prints a line, waits for the test, and prints without an end of line."""
    print(f"printed {key}")  # noqa: T201
    stage.here().note("printed", key)
    stage.here().wait(key)
    print(f"half a line of {key}", end="")  # noqa: T201
    return {"stderr": sys.stderr.line_buffering}


@job(max_attempts=1)
def dies_by(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


@job
def tells_flags() -> dict[str, object]:
    """How the interpreter of an executor was started."""
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if not name.startswith(("_", "n_", "count"))}
    return {**{name: int(value) for name, value in flags.items() if not callable(value)}, "argv": sys.orig_argv}


@job(max_attempts=1)
def reports(key: str, fails: bool = False) -> None:
    """Leaves a message and a span with libraries that send them later."""
    import sentry_sdk  # here: only where a test has set it up
    from opentelemetry import trace

    with trace.get_tracer(__name__).start_as_current_span(f"span of {key}"):
        sentry_sdk.capture_message(f"message of {key}")
    if fails:
        raise ValueError(f"failure of {key}")


@job
def draws() -> dict[str, object]:
    """The first random number that a job of this process draws."""
    if not _drawn:
        _drawn.append(random.random())
    time.sleep(0.2)  # so that other executors get some, too
    return {"pid": os.getpid(), "first": _drawn[0]}


@job(max_attempts=1)
def writes_into_pipe() -> str:
    """Tell what the pipe of the import is here."""
    return importing.write_into_pipe()


@job(max_attempts=1)
def registers_of_any_kind() -> list[str]:
    """Use what django-pgjobs imports late, and tell what that has imported."""
    before = set(sys.modules)
    draws.using(unique="one", delay=3600).register()
    first = draws.using(unique=Unique("one", on_conflict="postpone"), delay=3600).register()
    register_many([draws.using(after=[first], tags=["t"]).bind()] * 2)
    with Batch("late", settled=draws.bind()) as batch:
        batch.add(draws.bind())
    Job.objects.filter(pk=first.pk).cancel()
    return sorted(name for name in set(sys.modules) - before if name.startswith("django_pgjobs."))
