"""The directory and the account of an embedded server: a locked directory of its own, an account without rights.

A server that keeps no data has a temporary directory. One that keeps them has ``server-18`` in the directory that the
project names; or, where that cannot hold a server, one in the user's data directory, and a file ``server-18`` that
names it. Nothing here starts a server, or changes the mode or owner of an existing path.
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
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

STOP_SECONDS = 30.0
POLL_SECONDS = 0.02
MAX_LENGTH = 81  # a socket's path may have 103 bytes on macOS, 107 on Linux

EPHEMERAL = "pgjobs-run-"


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
        self.initial = path / "initial-password"
        self.project = path / "project"
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
            raise PermissionError(f"{self.path} belongs to another user; run as uid {status.st_uid}, or delete it")

    @classmethod
    def temporary(cls, account: ServerAccount) -> ServerDirectory:
        """Make and lock a new, empty directory."""
        base = find_base(account)
        while True:
            # Another process that removes stale directories may remove this one before we have locked it.
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                return cls(Path(tempfile.mkdtemp(prefix=EPHEMERAL, dir=base)))

    @classmethod
    def kept(cls, remembered: Path, account: ServerAccount) -> ServerDirectory:
        """Lock the directory of the data of ``remembered``; make it if there is none.

        Raises EmbeddedError if it can be made nowhere, another run uses it or it is another user's.
        """
        refuse_others(remembered)
        directory = reopen(recall(remembered) or make_home(remembered, account))
        directory.project.write_text(f"{remembered}\n")  # which may have moved
        return directory

    def furnish(self, account: ServerAccount) -> None:
        """Make the subdirectories that belong to the account, and let it enter. Raises OSError."""
        self.path.chmod(0o700 if account.uid is None else 0o711)
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

    def is_unfinished(self) -> bool:
        """Tell whether a run was killed while it made the server, so that nothing can be lost with it."""
        return not self.password.exists() and (self.initial.exists() or not any(self.data.iterdir()))

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

        A copy of a directory has the pid file of the server of the original, which is not ours to stop.
        The signal is sent as the server's account, because that account wrote the pid. Raises EmbeddedError
        if the server still listens after STOP_SECONDS.
        """
        deadline = time.monotonic() + STOP_SECONDS
        if self._is_copy():
            (self.data / "postmaster.pid").unlink()
        served = self.is_served()
        if served:
            argv = ["/bin/sh", "-c", 'kill -INT "$1"', "kill", self.postmaster()[0]]
            account.run(argv, cwd=self.path)
        while served or self._is_stopping():
            if time.monotonic() > deadline:
                raise EmbeddedError(f"the server left behind in {self.path} does not stop")
            time.sleep(POLL_SECONDS)
            served = self.is_served()

    def _is_copy(self) -> bool:
        """Tell whether the pid file names another directory: not this one by another path, nor before it was moved."""
        lines = self.postmaster()
        with contextlib.suppress(OSError):
            return len(lines) > 1 and not os.path.samefile(lines[1], self.data)
        return False

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
        if base.is_dir() and not obstacle(base / f"{EPHEMERAL}12345678", account):
            return base
    raise EmbeddedError("no temporary directory that the server's account can use; set TMPDIR or DATABASE_URL")


def make_home(remembered: Path, account: ServerAccount) -> Path:
    """Make a directory for the data of ``remembered``: there, or in the user's data directory and named there.

    Warns if ``remembered`` names one that is gone or another project's, or if this project has one that it does not
    name. Raises EmbeddedError if neither can hold a server.
    """
    data = remembered.parent
    elsewhere = user_data() / f"{data.parent.name[:16]}-"
    why = []
    if remembered.is_file():
        gone = f"{remembered} names {remembered.read_text().strip()}, which is gone or another project's"
        warnings.warn(f"{gone}: this project has a new, empty server", RuntimeWarning, stacklevel=2)
        remembered.unlink()
    for path in (remembered, elsewhere):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            found = obstacle(path, account)
        except OSError as error:
            found = str(error.strerror)
        if found:
            why.append(f"{path}: {found}")
            continue
        data.mkdir(parents=True, exist_ok=True)
        (data / ".gitignore").write_text("*\n")
        if path == remembered:
            path.mkdir(mode=0o700, exist_ok=True)
        else:
            unnamed = [str(each) for each in path.parent.iterdir() if owner_of(each) == str(remembered)]
            if unnamed:
                named = f"the data that a project has kept for {remembered} are in {', '.join(unnamed)}"
                cure = "write that path into the file to use them, or delete them"
                warnings.warn(f"{named}: {cure}; this project has a new, empty server", RuntimeWarning, stacklevel=2)
            path = Path(tempfile.mkdtemp(prefix=path.name, dir=path.parent))
            remembered.write_text(f"{path}\n")
        return path
    raise EmbeddedError(f"no place for the server's data ({'; '.join(why)}); set XDG_DATA_HOME or DATABASE_URL")


def user_data() -> Path:
    """Return the directory for this program's data of this user, which need not exist; other accounts enter root's."""
    if given := os.environ.get("XDG_DATA_HOME"):
        return Path(given) / "django-pgjobs"
    if os.geteuid() == 0:
        return Path("/var/lib/django-pgjobs")
    mac = sys.platform == "darwin"
    return Path.home() / ("Library/Application Support" if mac else ".local/share") / "django-pgjobs"


def obstacle(path: Path, account: ServerAccount) -> str:
    """Return why no server can live in ``path``, which need not exist, or "". Raises OSError."""
    base = path.parent
    if len(os.fsencode(path)) > MAX_LENGTH:
        return f"longer than {MAX_LENGTH} bytes, so its socket has no room"
    if not is_reachable(base, account):
        return f"closed to {account.name}, who runs the server"
    if not os.access(base, os.W_OK) or os.statvfs(base).f_flag & os.ST_NOEXEC:
        return "not writable, or without programs (noexec)"
    with tempfile.TemporaryDirectory(prefix=".p", dir=base) as name, socket.socket(socket.AF_UNIX) as probe:
        inside = Path(name)
        try:
            account.chown(inside)
            inside.chmod(0o700)
            probe.bind(str(inside / "s"))
        except OSError as error:
            return f"its file system has no owners or sockets ({error.strerror})"
        found = inside.stat()
        if stat.S_IMODE(found.st_mode) != 0o700 or account.uid not in (None, found.st_uid):
            return "its file system keeps no modes and owners"
    return ""


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
    """Return the directory of the data of ``remembered``, itself or the one that it names, if it exists and is ours.

    A copied project names the directory of the original: that is ours only if the original is gone.
    """
    path = remembered
    try:
        if remembered.is_file():
            path = Path(remembered.read_text().strip())
            project = owner_of(path)
            if not project or (project != str(remembered) and Path(project).exists()):
                return None
        return path if path.lstat().st_uid == os.geteuid() else None
    except OSError:
        return None


def owner_of(path: Path) -> str:
    """Return what names a directory of data, the ``remembered`` of its project, or "" if it has none."""
    try:
        return (path / "project").read_text().strip()
    except OSError:
        return ""


def refuse_others(remembered: Path) -> None:
    """Raise EmbeddedError if the data of ``remembered`` are another user's."""
    with contextlib.suppress(OSError):
        path = Path(remembered.read_text().strip()) if remembered.is_file() else remembered
        uid = path.lstat().st_uid
        if uid != os.geteuid():
            raise EmbeddedError(f"{path} belongs to another user: run as uid {uid}, or delete {remembered}")


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
        remembered.unlink(missing_ok=True)
    if data is not None:
        (data / ".gitignore").unlink(missing_ok=True)
    return removed
