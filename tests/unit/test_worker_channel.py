"""Frames between supervisor and executor: whole, in pieces, too long, broken; and ends that go away."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator
from typing import Any, cast, get_args

import pytest

from django_pgjobs.worker.shared.channel import MAX_FRAME_BYTES, PROTOCOL, ExecutorEnd, SupervisorEnd, Unpacker, pack
from django_pgjobs.worker.shared.channel_messages import (
    BootFailed,
    Bye,
    Decided,
    Drain,
    FromExecutor,
    Interest,
    Interrupted,
    Learned,
    Logged,
    Notified,
    Notify,
    Progress,
    Reached,
    ReadStack,
    Ready,
    ReleaseRuns,
    RunJobs,
    RunsReleased,
    StackRead,
    StackTaken,
    StopRun,
    StopSoon,
    Successes,
    ToExecutor,
    TrustUntil,
    encode,
    from_executor,
    to_executor,
)

MESSAGES: list[FromExecutor] = [
    Decided([[1, 0.5, "succeeded", '"ä"']]),
    RunsReleased([], "asked"),
    Bye(2**40),
    Successes([1, 2], [500, 700], ["1", None]),
    Progress(3, {"n": 1, "total": None, "message": "é"}),
    Interest(["abandoned", "retried"]),
    Notified(7),
    Interrupted(0.25, ""),
    Learned("shop.pay", ["on_success"]),
    StackRead(3, "line 1"),
    StackTaken(3, "line 1"),
    Logged(3, [[1, 20, "shop", "é\ud800", 1.5]]),
    Ready(
        {
            "protocol": 1,
            "version": "1.0",
            "build": "b",
            "pid": 2,
            "identity": ["it"],
            "jobs": 3,
            "rss": 4,
            "listens": [],
        }
    ),
    BootFailed("it cannot reach its database", True),
    Reached("eu", ["7321", 5, 16384]),
]
ORDERS: list[ToExecutor] = [
    RunJobs(1.5, [(False, 7, "é\ud800", None)]),
    ReleaseRuns([1, 2]),
    StopRun(1, "flag", "cancelled", "anna", "too late"),
    ReadStack(1),
    TrustUntil(2.5, "eu"),
    Notify(3, []),
    StopSoon("recycle", None),
    Drain(),
]
VALUES = list(map(encode, MESSAGES))
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
    assert arrived == VALUES


def test_a_message_longer_than_a_frame_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="longer than"):
        pack(StackRead(1, "x" * MAX_FRAME_BYTES))


@pytest.mark.parametrize(
    "broken", [b"\xff\xff\xff\xff", (3).to_bytes(4, "big") + b"{,}", (1).to_bytes(4, "big") + b"\xff"]
)
def test_what_came_before_the_stream_broke_is_heard(broken: bytes) -> None:
    """An outcome that has arrived counts, whatever the executor wrote after it."""
    heard: list[Any] = []
    with pytest.raises(ValueError, match=r"."):
        heard.extend(Unpacker().feed(STREAM + broken))
    assert heard == VALUES


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
    for order in ORDERS:
        end.send(order)
    assert end.receive() == MESSAGES
    assert (end.eof, end.broken, end.kept) == (False, "", 0)
    assert executor.receive() == ORDERS


@pytest.mark.parametrize(("union", "all_of_it"), [(FromExecutor, MESSAGES), (ToExecutor, ORDERS)])
def test_every_message_arrives_as_it_was_sent_and_has_a_tag_of_its_own(union: Any, all_of_it: list[Any]) -> None:
    decode = from_executor if union is FromExecutor else to_executor
    assert {type(message) for message in all_of_it} == set(get_args(union))
    assert [decode(encode(message)) for message in all_of_it] == all_of_it
    assert len({encode(message)[0] for message in all_of_it}) == len(all_of_it)


@pytest.mark.parametrize(
    "unknown",
    [
        ["SUCCEEDED", [1]], ["DONE"], ["BYE", 1, 2], ["RUN", 1.5, []], ["DRAIN"], ["AGAIN", 1], [], [[]], [None, 1], 5,
        None, "BYE", {"BYE": 1},
    ],
)  # fmt: skip
def test_what_is_no_message_of_an_executor_is_ignored(
    unknown: object, sockets: tuple[socket.socket, socket.socket]
) -> None:
    """By its tag or the number of its fields, as a job may scribble it. What comes behind it is heard."""
    body = json.dumps(unknown).encode()
    sockets[1].sendall(len(body).to_bytes(4, "big") + body + STREAM)
    end = SupervisorEnd(sockets[0])
    assert end.receive() == MESSAGES
    assert (end.eof, end.broken) == (False, "")


def test_an_executor_ignores_orders_that_it_does_not_know(sockets: tuple[socket.socket, socket.socket]) -> None:
    for unknown in (["PAUSE", 1], ["DRAIN", 1], ["BYE", 1]):
        body = json.dumps(unknown).encode()
        sockets[0].sendall(len(body).to_bytes(4, "big") + body)
    SupervisorEnd(sockets[0]).send(Drain())
    assert ExecutorEnd(sockets[1]).receive() == [Drain()]


def test_a_supervisor_of_another_version_understands_who_introduces_itself() -> None:
    """By READY it learns that code was replaced, and stops: whatever else has changed, this frame has not."""
    hello = Ready(
        {"protocol": 1, "version": "99", "build": "b", "pid": 2, "identity": [], "jobs": 3, "rss": 4, "listens": []}
    )
    tag, told = encode(hello)
    assert (tag, told["protocol"], told["version"]) == ("READY", 1, "99")


def test_what_an_executor_writes_is_never_taken_as_marshalled(sockets: tuple[socket.socket, socket.socket]) -> None:
    """A job may scribble on the socket: bytes made to be unmarshalled could end the supervisor."""
    end, executor = SupervisorEnd(sockets[0]), ExecutorEnd(sockets[1])
    run = ORDERS[0]
    end.send(run)
    assert executor.receive() == [run]
    sockets[1].sendall(pack(run))
    assert end.receive() == []
    assert end.eof
    assert end.broken


def test_the_supervisor_keeps_what_the_socket_does_not_take(sockets: tuple[socket.socket, socket.socket]) -> None:
    end, theirs = SupervisorEnd(sockets[0]), sockets[1]
    long = RunJobs(1.5, ["x" * 4 * 1024 * 1024])
    end.send(long)
    assert end.kept > 0
    unpacker = Unpacker(trusted=True)
    arrived: list[Any] = []
    while not arrived:
        arrived += unpacker.feed(theirs.recv(1024 * 1024))
        end.flush()
    assert arrived == [encode(long)]
    assert end.kept == 0


def test_what_is_sent_to_an_end_that_is_gone_is_forgotten(sockets: tuple[socket.socket, socket.socket]) -> None:
    end = SupervisorEnd(sockets[0])
    sockets[1].close()
    end.send(Drain())
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
        executor.send(Bye(0))


def test_a_frame_says_its_length_in_four_bytes() -> None:
    frame = pack(StackRead(1, "é"))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert json.loads(frame[4:]) == ["STACK", 1, "é"]
    assert PROTOCOL >= 1
