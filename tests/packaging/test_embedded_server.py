"""The embedded server as a whole: it works, it ends, and it leaves the machine as it was."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from django_pgjobs.embedded import EmbeddedError, EmbeddedServer, directory, server
from django_pgjobs.embedded.directory import clean
from tests.plugins.fix_db import patience

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="about what root's server does")

QUERY = "import os, psycopg; print(psycopg.connect(os.environ['DATABASE_URL']).execute('select 6 * 7').fetchone()[0])"
OBEDIENT = """
import os, signal, sys
def leave(number, frame):
    received.append(number)
received = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, leave)
print("READY", os.getpid(), flush=True)
while signal.SIGTERM not in received:
    signal.pause()
print(*[int(number) for number in received], flush=True)
sys.exit(5)
"""


def wait_until(fact: Callable[[], object], what: str, timeout: float = 30) -> None:
    deadline = time.monotonic() + patience(timeout)
    while not fact():
        assert time.monotonic() < deadline, f"not within {patience(timeout):g} s: {what}"
        time.sleep(0.02)


def processes(text: str) -> list[tuple[int, str]]:
    """Return (pid, command line) of every process, zombies excepted, whose command line has the text."""
    # Without -ww the lines are cut at COLUMNS, which pytest sets.
    listing = subprocess.run(["ps", "-wweo", "pid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listing.splitlines()]
    return [(int(row[0]), row[2]) for row in rows if not row[1].startswith("Z") and text in row[2]]


def end(pid: int) -> None:
    """Kill a process that we started, if it still runs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def servers(directory: Path) -> list[int]:
    """Return the servers with data in a directory; their watchers carry the same words behind /bin/sh."""
    return [pid for pid, line in processes(f"-D {directory}/data") if not line.startswith("/bin/sh")]


def starting(*command: str) -> subprocess.Popen[str]:
    """Start the command line with a server of its own, out of reach of this terminal's key presses."""
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return subprocess.Popen(
        [sys.executable, "-m", "django_pgjobs.embedded", "--no-fsync", "--", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextlib.contextmanager
def running(*command: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start the command line; yield it and its server's directory once the command is ready.

    A command that outlives its killed command line is killed too, by its pid.
    """
    with starting(*command) as process, contextlib.ExitStack() as undo:
        undo.callback(process.kill)
        assert process.stdout is not None
        assert process.stderr is not None
        told = process.stderr.readline()
        found = re.search(r" in (\S+),", told)
        assert found, told
        ready, pid = process.stdout.readline().split()
        assert ready == "READY"
        try:
            yield process, Path(found[1])
        finally:
            # After an orderly end the pid may be somebody else's.
            if process.poll() in (None, -signal.SIGKILL):
                end(int(pid))


def machine() -> dict[str, object]:
    """Describe what a server must not change: the accounts, and modes and owners on the way to all it uses."""
    starts = (
        Path.cwd(),
        Path(sys.executable),
        Path(server.__file__),
        directory.find_base(directory.ServerAccount.choose()),
    )
    parents = {parent for start in starts for parent in (start.resolve(), *start.resolve().parents)}
    seen = {str(path): (path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in parents}
    return {"accounts": pwd.getpwall(), **seen}


def test_a_run_leaves_the_machine_as_it_was():
    before = machine()
    with starting(sys.executable, "-c", QUERY) as process:
        output, told = process.communicate(timeout=patience(90))
    found = re.search(r" in (\S+),", told)
    assert (process.returncode, output) == (0, "42\n"), told
    assert found
    assert not Path(found[1]).exists()
    wait_until(lambda: not processes(found[1]), "no process of the server is left")
    assert machine() == before


def test_the_commands_status_is_ours_and_signals_reach_it_once():
    with running(sys.executable, "-c", OBEDIENT) as (process, directory):
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=patience(60))
    assert process.returncode == 5
    assert sorted(map(int, output.split())) == sorted([signal.SIGINT, signal.SIGUSR1, signal.SIGTERM])
    assert not directory.exists()


def test_a_command_killed_by_a_signal_is_128_and_its_number():
    with starting("/bin/sh", "-c", "kill -9 $$") as process:
        process.communicate(timeout=patience(90))
    assert process.returncode == 137


def test_the_server_ends_with_a_killed_run_and_the_next_one_sweeps():
    with running(sys.executable, "-c", OBEDIENT) as (process, directory):
        assert processes(str(directory))
        process.kill()
        wait_until(lambda: not processes(str(directory)), "the server ends with the run")
    with EmbeddedServer(fsync=False):
        assert not directory.exists()


def test_a_server_that_survived_its_run_is_stopped_by_the_next_one():
    with running(sys.executable, "-c", OBEDIENT) as (process, directory), contextlib.ExitStack() as undo:
        watchers = [pid for pid, line in processes(str(directory)) if line.startswith("/bin/sh")]
        assert watchers
        for pid in watchers:
            undo.callback(end, pid)
            os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.wait()
        assert servers(directory), "nobody stopped the server"
        with EmbeddedServer(fsync=False):
            wait_until(lambda: not servers(directory), "the old server is gone")
            assert not directory.exists()


def test_a_stranger_without_the_password_is_refused():
    with EmbeddedServer(fsync=False) as ours:
        assert ours.directory is not None
        for host in ("127.0.0.1", str(ours.directory.socket)):
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(host=host, port=ours.port, user="postgres", password="guessed", dbname="postgres")


def test_data_are_kept_over_runs_and_crashes_until_they_are_cleaned(project):
    data = project / ".pg"
    keeper = EmbeddedServer(fsync=False, data=data)
    with keeper:
        assert keeper.directory is not None
        directory = keeper.directory.path
        assert directory == data / "server-18"
        assert stat.S_IMODE(keeper.directory.log.stat().st_mode) == 0o600
        with psycopg.connect(keeper.url) as connection:
            connection.execute("create table kept as select 1 as number")
        with pytest.raises(EmbeddedError, match="another run uses"):
            EmbeddedServer(fsync=False, data=data).start()
    try:
        with EmbeddedServer(fsync=False, data=data) as again:
            assert again.pid is not None
            os.kill(again.pid, signal.SIGKILL)
            wait_until(lambda: again.pid is None, "the server is dead")
            before = again.port
            again.start()
            assert again.port == before
            with psycopg.connect(again.url) as connection:
                assert connection.execute("select number from kept").fetchone() == (1,)
    finally:
        assert clean(data) == [directory]
    assert list(data.iterdir()) == []


def numbers(data: Path) -> list[int]:
    """Start the project's server, add a row, and return those there are."""
    with EmbeddedServer(fsync=False, data=data) as ours, psycopg.connect(ours.url) as connection:
        connection.execute("create table if not exists kept (number int)")
        connection.execute("insert into kept select count(*) from kept")
        return [number for (number,) in connection.execute("select number from kept order by 1")]


def test_a_copied_project_has_a_copy_of_the_data_and_a_moved_one_keeps_them(project):
    assert numbers(project / "shop" / ".pg") == [0]
    shutil.copytree(project / "shop", project / "copy", symlinks=True)
    if os.geteuid() == 0:  # cp -a
        for path in (project / "copy").rglob("*"):
            there = (project / "shop" / path.relative_to(project / "copy")).lstat()
            os.chown(path, there.st_uid, there.st_gid, follow_symlinks=False)
    assert numbers(project / "copy" / ".pg") == [0, 1]
    assert numbers(project / "copy" / ".pg") == [0, 1, 2]
    (project / "shop").rename(project / "store")
    assert numbers(project / "store" / ".pg") == [0, 1]


def test_a_project_that_cannot_hold_the_data_has_them_in_the_users_directory(project, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(project / "share"))
    data = project / ("x" * directory.MAX_LENGTH) / ".pg"
    assert numbers(data) == [0]
    assert numbers(data) == [0, 1]
    [found] = (project / "share" / "django-pgjobs").iterdir()
    assert clean(data) == [found]


def test_data_are_kept_where_the_temporary_directory_is_emptied(project, monkeypatch):
    """As a restart of the machine does, or systemd-tmpfiles: it has nothing of a project."""
    temporary = project / "temporary"
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("XDG_DATA_HOME", str(project / "share"))
    beside, elsewhere = project / "shop" / ".pg", project / ("x" * directory.MAX_LENGTH) / ".pg"
    for data in (beside, elsewhere):
        assert numbers(data) == [0]
    shutil.rmtree(temporary)
    temporary.mkdir()
    temporary.chmod(0o1777)
    for data in (beside, elsewhere):
        assert numbers(data) == [0, 1]
        clean(data)


@as_root
def test_roots_project_behind_a_closed_directory_has_its_data_in_the_systems(project, monkeypatch, capsys):
    """As in ``/root``, which the server's account may not enter; its mode stays as it is."""
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    home = project / "home"
    data = home / "shop" / ".pg"
    data.parent.mkdir(parents=True)
    home.chmod(0o700)
    try:
        assert numbers(data) == [0]
        found = Path((data / "server-18").read_text().strip())
        assert found.parent == Path("/var/lib/django-pgjobs")
        assert capsys.readouterr().err == f"a new, empty PostgreSQL 18 for {data} is in {found}\n"
        assert numbers(data) == [0, 1]
        assert capsys.readouterr().err == ""
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
    finally:
        clean(data)


def test_a_new_server_in_place_of_deleted_data_is_told(project, monkeypatch, capsys):
    monkeypatch.setenv("XDG_DATA_HOME", str(project / "share"))
    beside, elsewhere = project / "shop" / ".pg", project / ("x" * directory.MAX_LENGTH) / ".pg"
    for data in (beside, elsewhere):
        assert numbers(data) == [0]
    capsys.readouterr()
    shutil.rmtree(beside / "server-18")
    assert numbers(beside) == [0]
    assert capsys.readouterr().err == f"a new, empty PostgreSQL 18 for {beside} is in {beside / 'server-18'}\n"

    [first] = (project / "share" / "django-pgjobs").iterdir()
    shutil.rmtree(elsewhere)
    with pytest.warns(RuntimeWarning, match=f"{elsewhere}/server-18 are in {first}: write that path into the file"):
        assert numbers(elsewhere) == [0]
    (elsewhere / "server-18").write_text(f"{first}\n")
    assert numbers(elsewhere) == [0, 1]
    clean(elsewhere)


def test_data_without_their_password_are_kept_and_those_of_an_unfinished_run_are_not(project):
    data = project / ".pg"
    assert numbers(data) == [0]
    password = data / "server-18" / "password"
    text = password.read_text()
    password.unlink()
    with pytest.raises(EmbeddedError, match=f"{password} is missing"):
        numbers(data)
    password.write_text(text)
    assert numbers(data) == [0, 1]
    password.rename(data / "server-18" / "initial-password")  # killed in initdb
    assert numbers(data) == [0]


@as_root
def test_data_of_another_user_are_refused_and_stay(project):
    data = project / ".pg"
    assert numbers(data) == [0]
    os.chown(data / "server-18", 12345, -1)
    with pytest.raises(EmbeddedError, match=r"server-18 belongs to another user: run as uid 12345"):
        numbers(data)
    os.chown(data / "server-18", 0, -1)
    assert numbers(data) == [0, 1]


def test_a_halted_server_resumes_with_its_data_and_port():
    with EmbeddedServer(fsync=False) as ours:
        url = ours.url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table survivor as select 1 as number")
            ours.halt(immediate=True)
            assert ours.pid is None
        assert ours.start() == url
        with psycopg.connect(url) as connection:
            assert connection.execute("select number from survivor").fetchone() == (1,)


def test_its_parameters_can_be_set_and_count_from_the_next_start():
    with EmbeddedServer(fsync=False, settings={"max_connections": "20"}) as running:

        def shown() -> object:
            with psycopg.connect(running.url) as connection:
                return connection.execute("SHOW max_connections").fetchone()

        assert shown() == ("20",)
        running.settings["max_connections"] = "30"
        running.halt()
        running.start()
        assert shown() == ("30",)


def test_a_taken_port_is_replaced(monkeypatch):
    with EmbeddedServer(fsync=False) as first:
        second = EmbeddedServer(fsync=False)
        second.port = first.port
        with second:
            assert second.port != first.port


def test_letters_beyond_ascii_have_upper_case_and_order_is_by_code_point():
    with EmbeddedServer(fsync=False) as ours, psycopg.connect(ours.url) as connection:
        row = connection.execute("select upper('äé'), 'Z' < 'a', current_setting('server_encoding')").fetchone()
    assert row == ("ÄÉ", True, "UTF8")


def test_the_older_packaged_version_runs_too():
    with EmbeddedServer(major=16, fsync=False) as ours, psycopg.connect(ours.url) as connection:
        assert connection.info.server_version // 10000 == 16


@as_root
def test_programs_that_the_account_cannot_reach_are_copied(tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    packaged = EmbeddedServer()._given.parent
    (hidden / packaged.name).symlink_to(packaged)
    with EmbeddedServer(fsync=False, binaries=hidden / packaged.name / "bin") as ours:
        assert ours.directory is not None
        assert (ours.directory.path / "programs").is_dir()
        assert ours.directory.path.stat().st_mode & stat.S_IRWXO == stat.S_IXOTH
        assert ours.directory.data.stat().st_uid != 0
    assert hidden.stat().st_mode & 0o777 == 0o700


@as_root
def test_nobody_runs_the_server_where_postgres_does_not_exist(monkeypatch):
    known = pwd.getpwnam

    def without_postgres(name: str) -> pwd.struct_passwd:
        if name == "postgres":
            raise KeyError(name)
        return known(name)

    monkeypatch.setattr("pwd.getpwnam", without_postgres)
    with EmbeddedServer(fsync=False) as ours:
        assert ours.account.name == "nobody"
        assert ours.directory is not None
        assert ours.directory.data.stat().st_uid == known("nobody").pw_uid
