"""The directory and the account of an embedded server: a locked directory of its own, an account without rights.

Nothing here starts a server, or changes the mode or owner of an existing path.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

STOP_SECONDS = 30.0
POLL_SECONDS = 0.02
MAX_BASE_LENGTH = 70  # a socket's path may have 103 bytes on macOS, 107 on Linux

EPHEMERAL = "pgjobs-run-"
KEPT = "pgjobs-keep-"


class EmbeddedError(RuntimeError):
    """The server could not be found, prepared or started; the message says why."""


@dataclass(frozen=True)
class ServerAccount:
    """The account that the server runs as; without a uid the caller's."""

    name: str
    uid: int | None = None
    gid: int | None = None

    @classmethod
    def choose(cls) -> ServerAccount:
        """Return the caller, or for root an existing account without rights.

        Raises EmbeddedError if root has neither ``postgres`` nor ``nobody``.
        """
        if os.geteuid() != 0:
            return cls("the current user")
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(name, entry.pw_uid, entry.pw_gid)
        raise EmbeddedError("PostgreSQL refuses to run as root, and neither postgres nor nobody exists here")

    def chown(self, path: Path) -> None:
        """Make this account the owner of a path that we have just created."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def popen(self, argv: Sequence[str | Path], *, cwd: Path, **options: Any) -> subprocess.Popen[str]:
        """Start a program as this account, in a session of its own and with an environment of its own."""
        if self.uid is not None:
            options |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
        return subprocess.Popen(argv, cwd=cwd, env=environment, start_new_session=True, text=True, **options)

    def run(self, argv: Sequence[str | Path], *, cwd: Path) -> tuple[int, str]:
        """Run a program as this account; return its exit status and all it wrote. Raises OSError."""
        with self.popen(
            argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            output, _ = process.communicate()
            return process.returncode, output


class ServerDirectory:
    """The one directory of one server, locked for as long as the object is open.

    The lock is a flock on the directory itself, which systemd-tmpfiles respects too.
    """

    def __init__(self, path: Path) -> None:
        """Lock an existing directory. Raises BlockingIOError if it is locked, OSError if it is not ours."""
        self.path = path
        self.data = path / "data"
        self.socket = path / "socket"
        self.log = path / "server.log"
        self.password = path / "password"
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check()
        except OSError:
            os.close(self._fd)
            raise

    def _check(self) -> None:
        status = os.fstat(self._fd)
        if not os.path.samestat(status, self.path.lstat()):
            raise FileNotFoundError(f"{self.path} was replaced")
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{self.path} belongs to another user")

    @classmethod
    def fresh(cls, prefix: str, account: ServerAccount) -> ServerDirectory:
        """Make and lock a new, empty directory."""
        base = find_base(account)
        while True:
            # Another process that removes stale directories may remove this one before we have locked it.
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                return cls(Path(tempfile.mkdtemp(prefix=prefix, dir=base)))

    def furnish(self, account: ServerAccount) -> None:
        """Make the subdirectories that belong to the account, and let it enter. Raises OSError."""
        if account.uid is not None:
            self.path.chmod(0o711)
        for part in (self.data, self.socket):
            part.mkdir(mode=0o700)
            account.chown(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the directory and leave it where it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Delete the directory, then unlock it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def postmaster(self) -> list[str]:
        """Return the lines of the server's pid file: pid, data, start, port, …, status; empty without one."""
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    def is_served(self) -> bool:
        """Tell whether a server listens on this directory's socket, to which only its account has access.

        A pid alone proves nothing: after a crash the file stays, and the number may be another program's.
        """
        lines = self.postmaster()
        if len(lines) < 4:
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket / f".s.PGSQL.{lines[3]}")) == 0

    def stop_stale(self, account: ServerAccount) -> None:
        """Stop a server that an earlier run left behind, or wait for one that is stopping.

        The signal is sent as the server's account, because that account wrote the pid. Raises EmbeddedError
        if the server still listens after STOP_SECONDS.
        """
        deadline = time.monotonic() + STOP_SECONDS
        served = self.is_served()
        if served:
            argv = ["/bin/sh", "-c", 'kill -INT "$1"', "kill", self.postmaster()[0]]
            account.run(argv, cwd=self.path)
        while served or self._is_stopping():
            if time.monotonic() > deadline:
                raise EmbeddedError(f"the server left behind in {self.path} does not stop")
            time.sleep(POLL_SECONDS)
            served = self.is_served()

    def _is_stopping(self) -> bool:
        lines = self.postmaster()
        if len(lines) < 8 or lines[7].strip() != "stopping":
            return False
        try:
            os.kill(int(lines[0]), 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def is_reachable(directory: Path, account: ServerAccount) -> bool:
    """Tell whether the account may enter a directory, judged by the modes of all its parents."""
    if account.uid is None:
        return True
    return all(part.stat().st_mode & stat.S_IXOTH for part in (directory, *directory.parents))


def find_base(account: ServerAccount) -> Path:
    """Return the temporary directory in which a server can live: writable, reachable, with a short name.

    Raises EmbeddedError if there is none.
    """
    for name in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108  mkdtemp makes the file names
        base = Path(name).resolve()
        usable = base.is_dir() and os.access(base, os.W_OK) and not os.statvfs(base).f_flag & os.ST_NOEXEC
        if usable and len(os.fsencode(base)) <= MAX_BASE_LENGTH and is_reachable(base, account):
            return base
    raise EmbeddedError("no temporary directory that the server's account can use; set TMPDIR or DATABASE_URL")


def remove_stale(account: ServerAccount) -> list[Path]:
    """Stop the servers and delete the directories that ended runs of this user left; return what was deleted.

    A directory whose run still lives is locked and left alone.
    """
    removed = []
    for path in find_base(account).glob(f"{EPHEMERAL}*"):
        # In use, gone by now, another user's, or with a server that does not stop.
        with contextlib.suppress(OSError, EmbeddedError), ServerDirectory(path) as directory:
            directory.stop_stale(account)
            directory.remove()
            removed.append(path)
    return removed


def recall(remembered: Path) -> Path | None:
    """Return the directory a file names, if it still exists and is ours."""
    try:
        path = Path(remembered.read_text().strip())
        ours = path.name.startswith(KEPT) and path.lstat().st_uid == os.geteuid()
    except OSError:
        return None
    return path if ours else None


def reopen(path: Path) -> ServerDirectory:
    """Lock a directory that an earlier run kept. Raises EmbeddedError if a run still uses it."""
    try:
        return ServerDirectory(path)
    except BlockingIOError as error:
        raise EmbeddedError(f"another run uses {path}") from error


def clean(data: Path | None) -> list[Path]:
    """Delete what ended runs left and what ``data`` remembers; return the deleted directories.

    Raises EmbeddedError if a server that ``data`` remembers is in use.
    """
    account = ServerAccount.choose()
    removed = remove_stale(account)
    for remembered in sorted(data.glob("server-*")) if data is not None else ():
        known = recall(remembered)
        if known is not None:
            with reopen(known) as directory:
                directory.stop_stale(account)
                directory.remove()
            removed.append(known)
        remembered.unlink()
    return removed
