"""Databases beside the one of the suite, as other programs use them: by management commands, and by SQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import environ
import psycopg
from django.db import connections

from django_pgjobs.embedded import EmbeddedServer
from tests.plugins.fix_worker import ROOT


def manage(url: str, *arguments: str) -> None:
    """Run a management command on another database."""
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "-m", "django", *arguments]
    subprocess.run(
        command, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.DEVNULL
    )


@contextmanager
def migrated() -> Iterator[EmbeddedServer]:
    """A server of its own, migrated."""
    with EmbeddedServer(fsync=False) as server:
        manage(server.url, "migrate", "-v0")
        yield server


def ask(url: str, text: str, *params: object) -> list[tuple[Any, ...]]:
    """Run a statement on a connection of its own."""
    with psycopg.connect(url, autocommit=True) as raw:
        cursor = raw.execute(text, params)
        return cursor.fetchall() if cursor.description else []


def put(url: str, name: str, payload: str = '{"args": [], "kwargs": {}}') -> int:
    """Register a job by SQL, as another program would."""
    text = (
        "INSERT INTO pgjobs_job (name, queue, priority, max_attempts, payload)"
        " VALUES (%s, 'default', 0, 3, %s) RETURNING id"
    )
    return int(ask(url, text, f"tests.e2e.jobs.{name}", payload)[0][0])


def call(*args: object) -> str:
    return json.dumps({"args": args, "kwargs": {}})


def aliases() -> list[str]:
    """What a setting may call to learn which databases to serve."""
    return ["default", "second"]


@contextmanager
def aliased(alias: str, url: str) -> Iterator[None]:
    """Have another database as an alias of this process."""
    own = environ.Env.db_url_config(url, engine="django.db.backends.postgresql")
    connections.settings[alias] = connections.configure_settings({"default": own})["default"]
    try:
        yield
    finally:
        for each in connections.all(initialized_only=True):
            if each.alias == alias:
                each.close()
                del connections[alias]
        del connections.settings[alias]


@contextmanager
def frozen(*pids: int | None) -> Iterator[None]:
    """Stop processes; of a server's first one it is enough to take new connections from it."""
    for pid in pids:
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            assert pid is not None
            os.kill(pid, signal.SIGCONT)
