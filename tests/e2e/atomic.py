"""Atomic jobs. Their effects are rows of a table that ``laid_out`` makes: they share the fate of the job's end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, connection, connections, transaction

from django_pgjobs import Abandon, Backoff, Cancel, JobContext, Next, Snooze, current_context, job
from tests.e2e import stage

NOW = Backoff(0)

LAYOUT = """
CREATE TABLE atomic_effect (
    job_id bigint NOT NULL, attempt integer NOT NULL, note text NOT NULL,
    UNIQUE (note) DEFERRABLE INITIALLY DEFERRED
)"""


@contextmanager
def laid_out(db: Any = connection) -> Iterator[None]:
    """Have the table of effects."""
    with db.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS atomic_effect")
        cursor.execute(LAYOUT)
    try:
        yield
    finally:
        with db.cursor() as cursor:
            cursor.execute("DROP TABLE atomic_effect")


def effects(job_id: int, db: Any = connection) -> list[tuple[int, str]]:
    """Return (attempt, note) of what a job has done for good."""
    with db.cursor() as cursor:
        cursor.execute("SELECT attempt, note FROM atomic_effect WHERE job_id = %s ORDER BY note", [job_id])
        return list(cursor.fetchall())


def one_transaction_a_step(job: Any) -> bool:
    """Tell whether the one finished step of a job and its effect were written by the same transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT s.xmin::text = e.xmin::text FROM pgjobs_step AS s JOIN atomic_effect AS e ON e.job_id = s.job_id"
            " WHERE s.job_id = %s AND e.note NOT LIKE 'second%%'",
            [job.pk],
        )
        return bool(cursor.fetchall() == [(True,)])


def one_transaction(job: Any) -> bool:
    """Tell whether the job's end and its effect were written by the same transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT j.xmin::text = e.xmin::text FROM pgjobs_job AS j JOIN atomic_effect AS e ON e.job_id = j.id"
            " WHERE j.id = %s",
            [job.pk],
        )
        return bool(cursor.fetchall() == [(True,)])


def act(note: str = "") -> None:
    """Have an effect; its note is unique among all jobs once committed."""
    context = current_context()
    with connection.cursor() as cursor:
        words = (context.id, context.attempt, note or str(context.id))
        cursor.execute("INSERT INTO atomic_effect (job_id, attempt, note) VALUES (%s, %s, %s)", words)


def run(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


def _raises(error: Callable[[], BaseException]) -> Callable[[], None]:
    def raises() -> None:
        raise error()

    return raises


def _returns_nonsense() -> object:
    return object()


def _swallows() -> None:
    try:
        run("SELECT 1 / 0")
    except DatabaseError:
        stage.here().note("swallowed")


def _swallows_in_the_orm() -> None:
    try:
        with transaction.atomic(savepoint=False):
            run("SELECT 1 / 0")
    except DatabaseError:
        stage.here().note("swallowed")


def _undoes() -> None:
    transaction.set_rollback(True)


def _closes() -> None:
    connections.close_all()


def _is_durable() -> None:
    with transaction.atomic(durable=True):
        pass


def _survives() -> str:
    try:
        with transaction.atomic():
            run("SELECT 1 / 0")
    except DatabaseError:
        return "survived"
    return "impossible"


def _registers() -> None:
    follows.register()


def _second() -> str:
    return f"second of {current_context().id}"


def _goes_on() -> Next:
    return Next(does.bind("succeeds", _second()))


def _goes_on_later() -> Next:
    return Next(does.bind("succeeds", _second()), delay=1.5)


def _goes_on_behind_a_hook() -> Next:
    context = current_context()

    def hook() -> None:
        stage.here().note("hook-begin", context.id)
        stage.here().wait(f"slow-hook-{context.id}")
        stage.here().note("hook-end", context.id)

    transaction.on_commit(hook)
    return Next(does.bind("succeeds", _second()))


def _goes_on_behind_a_hook_and_later() -> Next:
    return Next(_goes_on_behind_a_hook().step, delay=3600)


def _goes_on_elsewhere() -> Next:
    return Next(does.using(queue="elsewhere").bind("succeeds", _second()))


def _hooks() -> None:
    context = current_context()

    def hook() -> None:
        stage.here().note("hook", context.id, effects(context.id) != [])
        raise ValueError("the hook failed")

    transaction.on_commit(hook)


DEEDS: dict[str, Callable[[], Any]] = {
    "succeeds": lambda: "done",
    "fails": _raises(lambda: ValueError("no")),
    "snoozes": _raises(lambda: Snooze(3600)),
    "cancels": _raises(lambda: Cancel("enough")),
    "abandons": _raises(lambda: Abandon("hopeless")),
    "returns nonsense": _returns_nonsense,
    "swallows": _swallows,
    "swallows in an inner block": _swallows_in_the_orm,
    "undoes": _undoes,
    "closes": _closes,
    "is durable": _is_durable,
    "survives": _survives,
    "registers": _registers,
    "hooks": _hooks,
    "goes on": _goes_on,
    "goes on later": _goes_on_later,
    "goes on behind a hook": _goes_on_behind_a_hook,
    "goes on behind a hook and later": _goes_on_behind_a_hook_and_later,
    "goes on elsewhere": _goes_on_elsewhere,
    "sleeps": lambda: time.sleep(60),
    "sleeps in the server": lambda: run("SELECT pg_sleep(60)"),
}


@job(atomic=True, max_attempts=2, backoff=NOW, strict_results=True)
def does(deed: str, note: str = "") -> Any:
    act(note)
    return DEEDS[deed]()


@job(atomic=True, max_attempts=3, backoff=NOW)
def waits(gate: str, isolation: str = "") -> str:
    if isolation:
        run(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
    act()
    stage.here().note("start", gate)
    stage.here().wait(gate)
    return gate


@job
def follows() -> None:
    pass


@job(atomic=True, max_attempts=2, backoff=NOW, store_result=False)
def quiet() -> str:
    act()
    return "unheard"


@job(atomic=True, max_attempts=2, backoff=NOW, idempotency_key="atomic:{key}")
def once(key: str) -> str:
    act()
    return f"first {current_context().id}"


@job(atomic=True, max_attempts=3, backoff=NOW)
def tells(deed: str) -> Any:
    act()
    return DEEDS[deed]()


@tells.on_success
def told(context: JobContext, deed: str) -> None:
    stage.here().note("on_success", context.id, effects(context.id) != [])


@tells.on_abandon
def not_told(context: JobContext, deed: str) -> None:
    stage.here().note("on_abandon", context.id)


@job(atomic=True, max_attempts=4, backoff=NOW)
def survives_crashes() -> None:
    act()


@job(atomic=True, max_attempts=4, backoff=NOW)
def steps_despite_crashes(note: str = "one") -> Any:
    act(note)
    return Next(steps_despite_crashes.bind("two")) if note == "one" else None


@job(atomic=True, max_attempts=1, takes_context=True)
def reports(context: JobContext, gate: str) -> None:
    act()
    context.progress(1, 2, "half")
    stage.here().note("start", gate)
    stage.here().wait(gate)
