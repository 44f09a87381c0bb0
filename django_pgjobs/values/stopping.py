"""Notice that the process of the running jobs is about to stop: one for each process."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from weakref import WeakKeyDictionary

from django_pgjobs import clock

DRAIN, RECYCLE = "drain", "recycle"


class Stopping:
    """Why this process stops: ``drain``, its worker stops, or ``recycle``, another executor takes its place.

    False while it does not stop; ``why`` is empty then. ``until``: the instant of ``django_pgjobs.clock.monotonic()``
    at which the process is killed, None if it waits for its jobs.
    """

    def __init__(self) -> None:
        self.why = ""
        self.until: float | None = None
        self._lock = threading.RLock()  # a handler of signals may announce it, too
        self._events: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Event] = WeakKeyDictionary()

    def __bool__(self) -> bool:
        return bool(self.why)

    def __repr__(self) -> str:
        return f"<Stopping {self.why or 'not now'}>"

    def remaining(self) -> float | None:
        """Return the seconds until the process is killed, 0.0 after that; None if it is not to be killed."""
        return None if self.until is None else max(self.until - clock.monotonic(), 0.0)

    @property
    def event(self) -> asyncio.Event:
        """The event of the running loop that is set when the process is about to stop, for ``async def`` jobs."""
        with self._lock:
            for loop in list(self._events):
                if loop.is_closed():  # its event would keep it
                    del self._events[loop]
            made = self._events.setdefault(asyncio.get_running_loop(), asyncio.Event())
            if self.why:
                made.set()
            return made

    def announce(self, why: str, until: float | None) -> None:
        """Let jobs know. Called in any thread; a later call replaces why and until when."""
        with self._lock:
            self.until, self.why = until, why
            events = list(self._events.items())
        for loop, event in events:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(event.set)


of_this_process = Stopping()
