"""The jobs of the end-to-end tests. They leave traces on the stage, and wait there for the test's word."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.urls import get_script_prefix
from django.utils import timezone, translation

from django_pgjobs import (
    Abandon,
    Backoff,
    Batch,
    Cancel,
    Flow,
    JobContext,
    Snooze,
    current_context,
    job,
    register_many,
)
from django_pgjobs.exceptions import SoftDeadlinePassed
from django_pgjobs.models import Job
from tests.chaos import guests  # noqa: F401 (its jobs are registered)
from tests.e2e import (  # noqa: F401 (their jobs are registered)
    atomic,
    decorated,
    durable,
    flows,
    hard,
    hostile,
    leaking,
    libraries,
    logging_jobs,
    loop_calls,
    machines,
    remembering,
    sessions,
    stage,
    stormy,
    surroundings,
    tenants,
    walking,
)
from tests.e2e.values import RESULTS

NOW = Backoff(0)

if os.environ.get("PGJOBS_TEST_BOOT") == "raises" and "executor" in sys.argv:
    raise RuntimeError("the jobs of this project cannot be imported")
if os.environ.get("PGJOBS_TEST_BOOT") == "killed" and "executor" in sys.argv and not stage.here().is_open("killed"):
    stage.here().open("killed")
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ.get("PGJOBS_TEST_BOOT") == "sleeps" and "executor" in sys.argv:
    time.sleep(60)
if os.environ.get("PGJOBS_TEST_BOOT") == "breaks" and "executor" in sys.argv and stage.here().is_open("broken"):
    raise RuntimeError("the new code of this project cannot be imported")
if os.environ.get("PGJOBS_TEST_CRON"):
    from tests.e2e import scheduled  # noqa: F401
if os.environ.get("PGJOBS_TEST_NEWER"):
    from tests.e2e import newer  # noqa: F401
if os.environ.get("PGJOBS_TEST_LIMITED"):
    from tests.e2e import limited  # noqa: F401
if os.environ.get("PGJOBS_TEST_INCIDENTS"):
    from tests.e2e import incidents  # noqa: F401


@job
def script_prefix() -> str:
    return get_script_prefix()


@job
async def ascript_prefix() -> str:
    return await sync_to_async(get_script_prefix)()


@job
def effect(key: object, seconds: float = 0) -> object:
    time.sleep(seconds)
    stage.here().note("effect", key)
    return key


@job(sequence="order:{sequence}", max_attempts=3, backoff=lambda *_: 0.02)
def in_order(sequence: int, number: int) -> None:
    if random.random() < 0.3:
        raise ValueError("not now")


@job(sequence="both:{sequence}", max_attempts=3, backoff=lambda *_: 0.02)
def in_turn(sequence: int, number: int, queue: str) -> None:
    """Note when it begins and is over, and in which worker; fails at times."""
    mark = (os.getppid(), queue, sequence, number)
    stage.here().note("begin", *mark)
    try:
        time.sleep(0.01)
        if random.random() < 0.2:
            raise ValueError("not now")
    finally:
        stage.here().note("over", *mark)


@job
async def aeffect(key: object, seconds: float = 0) -> object:
    await asyncio.sleep(seconds)
    stage.here().note("effect", key)
    return key


@job
def notes_its_home(context: JobContext, key: object, seconds: float = 0) -> None:
    time.sleep(seconds)
    stage.here().note("home", key, context.database)


@job
async def anotes_its_home(context: JobContext, key: object) -> None:
    stage.here().note("home", key, context.database)


@job
def spreads(context: JobContext) -> None:
    """Registers others in each way; every one notes its home."""
    context.gather([notes_its_home.bind("gathered")])
    notes_its_home.using(after=notes_its_home.register("child")).register("after")
    register_many([notes_its_home.bind("many")])
    with Batch(settled=notes_its_home.bind("settled")) as batch:
        batch.add(notes_its_home.bind("member"))
    flow = Flow()
    flow.add(notes_its_home.bind("second node"), after=flow.add(notes_its_home.bind("node")))
    flow.register()


@job
async def aspreads(context: JobContext) -> None:
    await notes_its_home.aregister("achild")


@job
def no_op() -> None:
    pass


@job(max_attempts=3, backoff=NOW, description="waits for {key}")
def waits(key: object) -> object:
    stage.here().note("start", key)
    stage.here().wait(str(key))
    stage.here().note("end", key)
    return key


@job
def bypassed(key: str) -> None:
    stage.here().note("bypassed", key)
    stage.here().wait(key)
    stage.here().note("bypassed-end", key)


@job
def bypasses(key: str) -> None:
    bypassed.using(bypass=True).register(key)


@job(max_attempts=3, backoff=NOW)
async def awaits(key: object) -> object:
    here = stage.here()
    here.note("start", key)
    while not here.is_open(str(key)):
        await asyncio.sleep(0.01)
    here.note("end", key)
    return key


@job(max_attempts=3, backoff=Backoff(2, factor=3))
def fails_thrice() -> None:
    stage.here().note("try", current_context().id)
    raise ValueError("not today")


@job(max_attempts=2, backoff=NOW)
def measures(*, fails: bool) -> float:
    """Last for a moment, and say for how long."""
    began = time.monotonic()
    time.sleep(0.2)
    took = time.monotonic() - began
    if fails:
        raise ValueError(f"after {took}")
    return took


@job(max_attempts=2, backoff=NOW)
def doomed(callback: str = "") -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


@doomed.on_abandon
def after_doom(context: JobContext, callback: str = "") -> None:
    stage.here().note("on_abandon", context.id, type(context.error).__name__, current_context().attempt)
    if (error := context.error) is not None:
        line = error.traceback.strip().splitlines()[-1:]
        stage.here().note("ended_by", context.id, error.kind, error.message, *(kind for kind, _ in error.chain), *line)
    ACTS[callback]()


@job(max_attempts=1)
def stops(context: JobContext, key: str) -> str:
    """Works until its process is about to stop, and gives itself back then; the second time it has nothing to do."""
    if stage.here().count("start", key):
        return "continued"
    stage.here().note("start", key)
    until = time.monotonic() + 20
    while not context.stopping and time.monotonic() < until:
        time.sleep(0.005)
    stage.here().note("stops", key, context.stopping.why, context.stopping.remaining())
    raise Snooze(0)


@job(max_attempts=1)
async def astops(context: JobContext, key: str) -> str:
    if stage.here().count("start", key):
        return "continued"
    stage.here().note("start", key)
    await asyncio.wait_for(context.stopping.event.wait(), 20)
    stage.here().note("stops", key, context.stopping.why, context.stopping.remaining())
    raise Snooze(0)


@job(takes_context=True, max_attempts=3, backoff=NOW)
def obedient(context: JobContext, end: str = "fail", seconds: float = 20) -> str:
    """Works until somebody asks it to stop; notes when it saw that."""
    stage.here().note("start", context.id)
    until = time.monotonic() + seconds
    while not context.cancelled and time.monotonic() < until:
        time.sleep(0.005)
    stage.here().note("saw", context.id, context.cancelled, context.cancelled_by, context.cancel_reason)
    if end == "fail":
        raise RuntimeError("stopped half way")
    if end == "cancel":
        raise Cancel("as asked")
    return "finished all the same"


@job(max_attempts=3, backoff=NOW)
def watched(key: str, callback: str = "") -> None:
    stage.here().note("start", key)
    stage.here().wait(key)
    raise RuntimeError("failed after the wait")


@watched.on_cancel
def after_cancel(context: JobContext, key: str, callback: str = "") -> None:
    stage.here().note("on_cancel", context.id)
    ACTS[callback]()


@job(max_attempts=2, backoff=NOW)
def dies(how: str, gate: str = "") -> None:
    stage.here().note("dies", current_context().id)
    if gate:
        stage.here().wait(gate)
    ACTS[how]()


def works(how: str) -> None:
    if how == "query":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(30)")
    if how == "queries":
        with transaction.atomic(), connection.cursor() as cursor:
            while True:
                cursor.execute("SELECT 1")
    while how != "query":
        time.sleep(0.005)


@job(timeout=(0.3, 20), max_attempts=2, backoff=NOW)
def tidies(how: str) -> list[str]:
    """Works until it is told; tidies up by a query, and says how often it was told."""
    told = []
    try:
        works(how)
    except SoftDeadlinePassed as error:
        if how == "raise":
            raise
        told.append(str(error))
    Job.objects.filter(pk=current_context().id).count()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        time.sleep(0.005)
    return told


@job(timeout=(0.3, 20), max_attempts=2, backoff=NOW)
async def atidies(how: str) -> list[str]:
    told = []
    if how == "raise":
        await asyncio.sleep(30)
    child = asyncio.get_running_loop().create_task(asyncio.sleep(30 if how == "wait_for" else 0))
    try:
        if how == "group":
            async with asyncio.TaskGroup() as group:
                child = group.create_task(asyncio.sleep(30))
        elif how == "wait_for":
            await asyncio.wait_for(child, 25)
        else:
            await asyncio.sleep(30)
    except* SoftDeadlinePassed as errors:
        told = [str(error) for error in errors.exceptions]
    await asyncio.sleep(1)
    return told if child.done() else ["its child goes on"]


@job(timeout=(0.4, 20), max_attempts=1)
def starts_slowly() -> float:
    """Says after how many seconds of its own it was told."""
    began = time.monotonic()
    try:
        works("")
    except SoftDeadlinePassed:
        return time.monotonic() - began
    return -1.0


@job(timeout=(0.4, 20), max_attempts=1)
async def astarts_slowly() -> float:
    began = time.monotonic()
    try:
        await asyncio.sleep(30)
    except SoftDeadlinePassed:
        return time.monotonic() - began
    return -1.0


@job(timeout=(0.2, 1), max_attempts=1)
def goes_on() -> None:
    """Catches what it is told, and works until it is stopped."""
    try:
        works("")
    except SoftDeadlinePassed:
        stage.here().note("told", current_context().id)
        works("")


@job(max_attempts=3, backoff=NOW, on_crash="abandon")
def crashes(how: str) -> None:
    stage.here().note("crashes", current_context().id)
    ACTS[how]()


@crashes.on_abandon
def after_crash(context: JobContext, how: str) -> None:
    stage.here().note("on_abandon", context.id, context.attempt)


@job(max_attempts=1)
def tells(callback: str) -> str:
    return f"told {callback}"


@tells.on_success
def tell(context: JobContext, callback: str) -> None:
    stage.here().note("on_success", context.id, Job.objects.get(pk=context.id).result)
    ACTS[callback]()


@job(max_attempts=1)
def tells_later(gate: str, seconds: float = 0) -> None:
    pass


@tells_later.on_success
def tell_later(context: JobContext, gate: str, seconds: float = 0) -> None:
    stage.here().note("telling", gate)
    stage.here().wait(gate)
    time.sleep(seconds)


@job(max_attempts=1)
async def atells() -> str:
    return "told"


@atells.on_success
async def atell(context: JobContext) -> None:
    stage.here().note("on_success", context.id, "async")


@job(max_attempts=1)
def dies_once(how: str) -> None:
    stage.here().note("dies", current_context().id)
    ACTS[how]()


@job(max_attempts=1)
async def anaps(key: object, seconds: float) -> object:
    """Notes its start; ends its process in the middle of its nap if its key is ``dies``."""
    stage.here().note("start", current_context().id)
    await asyncio.sleep(seconds / 2)
    if key == "dies":
        ACTS["kill"]()
    await asyncio.sleep(seconds / 2)
    return key


@job(timeout=1, max_attempts=1)
def spins(key: object = "", gate: str = "") -> None:
    stage.here().note("start", key, os.getpid())
    while True:
        pass


@job(timeout=1, max_attempts=1)
def holds_the_gil() -> None:
    stage.here().note("start", "gil", os.getpid())
    re.match(r"(a+)+$", "a" * 64 + "b")


@job(timeout=1, max_attempts=1)
async def spins_on_the_loop() -> None:
    stage.here().note("start", "loop", os.getpid())
    while True:
        pass


@job
def holds_the_gil_for_ever() -> None:
    stage.here().note("start", "gil", os.getpid())
    re.match(r"(a+)+$", "a" * 64 + "b")


@job
def holds_the_gil_for(seconds: float) -> None:
    """Sorting compares in C, and no comparison of texts lets another thread run."""
    stage.here().note("start", "gil", os.getpid())
    texts = [str(n * 7919 % 1_000_003) for n in range(200_000)]
    until = time.monotonic() + seconds
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    while time.monotonic() < until:
        sorted(texts)
    sys.setswitchinterval(interval)
    stage.here().note("held")


@job(max_attempts=1)
def breaks_the_channel() -> None:
    """Closes descriptors that are not its own, as a careless daemoniser does."""
    time.sleep(0.1)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        with contextlib.suppress(OSError):
            if descriptor > 2 and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as theirs:
                    if theirs.family == socket.AF_UNIX:
                        theirs.shutdown(socket.SHUT_RDWR)
    time.sleep(30)


_eaten: list[bytearray] = []


@job(max_attempts=1)
def eats_memory(megabytes: int) -> int:
    """Takes memory, touches it, and never gives it back."""
    _eaten.append(bytearray(b"x" * (1024 * 1024)) * megabytes)
    stage.here().note("ate", os.getpid(), megabytes)
    return os.getpid()


@job
def steers(how: str) -> int:
    """Snooze, Cancel or Abandon at the first start; the second one succeeds."""
    context = current_context()
    if not stage.here().count("steers", context.id):
        stage.here().note("steers", context.id)
        raise STEERINGS[how]
    return context.attempt


@job(max_attempts=2, backoff=NOW)
def says_escaped(words: str, how: str) -> None:
    """Raises with the words unescaped: what no payload can carry."""
    text = words.encode().decode("unicode_escape")
    raise {"fail": ValueError, "cancel": Cancel, "abandon": Abandon, "key": KeyError}[how](text)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit("even its message leaves")


@job(max_attempts=1)
def unspeakable() -> None:
    raise Unspeakable


@job
def returns(what: str) -> Any:
    stage.here().note("returns", what)
    return RESULTS[what]()


@job(strict_results=True)
def returns_strictly(what: str) -> Any:
    return returns(what)


@job
async def leaves_in_a_subtask() -> str:
    async def leaving() -> None:
        raise SystemExit("from a sub-task")

    task = asyncio.get_running_loop().create_task(leaving())
    await asyncio.sleep(0.2)
    del task
    return "still here"


@job(max_attempts=1)
async def aleaves(how: str) -> None:
    raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "cancelled": asyncio.CancelledError}[how]("left")


@job
def swallows(text: str, blob: bytes = b"") -> list[int]:
    return [len(text), len(blob)]


# Hygiene


@job
def looks() -> dict[str, object]:
    """What a job finds when it starts."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('TimeZone'), pg_backend_pid(), now() = statement_timestamp()")
        zone, backend, fresh = cursor.fetchone()
    return {
        "autocommit": connection.get_autocommit(),
        "atomic": connection.in_atomic_block,
        "database_zone": zone,
        "zone": timezone.get_current_timezone_name(),
        "language": translation.get_language(),
        "backend": backend,
        "pid": os.getpid(),
        "fresh": fresh,
    }


@job(max_attempts=1)
def makes_a_mess(how: str) -> None:
    stage.here().note("mess", how)
    MESSES[how]()


def _leaves_a_transaction() -> None:
    transaction.atomic().__enter__()
    Job.objects.count()


def _sets_the_database_zone() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Asia/Tokyo'")


def _breaks_its_connection() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def _leaves_a_failed_block() -> None:
    transaction.atomic().__enter__()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1/0")


MESSES: dict[str, Any] = {
    "transaction": _leaves_a_transaction,
    "failed block": _leaves_a_failed_block,
    "autocommit": lambda: connection.set_autocommit(False),
    "zone": lambda: timezone.activate("Asia/Tokyo"),
    "database zone": _sets_the_database_zone,
    "language": lambda: translation.activate("de"),
    "closes": lambda: connection.close(),
    "breaks": _breaks_its_connection,
}


@job
def sleeps_in_the_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(60)")


@job
async def alooks() -> dict[str, object]:
    count = await Job.objects.filter(pk=current_context().id).acount()
    return {"language": translation.get_language(), "zone": timezone.get_current_timezone_name(), "jobs": count}


@job
async def amakes_a_mess() -> None:
    timezone.activate("Asia/Tokyo")
    translation.activate("de")


@job
def forks(how: str) -> int:
    """Returns in the parent only; the child returns from the job function too, or leaves as it pleases."""
    if how == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=stage.here().note, args=("child", os.getppid()))
        child.start()
        child.join(10)
        return int(child.exitcode or 0)
    pid = os.fork()
    stage.here().note("child" if pid == 0 else "parent", current_context().id)
    if pid:
        os.waitpid(pid, 0)
    return pid


@job
async def aforks() -> str:
    pid = os.fork()
    stage.here().note("child" if pid == 0 else "parent", current_context().id)
    if pid:
        await asyncio.to_thread(os.waitpid, pid, 0)
    return "parent" if pid else "child"


@job
def starts_a_thread(key: str) -> None:
    threading.Thread(target=stage.here().note, args=("thread", key)).start()


@job(timeout=2, max_attempts=1)
def starts_a_program(seconds: float, inherit: bool = False) -> None:
    """A child process that outlives the job; by ``os.system`` it would inherit what is inheritable."""
    stage.here().note("program", current_context().id)
    if inherit:
        os.system(f"sleep {seconds} &")
    else:
        subprocess.Popen(["sleep", str(seconds)])


@job
def descriptors_of_a_child() -> list[str]:
    """What a program inherits that is started without ``close_fds``."""
    text = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], close_fds=False, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return [line.partition(" -> ")[2] for line in text.splitlines() if "socket:" in line or "memfd" in line]


@job(takes_context=True)
def progresses(context: JobContext, key: str) -> None:
    context.progress(3, 10, "the third of ten")
    stage.here().note("progress", key)
    stage.here().wait(key)


@job
def headers() -> dict[str, object]:
    return current_context().headers


@job
async def aheaders() -> dict[str, object]:
    return current_context().headers


def _sleeps_a_minute() -> None:
    time.sleep(60)


def _raises() -> None:
    raise RuntimeError("the callback fails too")


STEERINGS = {
    "snooze": Snooze(0.5),
    "snooze long": Snooze(60),
    "cancel": Cancel("no need"),
    "abandon": Abandon("no use"),
}

ACTS: dict[str, Any] = {
    "": lambda: None,
    "raise": _raises,
    "sleep": _sleeps_a_minute,
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
}
