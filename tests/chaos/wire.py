"""PostgreSQL's wire protocol, as much of it as a proxy must understand: messages, statement texts, answers.

Source: PostgreSQL manual, chapter "Frontend/Backend Protocol". A client's messages up to a Query or a Sync are one
*group*; the server answers each group with exactly one ReadyForQuery, and has committed by then.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102
ENCRYPTION = (SSL_REQUEST, GSS_REQUEST)


class Messages:
    """Cuts a stream into whole messages: ``feed`` bytes, iterate over what is complete."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield each message that is complete by now, type byte and length included."""
        self.buffer += chunk
        while len(self.buffer) >= 5:
            end = 1 + struct.unpack_from("!I", self.buffer, 1)[0]
            if len(self.buffer) < end:
                return
            message = bytes(self.buffer[:end])
            del self.buffer[:end]
            yield message


@dataclass
class Startup:
    """The first packet of a connection."""

    packet: bytes

    @property
    def code(self) -> int:
        """The protocol's number, or what is asked for instead."""
        return int(struct.unpack_from("!I", self.packet, 4)[0])

    @property
    def parameters(self) -> dict[str, str]:
        """What the client says of itself, ``application_name`` among it."""
        if self.code in (*ENCRYPTION, CANCEL_REQUEST):
            return {}
        words = self.packet[8:].split(b"\0")
        return {key.decode(): value.decode() for key, value in zip(words[::2], words[1::2], strict=False) if key}


@dataclass
class Sent:
    """What a client has sent and the server has not answered: one entry a group, its statement texts."""

    prepared: dict[bytes, str] = field(default_factory=dict)
    portals: dict[bytes, str] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    groups: deque[tuple[str, ...]] = field(default_factory=deque)

    def see(self, message: bytes) -> tuple[str, ...] | None:
        """Take note of a client's message; return the texts of a group that is complete with it."""
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            self.open.append(body.rstrip(b"\0").decode(errors="replace"))
        elif kind == b"P":
            name, _, rest = body.partition(b"\0")
            self.prepared[name] = rest.partition(b"\0")[0].decode(errors="replace")
        elif kind == b"B":
            portal, _, rest = body.partition(b"\0")
            self.portals[portal] = self.prepared.get(rest.partition(b"\0")[0], "")
        elif kind == b"E":
            self.open.append(self.portals.get(body.partition(b"\0")[0], ""))
        if kind not in (b"Q", b"S"):
            return None
        group, self.open = tuple(self.open), []
        self.groups.append(group)
        return group

    def answered(self) -> tuple[str, ...]:
        """The server is ready for the next group; return the one it has answered."""
        return self.groups.popleft() if self.groups else ()
