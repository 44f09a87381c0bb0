"""Fixtures of all scenarios: a database copied from the site's migrated one, and real workers on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from psycopg import sql

from tests.e2e.stage import Stage
from tests.plugins.fix_worker import WorkerProcess, Workers

PREFIX = "test_pgjobs_foreign"

StartWorker = Callable[..., WorkerProcess]


class Server:
    """The server that DATABASE_URL names: makes and drops databases of ours, and leads Django from one to another."""

    def __init__(self) -> None:
        wanted = ("host", "port", "user", "password", "dbname")
        self.known = {key: value for key, value in connection.get_connection_params().items() if key in wanted}

    def make(self, name: str, template: str = "template1") -> None:
        """Make a database anew as a copy of ``template``, which nobody may use meanwhile, and lead Django to it."""
        self.drop(name)
        self._run("CREATE DATABASE {} TEMPLATE {}", name, template)
        connection.settings_dict["NAME"] = name

    def drop(self, name: str) -> None:
        """Drop a database and disconnect its users."""
        connection.close()
        self._run("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _run(self, statement: str, *names: str) -> None:
        with psycopg.connect(**self.known, autocommit=True) as raw:
            raw.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@pytest.fixture(scope="session")
def server() -> Server:
    """Where databases are made."""
    return Server()


@pytest.fixture(scope="session")
def template(server: Server) -> Iterator[str]:
    """Return the name of a database with all migrations of the site."""
    name = f"{PREFIX}_template"
    server.make(name)
    call_command("migrate", run_syncdb=True, verbosity=0)
    connection.close()
    yield name
    server.drop(name)


@pytest.fixture(autouse=True)
def database(server: Server, template: str) -> Iterator[None]:
    """Give each scenario a database of its own; what it does there is committed."""
    server.make(PREFIX, template)
    yield
    server.drop(PREFIX)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Where tasks leave traces and wait for gates, those in this process too."""
    monkeypatch.setenv("PGJOBS_TEST_STAGE", str(tmp_path))
    return Stage(tmp_path)


@pytest.fixture
def worker(database: None, stage: Stage) -> Iterator[StartWorker]:
    """Start ``runjobs`` on the site: ``worker("--until-idle", processes=1, conf={…})``. Stopped and checked after."""
    workers = Workers(stage)
    try:
        yield partial(workers, env={"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"]})
    except BaseException:
        for each in workers.started:
            each.kill()
        raise
    workers.close()
