"""Schemas of tenants on the throwaway server, and workers that serve them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import call_command

from django_pgjobs.embedded import EmbeddedServer
from tests.e2e import schemas
from tests.e2e.elsewhere import ask, call
from tests.e2e.stage import Stage
from tests.plugins.fix_db import wait_until
from tests.plugins.fix_worker import WorkerProcess, Workers

CONF = {
    "SCHEMAS": "tests.e2e.schemas.names",
    "MODULES": ["tests.e2e.schemas"],
    "POLL_SECONDS": 1,
}


@pytest.fixture(scope="module")
def tables(django_db_setup: None, django_db_blocker: Any) -> str:
    """The statements that make our tables."""
    written = StringIO()
    with django_db_blocker.unblock():
        call_command("sqlmigrate", "pgjobs", "0001", stdout=written, no_color=True)
    return written.getvalue()


class Tenants:
    """The schemas of one server."""

    def __init__(self, url: str, tables: str, stage: Stage) -> None:
        self.url = url
        self.tables = tables
        self.stage = stage
        self.names: list[str] = []
        self.named = 0

    def make(self, *names: str) -> None:
        for name in names:
            quoted = psycopg.sql.Identifier(name).as_string(None)
            with psycopg.connect(self.url, autocommit=True) as raw:
                raw.execute(f"CREATE SCHEMA {quoted}")
                raw.execute(f"SET search_path TO {quoted}")
                raw.execute(self.tables)
        self.name(*self.names, *names)

    def name(self, *names: str) -> None:
        """Let the setting name these."""
        self.names = list(names)
        new = self.stage.path / "schemas.new"
        new.write_text(json.dumps(self.names))
        new.rename(self.stage.path / schemas.FILE)
        self.named += 1  # a worker asks when it hears of a schema that it does not know
        ask(self.url, "SELECT pg_notify('pgjobs', concat('0:default@', %s::int))", self.named)

    def ask(self, schema: str, text: str, *params: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as raw:
            raw.execute(f"SET search_path TO {psycopg.sql.Identifier(schema).as_string(None)}")
            cursor = raw.execute(text, params)
            return cursor.fetchall() if cursor.description else []

    def put(self, schema: str, name: str, *args: object, due: float = 0.0) -> int:
        """Register a job by SQL, as another program would, without a notification."""
        text = (
            "INSERT INTO pgjobs_job (name, queue, priority, max_attempts, payload, run_at)"
            " VALUES (%s, 'default', 0, 3, %s, statement_timestamp() + make_interval(secs => %s)) RETURNING id"
        )
        return int(self.ask(schema, text, f"schemas.{name}", call(*args), due)[0][0])

    def all_ended(self, jobs: int, names: Iterable[str] = (), timeout: float = 20) -> None:
        names = list(names) or self.names

        def left() -> dict[str, Any]:
            text = "SELECT count(*) FILTER (WHERE outcome = 'succeeded') FROM pgjobs_job"
            found = {name: self.ask(name, text)[0][0] for name in names}
            return {name: count for name, count in found.items() if count != jobs}

        wait_until(lambda: not left(), timeout, f"{jobs} jobs have succeeded in each of {len(names)} schemas")

    def drop(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as raw:
            found = raw.execute(
                "SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema|public)'"
            ).fetchall()
            for (quoted,) in found:
                raw.execute(f"DROP SCHEMA {quoted} CASCADE")


@pytest.fixture
def tenants(server: EmbeddedServer, tables: str, stage: Stage) -> Iterator[Tenants]:
    tenants = Tenants(server.url, tables, stage)
    tenants.name()
    yield tenants
    tenants.drop()


class ManySchemas:
    """Starts workers for the schemas of the tenants."""

    def __init__(self, worker: Workers, tenants: Tenants) -> None:
        self.worker = worker
        self.tenants = tenants

    def __call__(self, *arguments: str, **options: Any) -> WorkerProcess:
        conf = {**CONF, **options.pop("conf", {})}
        env = {"DATABASE_URL": self.tenants.url, **options.pop("env", {})}
        return self.worker(*arguments, conf=conf, env=env, **options)


@pytest.fixture
def start(tenants: Tenants, worker: Workers) -> Iterator[ManySchemas]:
    """Workers; they end before the schemas do."""
    yield ManySchemas(worker, tenants)
    for each in worker.started:
        if each.process.poll() is None:
            assert each.stop() == 0, each.log


def noted(stage: Stage) -> list[tuple[str, str, str]]:
    """What jobs said: their key, the schema of their context, and that of their connection."""
    return [(words[1], words[2], words[3]) for words in (trace.words for trace in stage.traces("schema"))]
