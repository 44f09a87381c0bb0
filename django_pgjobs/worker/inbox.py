"""How the worker's threads reach its main thread: a queue of messages and a file descriptor that wakes a selector."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any


class Inbox:
    """Many threads post, one takes. Nothing here blocks."""

    def __init__(self) -> None:
        self._messages: deque[tuple[Any, ...]] = deque()
        self.wakes, self._wake = socket.socketpair()
        self.wakes.setblocking(False)
        self._wake.setblocking(False)

    def post(self, *message: Any) -> None:
        """Add a message, its kind first, and wake the main thread."""
        self._messages.append(message)
        try:
            self._wake.send(b"\0")
        except (BlockingIOError, OSError):
            pass  # full: it will wake anyhow; closed: it has left

    def take(self) -> list[tuple[Any, ...]]:
        """Return what has been posted, oldest first."""
        try:
            while self.wakes.recv(4096):
                pass
        except (BlockingIOError, OSError):
            pass
        taken = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken

    def close(self) -> None:
        """Close the descriptors; later posts are kept and wake nobody."""
        self.wakes.close()
        self._wake.close()
