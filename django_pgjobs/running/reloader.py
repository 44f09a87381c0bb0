"""``runjobs --reload``: a small parent watches the project's files and restarts the worker as a process.

Django's autoreloader runs its function in a daemon thread and exits through ``sys.exit``: no signal handlers, no drain.
For this reason the parent here only watches, with Django's reloader classes, and the worker is a child: the same
command line, with an environment variable that marks it. After a failed boot the parent waits for the next change.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.utils.autoreload import BaseReloader, get_reloader

from django_pgjobs.logs import log
from django_pgjobs.worker.shared.command_line import entry_point
from django_pgjobs.worker.shared.process import stop_signals

CHILD = "PGJOBS_RELOADED"
STOP_SECONDS = 5.0
POLL_SECONDS = 0.2

FOREIGN = frozenset({"site-packages", "dist-packages", "node_modules", "__pycache__"})
"""Directories whose files are not the project's. Their imported modules are watched nevertheless."""

_leash: int | None = None


def wanted(option: bool | None, options: dict[str, object]) -> bool:
    """Return whether this process only watches: by option or by DEBUG, unless it is the watched child itself."""
    if os.environ.get(CHILD) or options["inline"] or options["until_idle"] or options["max_jobs"]:
        return False
    return settings.DEBUG if option is None else option


def run_with_restarts() -> int:
    """Run the worker as a child and restart it at each change, until a signal comes; return its exit status."""
    changed, stopped = threading.Event(), threading.Event()
    for number in stop_signals():
        signal.signal(number, lambda *_: stopped.set())
    threading.Thread(target=_watch, args=(changed,), name="pgjobs-reload", daemon=True).start()
    log.info("watching files, the worker restarts when they change")
    while True:
        child = _start()
        status = _until(child, changed, stopped)
        if stopped.is_set():
            return _stop(child)
        if status is None:
            log.info("code changed, worker restarts")
            _stop(child)
        else:
            log.warning("worker ended with status %d, waiting for the next change", status)
            while not (changed.wait(POLL_SECONDS) or stopped.is_set()):
                pass
            if stopped.is_set():
                return status
        changed.clear()


def _start() -> subprocess.Popen[bytes]:
    """Start the worker with one end of a pipe whose other end only this process has."""
    global _leash
    arguments = [*entry_point(from_command_line=True), *sys.argv[1:]]
    if _leash is not None:
        os.close(_leash)
    theirs, _leash = os.pipe()
    try:
        return subprocess.Popen(
            arguments, env={**os.environ, CHILD: str(theirs)}, pass_fds=(theirs,), process_group=0
        )  # fmt: skip
    finally:
        os.close(theirs)


def follow_parent() -> None:
    """In the watched child: drain when the parent is gone, however it ended. No other process would restart or stop
    it."""
    descriptor = os.environ.get(CHILD, "")
    if descriptor.isdigit():
        os.set_inheritable(int(descriptor), False)
        threading.Thread(target=_follow, args=(int(descriptor),), name="pgjobs-parent", daemon=True).start()


def _follow(descriptor: int) -> None:
    while os.read(descriptor, 64):
        pass
    log.warning("the process that watches the files is gone, worker stops")
    os.kill(os.getpid(), signal.SIGTERM)


def _until(child: subprocess.Popen[bytes], changed: threading.Event, stopped: threading.Event) -> int | None:
    """Wait for the child's end (its status), or for a change or signal (None)."""
    while not (changed.is_set() or stopped.is_set()):
        try:
            return child.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    return None


def _stop(child: subprocess.Popen[bytes]) -> int:
    """Drain the child: SIGTERM, a second one to hurry, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            child.send_signal(number)
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    return child.wait()


def _watch(changed: threading.Event) -> None:
    reloader: BaseReloader = get_reloader()
    base = Path(settings.BASE_DIR) if hasattr(settings, "BASE_DIR") else Path.cwd()
    seen: dict[Path, float] = {}
    first = True
    while True:
        for path in {*reloader.watched_files(include_globs=False), *sources(base)}:
            try:
                mtime = path.stat().st_mtime
            except OSError:
                continue
            if not first and seen.get(path) != mtime:
                changed.set()
            seen[path] = mtime
        first = False
        threading.Event().wait(1.0)


def sources(base: Path) -> Iterator[Path]:
    """Yield the Python files of a project: not those of environments, installed packages and hidden directories."""
    for directory, names, files in os.walk(base):
        path = Path(directory)
        names[:] = [name for name in names if not (name.startswith(".") or name in FOREIGN)]
        names[:] = [name for name in names if not (path / name / "pyvenv.cfg").exists()]
        yield from (path / name for name in files if name.endswith(".py"))
