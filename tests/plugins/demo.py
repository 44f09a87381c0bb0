"""The example project in a database of its own: ``made()``, to be run, asked and queried."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest

from tests.plugins.fix_db import patience
from tests.plugins.fix_worker import ROOT, database_url


class Database:
    """A database made for these tests."""

    def __init__(self) -> None:
        self.name = f"test_demo_{uuid4().hex[:12]}"
        self.url = database_url(NAME=self.name)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(text).fetchall()

    def has_worker(self) -> bool:
        """Whether a worker has said that it lives."""
        with suppress(psycopg.errors.UndefinedTable):
            return bool(self.query("SELECT FROM pgjobs_heartbeat"))
        return False

    @property
    def environment(self) -> dict[str, str]:
        settings = {"DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": "example_project.settings"}
        return {**os.environ, **settings, "PYTHONUNBUFFERED": "1"}

    def demo(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run the demo to its end."""
        return subprocess.run(
            command(*options), env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=patience(250)
        )

    def inside(self, code: str) -> Any:
        """Run code in the example project; return what it leaves in ``answer``."""
        program = f"import django, json\ndjango.setup()\n{code}\nprint(json.dumps(answer))"
        run = subprocess.run(
            [sys.executable, "-c", program], env=self.environment, cwd=ROOT, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout.splitlines()[-1])


class Site(NamedTuple):
    """Where the demo serves the site, and its user."""

    url: str
    port: int
    user: str
    password: str


def command(*options: str) -> list[str]:
    """The demo's command line."""
    return [sys.executable, "-m", "example_project.demo", *options]


@contextmanager
def made() -> Iterator[Database]:
    """Create a database, and drop it in the end."""
    new = Database()
    with psycopg.connect(database_url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {new.name}")
        try:
            yield new
        finally:
            connection.execute(f"DROP DATABASE {new.name} WITH (FORCE)")


def served_by(demo: subprocess.Popen[str]) -> Site:
    """Wait until the demo serves the site; return where, and how to log in."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if said := re.search(r"(http://127\.0\.0\.1:(\d+))/admin/  user (\S+), password (\S+)", line):
            return Site(said[1], int(said[2]), said[3], said[4])
    pytest.fail(f"the demo ended with {demo.wait()} before it served")


def children(pid: int) -> list[str]:
    """The processes that a process has started."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
