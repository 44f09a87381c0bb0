"""Other queues beside ours, in the test database: their tables as they make them, and jobs as they write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError
from django.db import DatabaseError, connection
from psycopg.types.json import Jsonb

from django_pgjobs import Unique, job
from tests.plugins.fix_db import RawDatabase, wait_until

SCHEMAS = Path(__file__).parent / "rivals"

DJ_QUEUE = [
    *(f"dj_queue_{state}_executions" for state in ("ready", "scheduled", "blocked", "claimed", "failed")),
    "dj_queue_semaphores",
    "dj_queue_jobs",
]
"""The tables of dj-queue, in an order in which they can be emptied."""

YEAR_9999 = "9999-01-01 00:00:00+00"


@job(name="shop.send", max_attempts=4)
def send(to: str, copies: int = 1) -> str:
    return to


@job(name="shop.mail", queue="mail")
def mail(to: str) -> str:
    return to


@job(name="shop.once", unique=Unique("once:{to}", on_conflict="raise"))
def once(to: str) -> str:
    return to


@contextmanager
def tables_of(*sources: str) -> Iterator[None]:
    """Make the tables of these sources, where every session of the database finds them."""
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA rivals")
        cursor.execute("SET search_path = rivals")
        for source in sources:
            cursor.execute((SCHEMAS / f"{source}.sql").read_text(encoding="utf-8"))
        cursor.execute(f'ALTER DATABASE "{name}" SET search_path = public, rivals')
    connection.close()
    try:
        yield
    finally:
        connection.close()
        with connection.cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" RESET search_path')
            cursor.execute("DROP SCHEMA rivals CASCADE")
        connection.close()


@pytest.fixture(scope="module")
def rival_tables(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), tables_of("procrastinate", "django-tasks-db", "django-ox", "dj-queue"):
        yield


@pytest.fixture
def rivals(rival_tables: None, committed: None) -> Iterator[None]:
    yield
    with connection.cursor() as cursor:
        tables = ["procrastinate_jobs", "django_tasks_database_dbtaskresult", "django_ox_oxtask", *DJ_QUEUE]
        cursor.execute(";".join(f"DELETE FROM {table}" for table in tables))


class Procrastinate:
    """procrastinate, by its own function."""

    source = "procrastinate"
    table = "procrastinate_jobs"

    def __init__(self, raw: RawDatabase) -> None:
        self.raw = raw

    def defer(self, task: str = "shop.send", args: dict[str, Any] | None = None, **given: Any) -> str:
        values = {"queue": "default", "priority": 0, "lock": None, "queueing_lock": None, "start": None, **given}
        return str(
            self.raw.value(
                "SELECT (procrastinate_defer_jobs_v1(ARRAY[ROW(%(queue)s, %(task)s, %(priority)s, %(lock)s,"
                " %(queueing_lock)s, %(args)s, %(start)s)::procrastinate_job_to_defer_v1]))[1]",
                {**values, "task": task, "args": Jsonb({"to": "anna"} if args is None else args)},
            )
        )

    def fetch(self) -> int | str | None:
        """Take a job as its worker does."""
        worker = self.raw.value("INSERT INTO procrastinate_workers DEFAULT VALUES RETURNING id")
        found: int | None = self.raw.value("SELECT id FROM procrastinate_fetch_job_v2(NULL, %s)", [worker])
        return found

    def waiting(self) -> list[str]:
        rows = self.raw.query("SELECT id::text FROM procrastinate_jobs WHERE status = 'todo' ORDER BY id")
        return [row[0] for row in rows]

    def rows(self) -> list[tuple[Any, ...]]:
        return self.raw.query(f"SELECT to_jsonb(p) FROM {self.table} AS p ORDER BY id")

    def restore(self, row: dict[str, Any]) -> None:
        """Let the only row be as it was, as in a backup."""
        self.raw.query(f"DELETE FROM {self.table}")
        values = f"jsonb_populate_record(NULL::{self.table}, %s)"
        self.raw.query(f"INSERT INTO {self.table} SELECT * FROM {values}", [Jsonb(row)])


class TasksDb(Procrastinate):
    """django-tasks-db, as its backend writes a task."""

    source = "django-tasks-db"
    table = "django_tasks_database_dbtaskresult"

    def __init__(self, raw: RawDatabase) -> None:
        self.raw = raw

    def defer(self, task: str = "shop.send", args: dict[str, Any] | None = None, **given: Any) -> str:
        values = {"queue": "default", "priority": 0, "start": YEAR_9999, "positional": [], **given}
        arguments = {"args": values["positional"], "kwargs": {"to": "anna"} if args is None else args}
        return str(
            self.raw.value(
                "INSERT INTO django_tasks_database_dbtaskresult (id, status, args_kwargs, priority, task_path,"
                " queue_name, backend_name, run_after, enqueued_at, exception_class_path, traceback, worker_ids)"
                " VALUES (%(id)s, 'READY', %(arguments)s, %(priority)s, %(task)s, %(queue)s, 'default', %(start)s,"
                " statement_timestamp(), '', '', '[]') RETURNING id",
                {**values, "id": uuid4(), "arguments": Jsonb(arguments), "task": task},
            )
        )

    def fetch(self) -> str | None:
        """Take a task as its worker does."""
        rows = self.raw.query(
            f"UPDATE {self.table} SET status = 'RUNNING' WHERE id = (SELECT id"
            f" FROM {self.table} WHERE status = 'READY' LIMIT 1 FOR UPDATE SKIP LOCKED)"
            " RETURNING id::text"
        )
        return rows[0][0] if rows else None

    def waiting(self) -> list[str]:
        rows = self.raw.query(f"SELECT id::text FROM {self.table} WHERE status = 'READY'")
        return sorted(row[0] for row in rows)


class Ox(TasksDb):
    """django-ox, as its backend writes a task."""

    source = "django-ox"
    table = "django_ox_oxtask"

    def defer(self, task: str = "shop.send", args: dict[str, Any] | None = None, **given: Any) -> str:
        values = {"queue": "default", "priority": 0, "start": None, "positional": [], **given}
        kwargs = {"to": "anna"} if args is None else args
        return str(
            self.raw.value(
                "INSERT INTO django_ox_oxtask (id, status, args, kwargs, priority, task_path, queue_name,"
                " takes_context, backend_name, run_after, attempts, max_attempts, errors, worker_ids, enqueued_at,"
                " lease_epoch)"
                " VALUES (%(id)s, 'READY', %(args)s, %(kwargs)s, %(priority)s, %(task)s, %(queue)s, false, 'default',"
                " %(start)s, 0, 3, '[]', '[]', statement_timestamp(), 0) RETURNING id",
                {**values, "id": uuid4(), "args": Jsonb(values["positional"]), "kwargs": Jsonb(kwargs), "task": task},
            )
        )


class DjQueue(TasksDb):
    """dj-queue, as its backend enqueues a job and its worker claims one."""

    source = "dj-queue"
    table = "dj_queue_jobs"

    def defer(self, task: str = "shop.send", args: dict[str, Any] | None = None, **given: Any) -> str:
        values = {"queue": "default", "priority": 0, "start": None, "concurrency": None, "state": None, **given}
        payload: dict[str, Any] = {"args": [], "kwargs": {"to": "anna"} if args is None else args}
        with self.raw.transaction():
            found = self.raw.value(
                "INSERT INTO dj_queue_jobs (id, task_path, queue_name, priority, payload, backend_alias, scheduled_at,"
                " concurrency_key, created_at, updated_at)"
                " VALUES (%(id)s, %(task)s, %(queue)s, %(priority)s, %(payload)s, 'default', %(start)s,"
                " %(concurrency)s, statement_timestamp(), statement_timestamp()) RETURNING id",
                {**values, "id": uuid4(), "payload": Jsonb(payload), "task": task},
            )
            state = values["state"] or ("ready" if values["start"] is None else "scheduled")
            also = {"scheduled": ", scheduled_at", "blocked": ", concurrency_key"}
            columns = f"created_at{also.get(state, '')}"
            expires = {"blocked": ("expires_at, ", "created_at, ")}.get(state, ("", ""))
            self.raw.query(
                f"INSERT INTO dj_queue_{state}_executions (job_id, backend_alias, queue_name, priority,"
                f" {expires[0]}{columns}) SELECT id, backend_alias, queue_name, priority, {expires[1]}{columns}"
                " FROM dj_queue_jobs WHERE id = %s",
                [found],
            )
        return str(found)

    def fetch(self) -> str | None:
        rows = self.raw.query(
            "WITH gone AS (DELETE FROM dj_queue_ready_executions WHERE id = (SELECT id FROM dj_queue_ready_executions"
            " ORDER BY priority DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING job_id)"
            " INSERT INTO dj_queue_claimed_executions (job_id, created_at)"
            " SELECT job_id, statement_timestamp() FROM gone RETURNING job_id::text"
        )
        return rows[0][0] if rows else None

    def waiting(self) -> list[str]:
        states = " UNION ALL ".join(
            f"SELECT job_id::text FROM dj_queue_{state}_executions" for state in ("ready", "scheduled", "blocked")
        )
        return sorted(row[0] for row in self.raw.query(states))

    def restore(self, row: dict[str, Any]) -> None:
        super().restore(row)
        self.raw.query(
            "INSERT INTO dj_queue_ready_executions (job_id, backend_alias, queue_name, priority, created_at)"
            " SELECT id, backend_alias, queue_name, priority, created_at FROM dj_queue_jobs"
        )


class Killer:
    """Ends the session of the importer before its statement of this number."""

    def __init__(self, raw: RawDatabase, number: int) -> None:
        self.raw, self.left, self.struck = raw, number, False

    def __call__(self, execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.struck = True
            pid = connection.connection.info.backend_pid
            self.raw.query("SELECT pg_terminate_backend(%s)", [pid])
            gone = "SELECT true FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: self.raw.query(gone, [pid]) == [], 5, "the session has ended")
        return execute(statement, params, many, context)


def deaths(raw: RawDatabase, action: Callable[[], object]) -> Iterator[int]:
    """Let the action die before its first statement, its second, and so on, until it comes to its end."""
    for number in range(1, 60):
        killer = Killer(raw, number)
        try:
            with connection.execute_wrapper(killer):
                action()
        except (CommandError, DatabaseError):
            assert killer.struck
        connection.close()
        yield number
        if not killer.struck:
            return
    pytest.fail("It does not end.")
