"""What an import of the project may do to the process: ``PGJOBS_TEST_IMPORTING`` says what."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from types import ModuleType
from typing import Any

from django.db import connection

from tests.e2e import stage

_kept: list[Any] = []
_forks = 0
_template_group = 0


def do(how: str) -> None:
    stage.here().note("imported", how)
    HOW[how]()


def _thread() -> None:
    _kept.append(threading.Thread(target=threading.Event().wait, name="of-the-project", daemon=True))
    _kept[0].start()


def _query() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _connect() -> None:
    _kept.append(socket.socketpair())


def _open_pipe() -> None:
    """As a pool of processes does, and a program that is to answer on its stdout."""
    _kept.append(os.pipe())


def _let_inherit_pipe() -> None:
    """As a C library does."""
    _kept.append(os.pipe())
    for descriptor in _kept[0]:
        os.set_inheritable(descriptor, True)


def write_into_pipe() -> str:
    """Tell what its writing end is in this process, where one byte more is written into it."""
    os.write(_kept[0][1], b"x")
    return os.readlink(f"/proc/self/fd/{_kept[0][1]}")


def _make_directory() -> None:
    _kept.append(tempfile.TemporaryDirectory())
    weakref.finalize(os, lambda: stage.here().note("ended", os.getpid()))
    stage.here().note("directory", _kept[0].name)


def _reap_children() -> None:
    def reap(*_: object) -> None:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    signal.signal(signal.SIGCHLD, reap)
    os.register_at_fork(after_in_parent=lambda: time.sleep(0.2))  # until the fork has ended, and was reaped


def _start_thread_in_forks() -> None:
    os.register_at_fork(after_in_child=_thread)


def _break_numpy() -> None:
    sys.modules["numpy.random"] = ModuleType("numpy.random")


def _log_by_datagrams() -> None:
    _kept.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))


def _at_fork(act: Any) -> None:
    """Act in the fork that an executor is made by, once: the second after the template's own is the executor itself."""

    def forked() -> None:
        global _forks, _template_group
        _forks += 1
        if _forks == 2:
            _template_group = os.getpgrp()  # an executor that the supervisor knows has left it
        act(_forks)

    os.register_at_fork(after_in_child=forked)


def _once(name: str) -> bool:
    open_already = stage.here().is_open(name)
    stage.here().open(name)
    return not open_already


def _kill_template_in_between(forks: int) -> None:
    if forks == 2 and _once("killed"):
        os.kill(os.getppid(), signal.SIGKILL)


def _kill_template_in_executor(forks: int) -> None:
    if forks == 3 and _once("killed"):
        os.killpg(_template_group, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _hang_in_between(forks: int) -> None:
    if forks == 2 and _once("hung"):
        time.sleep(600)


HOW = {
    "nothing": lambda: None,
    "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "thread": _thread,
    "query": _query,
    "socket": _connect,
    "pipe": _open_pipe,
    "inheritable pipe": _let_inherit_pipe,
    "directory": _make_directory,
    "reaps": _reap_children,
    "no stdin": lambda: os.close(0),
    "thread in forks": _start_thread_in_forks,
    "broken numpy": _break_numpy,
    "datagrams": _log_by_datagrams,
    "kill the template between": lambda: _at_fork(_kill_template_in_between),
    "kill the template and its fork": lambda: _at_fork(_kill_template_in_executor),
    "hang between": lambda: _at_fork(_hang_in_between),
}
