"""Frames between supervisor and executor: whole, in pieces, too long, broken; and ends that go away."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from django_pgjobs.worker.shared import channel
from django_pgjobs.worker.shared.channel import MAX_FRAME_BYTES, ExecutorEnd, SupervisorEnd, Unpacker, pack

MESSAGES: list[list[Any]] = [["DONE", [[1, 0.5, "succeed", '"ä"']]], ["BACK", [], "asked"], ["BYE", 2**40]]
STREAM = b"".join(map(pack, MESSAGES))


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, len(STREAM)])
def test_messages_arrive_whole_however_the_stream_is_cut(size: int) -> None:
    unpacker = Unpacker()
    arrived = [message for at in range(0, len(STREAM), size) for message in unpacker.feed(STREAM[at : at + size])]
    assert arrived == MESSAGES


def test_a_message_longer_than_a_frame_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="longer than"):
        pack(["DONE", "x" * MAX_FRAME_BYTES])


@pytest.mark.parametrize(
    "broken", [b"\xff\xff\xff\xff", (3).to_bytes(4, "big") + b"{,}", (1).to_bytes(4, "big") + b"\xff"]
)
def test_what_came_before_the_stream_broke_is_heard(broken: bytes) -> None:
    """An outcome that has arrived counts, whatever the executor wrote after it."""
    heard: list[Any] = []
    with pytest.raises(ValueError, match=r"."):
        heard.extend(Unpacker().feed(STREAM + broken))
    assert heard == MESSAGES


def test_a_broken_stream_ends_the_channel_and_not_the_supervisor(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    end = SupervisorEnd(ours)
    theirs.sendall(STREAM + b"\xff" * 8)
    assert end.receive() == MESSAGES
    assert end.eof
    assert "longer than" in end.broken
    theirs.sendall(STREAM)
    assert end.receive() == []


def test_both_ends_understand_each_other(sockets: tuple[socket.socket, socket.socket]) -> None:
    end, executor = SupervisorEnd(sockets[0]), ExecutorEnd(sockets[1])
    for message in MESSAGES:
        executor.send(message)
        end.send(message)
    assert end.receive() == MESSAGES
    assert (end.eof, end.broken, end.kept) == (False, "", 0)
    assert executor.receive() == MESSAGES


def test_what_an_executor_writes_is_never_taken_as_marshalled(sockets: tuple[socket.socket, socket.socket]) -> None:
    """A job may scribble on the socket: bytes made to be unmarshalled could end the supervisor."""
    end, executor = SupervisorEnd(sockets[0]), ExecutorEnd(sockets[1])
    run = ["RUN", 1.5, [(False, 7, "é\ud800", None)]]
    end.send(run)
    assert executor.receive() == [run]
    sockets[1].sendall(channel.pack_run(run))
    assert end.receive() == []
    assert end.eof
    assert end.broken


def test_the_supervisor_keeps_what_the_socket_does_not_take(sockets: tuple[socket.socket, socket.socket]) -> None:
    end, theirs = SupervisorEnd(sockets[0]), sockets[1]
    long = ["RUN", "x" * 4 * 1024 * 1024]
    end.send(long)
    assert end.kept > 0
    unpacker = Unpacker(trusted=True)
    arrived: list[Any] = []
    while not arrived:
        arrived += unpacker.feed(theirs.recv(1024 * 1024))
        end.flush()
    assert arrived == [long]
    assert end.kept == 0


def test_what_is_sent_to_an_end_that_is_gone_is_forgotten(sockets: tuple[socket.socket, socket.socket]) -> None:
    end = SupervisorEnd(sockets[0])
    sockets[1].close()
    end.send(["DRAIN"])
    assert end.kept == 0
    assert end.receive() == []
    assert end.eof
    end.close()


class Failing:
    """A socket that has been closed under its user."""

    def setblocking(self, flag: bool) -> None: ...

    def recv(self, size: int) -> bytes:
        raise OSError(errno.EBADF, "closed")


def test_a_socket_that_fails_is_an_end_of_the_stream() -> None:
    end = SupervisorEnd(cast(socket.socket, Failing()))
    assert end.receive() == []
    assert (end.eof, end.broken) == (True, "")
    assert ExecutorEnd(cast(socket.socket, Failing())).receive() is None


def test_an_executor_hears_that_its_supervisor_is_gone(sockets: tuple[socket.socket, socket.socket]) -> None:
    executor = ExecutorEnd(sockets[1])
    sockets[0].close()
    assert executor.receive() is None
    with pytest.raises(OSError, match=r"."):
        executor.send(["BYE", 0])


def test_a_frame_says_its_length_in_four_bytes() -> None:
    frame = pack(["BYE", "é"])
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert json.loads(frame[4:]) == ["BYE", "é"]
    assert channel.PROTOCOL >= 1
