"""Notice that running jobs are about to be stopped: one for the process, and one for each job that asks for its own."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from weakref import WeakKeyDictionary, WeakSet

from django_pgjobs import clock

DRAIN, RECYCLE, RELEASE = "drain", "recycle", "release"


class Stopping:
    """Why a job is to stop: ``drain``, its worker stops, ``recycle``, another executor takes the place of its own, or
    ``release``, an operator wants it released.

    False while it is not to stop; ``why`` is empty then. ``until``: the instant of ``django_pgjobs.clock.monotonic()``
    at which it is stopped by force, None if it is waited for.
    """

    def __init__(self) -> None:
        self.why = ""
        self.until: float | None = None
        self._lock = threading.RLock()  # a handler of signals may announce it, too
        self._events: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Event] = WeakKeyDictionary()
        self._of_jobs: WeakSet[Stopping] = WeakSet()

    def __bool__(self) -> bool:
        return bool(self.why)

    def __repr__(self) -> str:
        return f"<Stopping {self.why or 'not now'}>"

    def remaining(self) -> float | None:
        """Return the seconds until the job is stopped by force, 0.0 after that; None if it is waited for."""
        return None if self.until is None else max(self.until - clock.monotonic(), 0.0)

    @property
    def event(self) -> asyncio.Event:
        """The event of the running loop that is set when the job is to stop, for ``async def`` jobs."""
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
            events, jobs = list(self._events.items()), list(self._of_jobs)
        for job in jobs:
            job.announce(why, until)
        for loop, event in events:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(event.set)

    def of_job(self) -> Stopping:
        """Return one for a job of this process, which hears what the process hears, and what is announced to it."""
        with self._lock:
            made = Stopping()
            self._of_jobs.add(made)  # first: a signal may announce between the two, in this very thread
            made.why, made.until = self.why, self.until
            return made


of_this_process = Stopping()
