"""In the executor: time for one thread to look at another and act before that one moves on."""

from __future__ import annotations

import sys
import threading

TURN_SECONDS = 0.02
"""The switch interval from a check to the exception: the thread that was checked must not move on in between."""


class LongTurns:
    """While a thread is inside, the interpreter's switch interval is at least ``TURN_SECONDS``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.within = 0
        self.usual = 0.0

    def __enter__(self) -> None:
        with self.lock:
            self.within += 1
            if self.within == 1:
                self.usual = sys.getswitchinterval()
                sys.setswitchinterval(max(self.usual, TURN_SECONDS))

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.within -= 1
            if not self.within:
                sys.setswitchinterval(self.usual)


in_long_turns = LongTurns()
"""For ``with``. The switch interval belongs to the process, so all threads share this one."""
