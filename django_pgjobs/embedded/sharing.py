"""One embedded server for a project: the first process that needs it starts it, the others find the running one.

``.pg`` in the project has the data, or names their directory. The process that started the server owns it and stops it
at its own end; ``python -m django_pgjobs.embedded --serve`` is an owner that stays. If two processes start at the same
time, a lock on ``.pg`` lets one go first, so there is only one server.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django_pgjobs.embedded.directory import POLL_SECONDS, EmbeddedError, recall
from django_pgjobs.embedded.server import DEFAULT_MAJOR, START_SECONDS, EmbeddedServer

DATA = Path(".pg")
"""The default directory of the data, relative to the current directory."""


def running_url(data: Path, major: int = DEFAULT_MAJOR) -> str | None:
    """Return the DATABASE_URL of the server that another process runs for ``data``, or None. Connects to no server."""
    directory = recall(data.resolve() / f"server-{major}")
    if directory is None or not _is_held(directory):
        return None
    with contextlib.suppress(OSError):
        lines = (directory / "data" / "postmaster.pid").read_text().splitlines()
        if len(lines) > 7 and lines[7].strip() == "ready":
            return f"postgres://postgres:{(directory / 'password').read_text()}@127.0.0.1:{lines[3]}/postgres"
    return None


def share(server: EmbeddedServer, data: Path) -> tuple[str, bool]:
    """Return the URL of the server for ``data``, and whether it is ours: started by this call.

    Blocks until it takes connections. Raises ``EmbeddedError`` when it does not within START_SECONDS.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        with _alone(data):
            url = running_url(data, server.major)
            if url is not None:
                return url, False
            try:
                return server.start(), True
            except EmbeddedError as error:
                # Its owner is just starting or stopping it.
                if "another run uses" not in str(error) or time.monotonic() > deadline:
                    raise
        time.sleep(POLL_SECONDS)


def database(data: str | Path, *, major: int = DEFAULT_MAJOR) -> dict[str, Any]:
    """Return a project's entry of ``DATABASES``: ``DATABASE_URL``, else an embedded server that this call may start.

    ``data``: where the data are, such as ``BASE_DIR / ".pg"``, which git ignores; ``major``: the server's version.
    The server ends with the process that started it, and keeps its data. For development and tests. Blocks until the
    server takes connections; may be repeated. Raises ``EmbeddedError``.
    """
    url = os.environ.get("DATABASE_URL") or _shared_url(Path(data).resolve(), major)
    return settings_of(url)


_urls: dict[tuple[Path, int], str] = {}


def _shared_url(data: Path, major: int) -> str:
    known = _urls.get((data, major))
    if known is None:
        server = EmbeddedServer(major=major, data=data)
        known, ours = share(server, data)
        _urls[data, major] = known
        if ours:
            owner = os.getpid()
            # A forked child runs the same exit functions, but does not own the server.
            atexit.register(lambda: server.stop() if os.getpid() == owner else None)
    return known


def settings_of(url: str) -> dict[str, object]:
    """Return Django's settings for a ``postgres://`` URL; its query becomes ``OPTIONS``. Raises ``EmbeddedError``."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise EmbeddedError(f"DATABASE_URL must begin with postgres://, not {parts.scheme}://")
    found: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.removeprefix("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
    }
    if options := dict(parse_qsl(parts.query)):
        found["OPTIONS"] = options
    return found


def _is_held(directory: Path) -> bool:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def _alone(data: Path) -> Iterator[None]:
    """Keep other processes from searching for or starting this server within the block."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / "lock").open("w")
    except OSError as error:
        raise EmbeddedError(f"{data} cannot be written to: {error.strerror}; set DATABASE_URL") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
