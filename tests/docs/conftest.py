"""A migrated project on a database of its own for each test, copied from one that is made once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.db import connection

from tests.docs.fresh_project import SETTINGS, Project, copied
from tests.docs.pages import DOCS, blocks

_numbers = count()


def server_url(database: str) -> str:
    """Return the URL of a database of the server that the tests use."""
    at = connection.settings_dict
    given = urlsplit(os.environ.get("DATABASE_URL", f"postgres://{at['USER']}@{at['HOST']}:{at['PORT']}/postgres"))
    return urlunsplit(given._replace(path=f"/{database}"))


def execute(statement: str) -> None:
    with psycopg.connect(server_url("postgres"), autocommit=True) as server:
        server.execute(statement)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The project that the tutorial's first page makes, and the name of its migrated database."""
    name = f"docs_{os.getpid()}"
    execute(f'CREATE DATABASE "{name}"')
    project = Project(tmp_path_factory.mktemp("template") / "project", server_url(name))
    project.folder.mkdir()
    for command in ("django-admin startproject mysite .", "python manage.py startapp shop"):
        subprocess.run(command, shell=True, cwd=project.folder, env=project.environment, check=True)
    [settings] = [block for block in blocks(DOCS / "tutorial" / "first-job.md") if block.file == SETTINGS]
    project.write(SETTINGS, settings.text)
    migrate = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(migrate, cwd=project.folder, env=project.environment, check=True)
    yield project.folder, name
    execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture
def project(template: tuple[Path, str], tmp_path: Path) -> Iterator[Project]:
    """A copy of that project, with a database of its own."""
    folder, source = template
    name = f"{source}_{next(_numbers)}"
    execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}"')
    made = copied(folder, tmp_path / "project", server_url(name))
    try:
        yield made
    finally:
        made.close()
        execute(f'DROP DATABASE "{name}" WITH (FORCE)')
