"""Framed messages between supervisor and executor: four bytes of length, then JSON ``[tag, *fields]``.

``channel_messages`` says which messages there are. Only RUN travels marshalled, behind a mark: it is most of what is
sent, and that costs a fifth. An executor runs the interpreter of its supervisor and trusts it. The other way all is
JSON: what a job may have scribbled on the socket must not harm the reader.

Neither side may ever wait for the other while the other waits for it. The supervisor's end never blocks: what the
socket does not take stays in a buffer. The executor's control thread always reads; its job threads may block in a
write, since the supervisor always reads too.
"""

from __future__ import annotations

import json
import marshal
import socket
import threading
from collections.abc import Iterator

from django_pgjobs.worker.shared.channel_messages import (
    FromExecutor,
    RunJobs,
    ToExecutor,
    encode,
    from_executor,
    to_executor,
)

PROTOCOL = 20
MAX_FRAME_BYTES = 32 * 1024 * 1024
CHUNK_BYTES = 256 * 1024

MARSHALLED = b"M"

_as_json = json.JSONEncoder(separators=(",", ":")).encode


class TooLong(ValueError):
    """A message does not fit into a frame."""


def pack(message: FromExecutor | ToExecutor) -> bytes:
    """Return ``message`` as a frame. Raises ``TooLong`` for one that is too long."""
    values = encode(message)
    if type(message) is RunJobs:
        return _framed(MARSHALLED + marshal.dumps(values))
    return _framed(_as_json(values).encode("ascii"))


def _framed(body: bytes) -> bytes:
    if len(body) > MAX_FRAME_BYTES:
        raise TooLong(f"a frame of {len(body)} bytes is longer than {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "big") + body


class Unpacker:
    """Cut a stream of bytes into the values of messages; from the ``trusted`` supervisor some are marshalled."""

    def __init__(self, *, trusted: bool = False) -> None:
        self._buffer = bytearray()
        self._trusted = trusted

    def feed(self, data: bytes) -> Iterator[object]:
        """Add ``data`` and yield the values of each whole frame. Raises ``ValueError`` where the stream is broken."""
        self._buffer += data
        start, end = 0, len(self._buffer)
        while end - start >= 4:
            length = int.from_bytes(self._buffer[start : start + 4], "big")
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes is longer than {MAX_FRAME_BYTES}")
            if end - start - 4 < length:
                break
            yield self._values(self._buffer[start + 4 : start + 4 + length])
            start += 4 + length
        del self._buffer[:start]

    def _values(self, body: bytearray) -> object:
        if self._trusted and body.startswith(MARSHALLED):
            return marshal.loads(memoryview(body)[1:])  # noqa: S302 (of our own supervisor)
        return json.loads(body)


class SupervisorEnd:
    """The supervisor's end of one channel; nothing here blocks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.eof = False
        self.broken = ""
        self._unpacker = Unpacker()
        self._out = bytearray()

    def send(self, message: ToExecutor) -> None:
        """Send, or keep what the socket does not take for ``flush``."""
        self._out += pack(message)
        self.flush()

    def flush(self) -> None:
        """Send what is kept, as far as the socket takes it; to an end that is gone, nothing."""
        try:
            while self._out:
                del self._out[: self.sock.send(self._out)]
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()

    @property
    def kept(self) -> int:
        """Bytes that wait for the socket."""
        return len(self._out)

    def receive(self) -> list[FromExecutor]:
        """Return the messages that have arrived; sets ``eof`` at the end of the stream, and where it is ``broken``."""
        messages: list[FromExecutor] = []
        while not self.eof:
            try:
                data = self.sock.recv(CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.eof = True
            try:
                for values in self._unpacker.feed(data):
                    if (message := from_executor(values)) is not None:
                        messages.append(message)
            except ValueError as error:
                self.eof, self.broken = True, str(error)
        return messages

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


class ExecutorEnd:
    """The executor's end: one thread reads, any thread sends whole frames."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self.sock = sock
        self._unpacker = Unpacker(trusted=True)
        self._sending = threading.Lock()

    def send(self, message: FromExecutor) -> None:
        """Send; blocks until the socket has taken all of it. Raises ``OSError`` when the supervisor is gone."""
        frame = pack(message)
        with self._sending:
            self.sock.sendall(frame)

    def receive(self) -> list[ToExecutor] | None:
        """Block until something arrives and return its messages; None at the end of the stream."""
        try:
            data = self.sock.recv(CHUNK_BYTES)
        except OSError:
            return None
        if not data:
            return None
        arrived = map(to_executor, self._unpacker.feed(data))
        return [message for message in arrived if message is not None]
