"""``async def`` jobs that call what is synchronous, in the threads beside their loop. Loaded with ``tests.e2e``."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection

from django_pgjobs import current_context, job
from django_pgjobs.models import Job
from tests.e2e import sessions, stage


class Stray(BaseException):
    """What no ``except Exception`` catches."""


def _backend() -> int:
    connection.ensure_connection()
    return connection.connection.info.backend_pid  # type: ignore[no-any-return]


def _send(text: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchone()[0] if cursor.description else None


@job(max_attempts=1)
async def asks_once() -> list[int]:
    """Return the server process and the thread that have served the query."""
    await Job.objects.filter(pk=current_context().id).acount()
    return [await sync_to_async(_backend)(), await sync_to_async(threading.get_ident)()]


@job(max_attempts=1)
async def aleaves_behind(how: str) -> int:
    return await sync_to_async(sessions.leaves_behind)(how)


@job(max_attempts=1)
async def atells_its_session() -> list[Any]:
    found = await sync_to_async(sessions.tells_its_session)()
    return [found, await sync_to_async(_backend)()]


@job(max_attempts=1)
async def asks_in_turns() -> dict[str, Any]:
    """One transaction over many calls, of the job and of its tasks, while neighbours do the same."""
    me = current_context().id
    await sync_to_async(_send)(f"SET app.me = '{me}'")
    await sync_to_async(_send)("BEGIN")
    await Job.objects.filter(pk=me).aupdate(description="rolled back")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sync_to_async(_backend)()) for _ in range(5)]
    await asyncio.sleep(0.2)
    inside = await Job.objects.values_list("description", flat=True).aget(pk=me)
    await sync_to_async(_send)("ROLLBACK")
    return {
        "backends": len({task.result() for task in tasks}),
        "inside": inside,
        "outside": await Job.objects.values_list("description", flat=True).aget(pk=me),
        "setting": await sync_to_async(_send)("SELECT current_setting('app.me')") == str(me),
    }


@job(max_attempts=1)
async def asleeps_in_the_database(key: str) -> None:
    stage.here().note("backend", key, await sync_to_async(_backend)())
    await sync_to_async(_send)("SELECT pg_sleep(60)")


@job(max_attempts=1)
async def leaves_a_task() -> None:
    """Its task goes on when the job has ended, and sets something then."""

    async def later() -> None:
        await asyncio.to_thread(here.wait, "later")
        await sync_to_async(_send)("SET app.tenant = 'other'")
        here.note("later", await sync_to_async(_backend)())

    here = stage.here()
    await Job.objects.filter(pk=current_context().id).acount()
    kept.append(asyncio.get_running_loop().create_task(later()))


kept: list[Any] = []


@job
def strikes(ident: int) -> int:
    """Raise an exception from outside in a thread; return in how many it was set."""
    count: int = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Stray))
    return count


@job(max_attempts=1)
async def forks_in_a_call() -> list[int]:
    """Return the server process before and after, and the exit status of the child, which returns from the call too."""
    before = await sync_to_async(_backend)()
    child = await sync_to_async(os.fork)()
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    await Job.objects.filter(pk=current_context().id).acount()
    return [before, await sync_to_async(_backend)(), status]


@job(max_attempts=1)
async def reads_one_of_many(goes: str) -> int:
    """Leave a server-side cursor, which Python closes when the iterator goes: at once, or in the next job."""
    backend = await sync_to_async(_backend)()
    rows = Job.objects.order_by("pk").aiterator(chunk_size=1)
    if goes == "later":
        kept.append(rows)
    async for _ in rows:
        break
    return backend


@job(max_attempts=1)
async def lets_the_iterators_go() -> int:
    """In the middle of a transaction of its own."""
    await sync_to_async(_send)("BEGIN")
    kept.clear()
    await asyncio.sleep(0.2)
    await sync_to_async(_send)("SELECT 1")
    await sync_to_async(_send)("COMMIT")
    return await sync_to_async(_backend)()
