"""One embedded server for a project: served until stopped, found by every command, started by the first that asks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_pgjobs.embedded import EmbeddedError
from django_pgjobs.embedded.directory import clean
from django_pgjobs.embedded.sharing import running_url, settings_of
from tests.packaging.test_embedded_server import processes, wait_until
from tests.plugins.fix_db import patience

ROOT = Path(__file__).resolve().parents[2]

ASK = """
import sys, psycopg
from django_pgjobs.embedded import database
found = database(sys.argv[1])
keys = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
with psycopg.connect(**{keys[key]: found[key] for key in keys}) as connection:
    connection.execute("SELECT pg_advisory_xact_lock(1)")
    connection.execute("CREATE TABLE IF NOT EXISTS visits ()")
    connection.execute("INSERT INTO visits DEFAULT VALUES")
    visits = connection.execute("SELECT count(*) FROM visits").fetchone()[0]
print(found["PORT"], visits, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def data(project: Path) -> Iterator[Path]:
    path = project / ".pg"
    yield path
    with contextlib.suppress(EmbeddedError):
        clean(path)


def start(*command: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return subprocess.Popen(
        [sys.executable, *command],
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, process.communicate()[1]
    return line


def test_a_served_server_is_found_by_every_command_and_keeps_its_data(data: Path) -> None:
    served = start("-m", "django_pgjobs.embedded", "--serve", "--data", str(data))
    with served:
        url = line_of(served).removeprefix("DATABASE_URL=")
        assert running_url(data) == url

        with start("-m", "django_pgjobs.embedded", "--serve", "--data", str(data)) as again:
            output, told = again.communicate(timeout=patience(60))
        assert (again.returncode, output.strip()) == (0, f"DATABASE_URL={url}"), told
        assert "runs already" in told

        shown = "import os; print(os.environ['DATABASE_URL'])"
        with start("-m", "django_pgjobs.embedded", "--data", str(data), "--", sys.executable, "-c", shown) as command:
            assert command.communicate(timeout=patience(60))[0].strip() == url

        with start("-c", ASK, str(data)) as project:
            assert line_of(project) == f"{settings_of(url)['PORT']} 1"
            project.communicate(timeout=patience(60))

        assert running_url(data) == url, "a project that found the server has stopped it"
        served.send_signal(signal.SIGTERM)
        assert served.wait(patience(60)) == 0
    assert running_url(data) is None

    with start("-c", ASK, str(data)) as project:
        assert line_of(project).split()[1] == "2"
        project.communicate(timeout=patience(60))


def test_processes_that_start_at_once_share_one_server_that_ends_with_its_owner(data: Path) -> None:
    with contextlib.ExitStack() as stack:
        projects = [stack.enter_context(start("-c", ASK, str(data))) for _ in range(3)]
        found = [line_of(project).split() for project in projects]
        assert len({port for port, _ in found}) == 1
        assert sorted(visits for _, visits in found) == ["1", "2", "3"]
        directory = data / "server-18"
        assert len([line for _, line in processes(f"-D {directory}/data") if not line.startswith("/bin/sh")]) == 1
        for project in projects:
            project.communicate(timeout=patience(60))
            assert project.returncode == 0
    wait_until(lambda: not processes(f"-D {directory}/data"), "the server ends with its owner")
    assert Path(directory).exists()


def test_a_killed_owner_takes_the_server_along_and_the_next_starts_it_again(data: Path) -> None:
    with start("-c", ASK, str(data)) as project:
        assert line_of(project).split()[1] == "1"
        project.kill()
    wait_until(lambda: running_url(data) is None, "nobody runs the server")
    with start("-c", ASK, str(data)) as project:
        assert line_of(project).split()[1] == "2"
        project.communicate(timeout=patience(60))


def test_serve_takes_no_command() -> None:
    with start("-m", "django_pgjobs.embedded", "--serve", "--", "true") as process:
        told = process.communicate(timeout=patience(60))[1]
    assert process.returncode == 2
    assert "--serve takes no command" in told


def test_a_url_is_read_with_escapes_and_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert settings_of("postgres://a%40b:p%2Fq@db.example:6543/shop%20x?sslmode=require") == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "shop x",
        "USER": "a@b",
        "PASSWORD": "p/q",
        "HOST": "db.example",
        "PORT": "6543",
        "OPTIONS": {"sslmode": "require"},
    }
    with pytest.raises(EmbeddedError, match="must begin with postgres://, not mysql://"):
        settings_of("mysql://x/y")

    from django_pgjobs.embedded import database

    monkeypatch.setenv("DATABASE_URL", "postgresql://ann@localhost/shop")
    assert database(tmp_path / ".pg")["USER"] == "ann"
    assert not (tmp_path / ".pg").exists(), "a DATABASE_URL starts no server"
