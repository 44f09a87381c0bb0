"""In the supervisor: the template of its executors, a copy of the worker that forks them (see ``executor.template``).

The supervisor stays the executors' parent: while the template forks one, the supervisor is the subreaper that the
kernel gives orphans to. It leaves all others alone: the flag is off again before anything else runs. If the
template is gone, whatever it was about to fork is in its process group, is killed and reaped, and executors start as
new programs from then on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from django.db import connections

from django_pgjobs.logs import listed, log
from django_pgjobs.worker.executor import template
from django_pgjobs.worker.shared import process

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)

END_SECONDS = 1.0
"""Time limit of the end of a template that was dismissed or killed."""

SPAWNED = "each executor imports the project itself"


class TemplateLost(Exception):
    """The template cannot fork any more."""


@dataclass(slots=True)
class Forked:
    """A process that is our child though we have not started it; the part of ``Popen`` that the supervisor needs."""

    pid: int

    def poll(self) -> int | None:
        """Reap it if it has ended, and return its status as ``Popen.returncode`` tells it; None while it lives."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end, reap it and return its status."""
        return self._reap(0) or 0

    def _reap(self, options: int) -> int | None:
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            return 0  # reaped by other code, as ``Popen`` takes it
        return os.waitstatus_to_exitcode(status) if pid else None


class ExecutorTemplate:
    """The template of a worker, or why it has none: ``obstacle``, with its cure. Main thread only."""

    def __init__(self, obstacle: str) -> None:
        self.obstacle = obstacle
        self.pid = 0
        self.sock: socket.socket | None = None
        self.strays: set[int] = set()
        """Orphans that have become our children beside the executors; to be reaped."""

    @classmethod
    def start(cls, prepare: Callable[[], object]) -> ExecutorTemplate:
        """Fork the template from this process, unless something here forbids that. Raises nothing.

        The template calls ``prepare`` once, before it forks anything.
        """
        started = cls(obstacle())
        if not started.obstacle:
            try:
                started._fork_template(prepare)
            except OSError as error:
                started.obstacle = f"its template cannot be started: {error}"
        return started

    def _fork_template(self, prepare: Callable[[], object]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        supervisor = os.getpid()
        process.flush_streams()  # what is buffered would be written twice
        try:
            self.pid = os.fork()
            if not self.pid:
                with suppress(BaseException):
                    ours.close()
                    os.setpgid(0, 0)
                    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                    if os.getppid() == supervisor:
                        template.serve(theirs, prepare)
                os._exit(1)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)  # whichever of the two is first
        self.sock = ours

    def fork(self, arguments: Mapping[str, object], descriptors: tuple[int, int], seconds: float) -> Forked:
        """Have an executor forked, and return it: the leader of its own group, waiting for ``template.GO``.

        Blocks, ``seconds`` at most. Raises ``OSError`` if the system refuses another process; ``TemplateLost`` if the
        template does not answer, and is ended for it.
        """
        if self.sock is None:
            raise TemplateLost
        with self._adopting():
            try:
                self.sock.settimeout(seconds)
                socket.send_fds(self.sock, [json.dumps(arguments).encode()], descriptors)
                answer = self.sock.recv(template.MOST_BYTES)
            except OSError:
                answer = b""
            if not answer:
                self.give_up()
                raise TemplateLost
        answered = json.loads(answer)
        if "errno" in answered:
            raise OSError(answered["errno"], os.strerror(answered["errno"]))
        self.strays.discard(answered["pid"])
        with suppress(OSError):
            os.setpgid(answered["pid"], answered["pid"])
        return Forked(answered["pid"])

    def tick(self) -> None:
        """Reap strays, and see whether it is still there.

        It never speaks unasked: what can be read is the end of its stream.
        """
        self.strays = {pid for pid in self.strays if Forked(pid).poll() is None}
        if self.sock is not None:
            self.sock.settimeout(0)
            try:
                self.sock.recv(1)
            except BlockingIOError:
                return
            except OSError:
                pass
            self.give_up()

    def give_up(self) -> None:
        """End a template that is gone or silent, and what it was about to fork; says so, once."""
        if self.sock is not None:
            status = self._end(self.sock, patience=0.0)
            log.warning(
                "template of the executors is gone, from now on %s and starts slower; "
                "restart the worker to have one again status=%s", SPAWNED, status,
            )  # fmt: skip

    def close(self) -> None:
        """Dismiss it, and wait for its end."""
        if self.sock is not None:
            self._end(self.sock, patience=END_SECONDS)

    def _end(self, sock: socket.socket, *, patience: float) -> int | None:
        """Close the socket and see that nothing of its group is left; return its exit status, None if unknown."""
        sock.close()
        self.sock = None
        found: int | None = None
        kill_at = time.monotonic() + patience
        until = kill_at + END_SECONDS
        while time.monotonic() < until:
            if time.monotonic() >= kill_at:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            try:
                ended = os.waitid(os.P_PGID, self.pid, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                break
            if ended is None:
                time.sleep(0.002)
            elif ended.si_pid == self.pid:
                found = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return found

    @contextmanager
    def _adopting(self) -> Iterator[None]:
        """Within the block this process becomes the parent of descendants whose parent ends; notes them as strays."""
        before = _children()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            _prctl(PR_SET_CHILD_SUBREAPER, 0)
            self.strays |= _children() - before


def _children() -> set[int]:
    """Return the children of the main thread, to which orphans come; empty if the kernel does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as listing:
            return set(map(int, listing.read().split()))
    except OSError:
        return set()


def _prctl(option: int, value: int) -> None:
    import ctypes  # here: a worker without a template does without

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def obstacle() -> str:
    """Return why a copy of this process would be of no use, with the cure; empty if none is known."""
    if sys.platform != "linux":
        return "this system is not Linux"
    if library := process.patched_by():
        return f"threads are patched by {library}; start workers by a manage.py that patches nothing"
    try:
        _prctl(PR_SET_CHILD_SUBREAPER, 0)
        threads, streams = len(os.listdir("/proc/self/task")), _own_streams()
    except (ImportError, OSError) as error:
        return f"this system does not let a worker adopt processes: {error}"
    if threads > 1:
        names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        native = threads - 1 - len(names)
        found: list[str] = [listed(names)] if names else []
        found += [f"{native} of a C library, where OPENBLAS_NUM_THREADS=1 helps with numpy"] if native > 0 else []
        return (
            f"the import of the project started threads ({'; '.join(found)}); "
            "start them in a receiver of executor_started instead"
        )
    used = [wrapper.alias for wrapper in connections.all(initialized_only=True) if wrapper.connection is not None]
    if used:
        return (
            f"the import of the project opened a connection to the database ({listed(used)}); "
            "ask the database when it is needed, or in a receiver of executor_started"
        )
    if streams:
        return (
            f"the import of the project opened {streams} sockets or pipes; "
            "open them when they are needed, or in a receiver of executor_started"
        )
    return ""


def _own_streams() -> int:
    """Return how many connections and pipes this process has made itself: two processes must not share one.

    What it got from the program that started it is inheritable, what Python and libpq open is not. Datagrams of several
    processes do not mix, and ``logging`` sends them to the system's log.
    """
    descriptors = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
    return sum(map(_is_own_stream, descriptors))


def _is_own_stream(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISSOCK(mode):
            return stat.S_ISFIFO(mode) and not os.get_inheritable(descriptor)
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            if sock.type == socket.SOCK_DGRAM:
                return False
            if os.get_inheritable(descriptor):
                # A C library's connection to another host, perhaps; no program hands such a one on.
                return sock.family != socket.AF_UNIX and bool(sock.getpeername())
            return True
    except OSError:
        return False
