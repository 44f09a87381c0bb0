"""The way from the worker's threads to its main thread: a queue of messages, and a descriptor that wakes a selector."""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress

from django_pgjobs.worker.threads.inbox_messages import InboxMessage


class Inbox:
    """Many threads post, one takes. Nothing here blocks."""

    def __init__(self) -> None:
        self._messages: deque[InboxMessage] = deque()
        self.wakes, self._wake = socket.socketpair()
        self.wakes.setblocking(False)
        self._wake.setblocking(False)

    def post(self, message: InboxMessage) -> None:
        """Add a message and wake the main thread."""
        self._messages.append(message)
        # Full: the main thread wakes in any case. Closed: it has left.
        with suppress(OSError):
            self._wake.send(b"\0")

    def take(self) -> list[InboxMessage]:
        """Return the posted messages, oldest first."""
        with suppress(OSError):
            while self.wakes.recv(4096):
                pass
        taken = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken

    def close(self) -> None:
        """Close the descriptors; later posts are kept and wake no thread."""
        self.wakes.close()
        self._wake.close()
