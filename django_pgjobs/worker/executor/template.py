"""The template: a process that has imported the project, and copies itself into executors by ``fork``.

The worker forks it before its own first thread and connection. It has one thread, no connection and no database
work; it freezes what the garbage collector knows, so that its copies share that memory. A request on its socket brings
an executor's socket and board. The template forks twice: the process in between ends at once, and the kernel makes the
supervisor, a subreaper for that moment, the executor's parent. The executor then stays in the template's process group
and waits for one byte on its channel: the supervisor has made it the leader of its own group and watches over it. If
the supervisor never sends it, the executor ends.
"""

from __future__ import annotations

import atexit
import errno
import gc
import json
import os
import socket
import stat
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pkgutil import iter_modules
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from django_pgjobs.worker.shared import process
from django_pgjobs.worker.shared.build import build

PACKAGES = (
    "definition", "ends", "execution", "flows", "inspection", "models", "queues", "registering", "steering", "store",
    "values",
)  # fmt: skip
"""Our packages of which a job may import something late: after a deploy it would be of another version."""

GO = b"g"
"""The byte that starts an executor."""

MOST_BYTES = 65_536
"""Maximum size of a request and of an answer."""

_ARGUMENTS = 48 - 3
"""Place of the addresses of the program's arguments in ``/proc/self/stat``, behind its name."""


def serve(requests: socket.socket, prepare: Callable[[], object]) -> NoReturn:
    """Be the template until the supervisor closes ``requests``; never returns. In a fresh fork, main thread only.

    ``prepare`` is called first.
    """
    status = 1
    try:
        _leave_behind(requests.fileno())
        name_process("template")
        prepare()
        _load()
        # A handler, not SIG_IGN, which executors would inherit.
        with process.handling(lambda *_: None):
            while request := _receive(requests):
                _answer(requests, *request)
        status = 0
    except OSError:
        pass  # the supervisor is gone
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        process.flush_streams()
        os._exit(status)


def _leave_behind(kept: int) -> None:
    """Take an empty stdin, and end the pipes and sockets that the program before the worker has let it inherit.

    Temporary directories that the import has made end with the worker: no executor removes them before.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        # Python's own descriptors are not inheritable. These may also be those of a C library, which would write into
        # whatever gets the number next.
        with suppress(OSError):
            if descriptor > 2 and descriptor != kept and os.get_inheritable(descriptor):
                mode = os.fstat(descriptor).st_mode
                if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                    os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if isinstance((finalizer.peek() or [None])[0], TemporaryDirectory):
            finalizer.atexit = False


def _load() -> None:
    """Load what every executor needs, and let the collector never touch it again."""
    from django_pgjobs.store.database import read_statements  # here: the supervisor does without
    from django_pgjobs.worker.executor import main as main  # here: the supervisor does without

    for package in PACKAGES:
        for found in iter_modules(import_module(f"django_pgjobs.{package}").__path__, f"django_pgjobs.{package}."):
            import_module(found.name)
    read_statements()
    build()
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("A callback of os.register_at_fork has started a thread: no executor can be forked.")
    gc.collect()
    gc.freeze()


def _receive(requests: socket.socket) -> tuple[dict[str, object], list[int]] | None:
    data, descriptors, _, _ = socket.recv_fds(requests, MOST_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
    return (json.loads(data), descriptors) if data else None


def _answer(requests: socket.socket, request: dict[str, object], descriptors: list[int]) -> None:
    """Fork an executor and send its pid, or the number of the error."""
    reading, writing = os.pipe()
    try:
        between = os.fork()
    except OSError as error:
        answer = json.dumps({"errno": error.errno}).encode()
    else:
        if not between:
            _be_between(request, descriptors, writing, others=(requests.fileno(), reading))
        os.close(writing)
        writing = -1
        answer = os.read(reading, MOST_BYTES)
        with suppress(ChildProcessError):  # a handler of the project for SIGCHLD has reaped it
            os.waitpid(between, 0)
    finally:
        for descriptor in (reading, writing, *descriptors):
            if descriptor >= 0:
                os.close(descriptor)
    requests.send(answer or json.dumps({"errno": errno.EAGAIN}).encode())


def _be_between(request: dict[str, object], descriptors: list[int], writing: int, others: tuple[int, int]) -> NoReturn:
    """Fork the executor, tell its pid and end; never returns in either process."""
    status = 1
    try:
        try:
            executor = os.fork()
        except OSError as error:
            os.write(writing, json.dumps({"errno": error.errno}).encode())
        else:
            if not executor:
                for descriptor in (writing, *others):
                    os.close(descriptor)
                status = _be_executor(request, *descriptors)
            else:
                os.write(writing, json.dumps({"pid": executor}).encode())
    finally:
        os._exit(status)


def _be_executor(request: dict[str, Any], channel: int, board: int) -> int:
    """Be an executor; return its exit status if it cannot start."""
    if os.read(channel, len(GO)) != GO:
        return 1
    from django_pgjobs.worker.executor import main  # here: the template has loaded it

    status = 1
    try:
        process.forks = 0
        name_process("executor", request["application_name"])
        sys.argv[1:] = ["pgjobs", "executor"]
        if (numpy := sys.modules.get("numpy.random")) is not None:
            numpy.seed()  # the module random does so itself
        main.main(channel_fd=channel, board_fd=board, **request)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else status
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with suppress(BaseException):
        atexit._run_exitfuncs()
    process.flush_streams()
    return status


def name_process(*words: str) -> None:
    """Show ``pgjobs`` and these words as this process' command line, as far as there is room."""
    with suppress(OSError, IndexError, ValueError), open("/proc/self/stat", "rb") as status:
        fields = status.read().rpartition(b")")[2].split()
        begin, end = int(fields[_ARGUMENTS]), int(fields[_ARGUMENTS + 1])
        title = b"\0".join(word.encode() for word in ("pgjobs", *words))
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            memory.write(title[: end - begin - 1].ljust(end - begin, b"\0"))
