"""Durable functions of the end-to-end tests, whose executor dies behind a statement of theirs.

``everything`` counts what its thread sends to the server, a COMMIT too, over all of its runs: as bytes of a file of its
own on the stage, so that it survives kill −9. Behind the one with the number that it was registered with, its
process dies.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

from django_pgjobs import Backoff, Event, JobContext, current_context, job, sql
from tests.e2e import stage

NOW = Backoff(0)

approval: Event[str] = Event("remembering.approval")


def effect(note: str) -> str:
    """Have an effect, of which every one is kept."""
    with connection.cursor() as cursor:
        words = (current_context().id, current_context().attempt, f"{current_context().id} {note}")
        cursor.execute("INSERT INTO durable_effect (job_id, attempt, note) VALUES (%s, %s, %s)", words)
    return note


def plain(number: int) -> int:
    stage.here().note("plain", current_context().id)
    return number


@job(name="remembering.member", atomic=True, max_attempts=100, backoff=NOW)
def member(number: int) -> int:
    return number * 2


@job(name="remembering.everything", takes_context=True, max_attempts=100, backoff=NOW)
def everything(context: JobContext, dies_behind: int) -> list[Any]:
    with dying_behind(context.id, dies_behind):
        found: list[Any] = [context.step(plain, 1)]
        found.append(context.step.using(atomic=True)(effect, "first"))
        context.sleep(0)
        found.append(context.step.using(atomic=True, key=2)(effect, "second"))
        found.append(context.wait_for(approval, context.id, timeout=3600))
        found.append(context.version("fork", 2))
        found += context.gather([member.bind(number) for number in (1, 2)])
        found.append(context.step.using(atomic=True, key=3)(effect, "third"))
        return found


EVERYTHING = [1, "first", "second", "approved", 2, 2, 4, "third"]


NAMES = {
    sql.statement(name): name
    for name in ("read_memos", "write_memo", "finish_wait", "begin_gather", "add_members", "add_gates")
}


@contextmanager
def dying_behind(job_id: int, number: int) -> Iterator[None]:
    """Count what this block sends to the server, and die behind the one with this number."""
    path = stage.here().path / f"sent-{job_id}"

    def sent(what: str) -> None:
        with path.open("ab", buffering=0) as file:
            file.write(b".")
            count = file.tell()
        if count == number:
            stage.here().note("dies", job_id, number, what)
            os.kill(os.getpid(), signal.SIGKILL)

    def execute(run: Callable[..., Any], text: Any, params: Any, many: bool, context: Any) -> Any:
        answer = run(text, params, many, context)
        sent(NAMES.get(text, " ".join(str(text).split())[:60]))
        return answer

    django: Any = connection
    commit = django._commit

    def commit_and_count() -> Any:
        answer = commit()
        sent("COMMIT")
        return answer

    django._commit = commit_and_count
    try:
        with connection.execute_wrapper(execute):
            yield
    finally:
        del django._commit


def sent(where: stage.Stage, job_id: int) -> int:
    """Return how many statements and COMMITs a job has sent."""
    return (where.path / f"sent-{job_id}").stat().st_size


@contextmanager
def laid_out(db: Any = connection) -> Iterator[None]:
    """Have the table of effects."""
    with db.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS durable_effect")
        cursor.execute("CREATE TABLE durable_effect (job_id bigint, attempt integer, note text)")
    try:
        yield
    finally:
        with db.cursor() as cursor:
            cursor.execute("DROP TABLE durable_effect")


def effects(job_id: int, db: Any = connection) -> list[str]:
    """Return what a job has done for good, in the order in which it was done."""
    with db.cursor() as cursor:
        cursor.execute("SELECT note FROM durable_effect WHERE job_id = %s ORDER BY note", [job_id])
        return [note.partition(" ")[2] for (note,) in cursor.fetchall()]
