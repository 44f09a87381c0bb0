"""The template as its supervisor sees it: what forbids it, what it answers, and how its forks are reaped."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from django_pgjobs.worker.shared import process as process_state
from django_pgjobs.worker.supervisor import template as rooms
from django_pgjobs.worker.supervisor.template import ExecutorTemplate, Forked, TemplateLost
from tests.plugins.fix_db import wait_until

ARGUMENTS = {"threads": 1}


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A child that leads its own group, in the place of a template."""
    child = subprocess.Popen(["/bin/sleep", "100"], process_group=0)
    yield child
    child.kill()
    child.wait()


@pytest.fixture
def template(process: subprocess.Popen[bytes]) -> Iterator[tuple[ExecutorTemplate, socket.socket]]:
    """A template, and its end of the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = ExecutorTemplate("")
    made.pid, made.sock = process.pid, ours
    yield made, theirs
    theirs.close()
    made.close()


def test_another_system_has_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    made = ExecutorTemplate.start(lambda: None)
    assert (made.obstacle, made.sock) == ("this system is not Linux", None)
    with pytest.raises(TemplateLost):
        made.fork(ARGUMENTS, (0, 1), 1.0)
    made.tick()
    made.close()


def test_a_program_that_patches_threads_has_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state, "patched_by", lambda: "gevent")
    made = ExecutorTemplate.start(lambda: None)
    assert made.obstacle.startswith("threads are patched by gevent; start workers")
    assert made.sock is None


def test_a_kernel_that_refuses_the_call_has_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(option: int, value: int) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(rooms, "_prctl", refuse)
    assert "does not let a worker adopt processes: [Errno 1]" in ExecutorTemplate.start(lambda: None).obstacle


def test_a_call_that_does_not_exist_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        rooms._prctl(-1, 0)


def test_threads_are_named_those_of_libraries_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="of-the-project")
    thread.start()
    real, threads = os.listdir, ["0"] * (threading.active_count() + 2)
    monkeypatch.setattr(os, "listdir", lambda path: threads if path == "/proc/self/task" else real(path))
    found = ExecutorTemplate.start(lambda: None).obstacle
    over.set()
    thread.join()
    assert "of-the-project" in found
    assert "2 of a C library" in found


def test_an_error_of_the_system_is_raised_and_the_template_stays(
    template: tuple[ExecutorTemplate, socket.socket], process: subprocess.Popen[bytes]
) -> None:
    made, theirs = template
    theirs.send(json.dumps({"errno": errno.EAGAIN}).encode())
    with pytest.raises(BlockingIOError):
        made.fork(ARGUMENTS, (0, 1), 1.0)
    made.tick()
    assert made.sock is not None
    assert process.poll() is None


@pytest.mark.parametrize("how", ["silent", "gone"])
def test_a_template_without_an_answer_is_ended_and_lost(
    template: tuple[ExecutorTemplate, socket.socket], process: subprocess.Popen[bytes], how: str
) -> None:
    made, theirs = template
    if how == "gone":
        theirs.close()
    with pytest.raises(TemplateLost):
        made.fork(ARGUMENTS, (0, 1), 0.05)
    assert made.sock is None
    assert not os.path.exists(f"/proc/{process.pid}"), "killed and reaped"
    with pytest.raises(TemplateLost):
        made.fork(ARGUMENTS, (0, 1), 0.05)


def test_a_request_carries_its_descriptors(template: tuple[ExecutorTemplate, socket.socket]) -> None:
    made, theirs = template
    theirs.send(json.dumps({"pid": 2**22 + 1}).encode())  # of no process
    reading, writing = os.pipe()
    forked = made.fork(ARGUMENTS, (writing, reading), 1.0)
    assert forked.pid == 2**22 + 1
    data, descriptors, _, _ = socket.recv_fds(theirs, 1000, 2)
    assert json.loads(data) == ARGUMENTS
    os.write(descriptors[0], b"through")
    assert os.read(reading, 100) == b"through"
    for descriptor in (reading, writing, *descriptors):
        os.close(descriptor)


def test_an_orphan_that_comes_along_is_reaped_when_it_ends(template: tuple[ExecutorTemplate, socket.socket]) -> None:
    """A job's program has left its child behind while an executor was forked."""
    made, theirs = template
    parent = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 100 & echo $!; read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    stdin, stdout = parent.stdin, parent.stdout
    assert stdin is not None
    assert stdout is not None
    orphan = int(stdout.readline())
    stdout.close()

    def leave_it() -> None:
        _, descriptors, _, _ = socket.recv_fds(theirs, 1000, 2)
        for descriptor in descriptors:
            os.close(descriptor)
        stdin.close()
        parent.wait()
        theirs.send(json.dumps({"pid": 2**22 + 1}).encode())

    leaving = threading.Thread(target=leave_it)
    leaving.start()
    reading, writing = os.pipe()
    made.fork(ARGUMENTS, (reading, writing), 30.0)
    leaving.join()
    os.close(reading)
    os.close(writing)
    assert made.strays == {orphan}
    made.tick()
    assert made.strays == {orphan}, "it lives"
    os.kill(orphan, signal.SIGKILL)

    def reaped() -> bool:
        made.tick()
        return not made.strays

    wait_until(reaped, 10, "it is reaped")
    assert not os.path.exists(f"/proc/{orphan}")


def test_a_tick_notices_the_end_and_says_it_once(
    template: tuple[ExecutorTemplate, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    made, theirs = template
    made.tick()
    assert made.sock is not None
    theirs.close()
    for _ in range(3):
        made.tick()
    assert [record.getMessage()[:33] for record in caplog.records] == ["template of the executors is gone"]


def test_the_end_of_a_fork_is_told_as_of_any_process() -> None:
    exits = subprocess.Popen(["/bin/sh", "-c", "exit 3"])
    assert Forked(exits.pid).wait() == 3
    assert Forked(exits.pid).poll() == 0, "reaped already"
    killed = subprocess.Popen(["/bin/sleep", "100"])
    forked = Forked(killed.pid)
    assert forked.poll() is None
    killed.kill()
    assert forked.wait() == -signal.SIGKILL
    exits.wait()
    killed.wait()
