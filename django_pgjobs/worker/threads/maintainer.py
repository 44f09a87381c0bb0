"""The maintenance thread: does the duties in turn. A slow duty delays no renewal, a failing one no other duty.

The leader's slow duties, such as pruning, have a separate thread, so that no rescue waits for them. That thread has a
connection only while its worker leads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import psycopg

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.database import Database
from django_pgjobs.worker.shared.connection import TROUBLE, WorkerConnection
from django_pgjobs.worker.threads.loop import Connect, Loop, Posts, is_lost

TICK_SECONDS = 0.5
REST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
KEPT_SECONDS = 5.0
"""A connection for slow duties is closed if none of them is due for so long."""


class FirstTurns(NamedTuple):
    """Seconds until duties have their first turn in a new home, and until the leader's slow ones have it."""

    duties: float = 0.0
    slow: float = 0.0


class Duty(Protocol):
    """A recurring duty."""

    name: str

    def tick(self, db: Database) -> None:
        """Do it if it is due."""
        ...

    def leave(self, db: Database) -> None:
        """Do the last step, once, when the worker leaves."""
        ...


class SlowDuty(Duty, Protocol):
    """A duty that says when it is due."""

    @property
    def due(self) -> float:
        """The instant before which a tick does nothing."""
        ...


def do_duty(name: str, work: Callable[[Database], None], db: WorkerConnection) -> None:
    """Tick one duty; its trouble (a locked table, a slow statement) costs no other duty its turn."""
    try:
        work(db)
    except TROUBLE as error:
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction) or db.gone:
            raise
        log.error("duty failed, tried again at its next turn duty=%s: %s", name, one_line(error))
    except Exception as error:
        if is_lost(db, error):
            raise
        log.exception("duty failed, the others continue duty=%s", name)


class Maintainer(Loop):
    """Ticks duties twice a second, and once while ``rests()``; begins after ``first`` seconds."""

    role = "maintenance"

    def __init__(
        self,
        connect: Connect,
        inbox: Posts,
        duties: Sequence[Duty],
        rests: Callable[[], bool] = lambda: False,
        first: float = 0.0,
    ) -> None:
        super().__init__(connect, inbox)
        self.duties = duties
        self.rests = rests
        self.first = first

    def serve(self, db: WorkerConnection) -> None:
        """Tick until stopped, then let every duty leave."""
        if self.first:
            self.stopping.wait(self.first)
        while self.goes_on():
            for duty in self.duties:
                do_duty(duty.name, duty.tick, db)
            self.stopping.wait(REST_SECONDS if self.rests() else TICK_SECONDS)
        for duty in self.duties:
            do_duty(duty.name, duty.leave, db)


class Upkeeper(Maintainer):
    """Ticks duties while ``leads()``; after the term it lets them leave and closes its connection.

    It also does so while none of them is due for some seconds.
    """

    role = "upkeep"

    def __init__(
        self,
        connect: Connect,
        inbox: Posts,
        duties: Sequence[SlowDuty],
        leads: Callable[[], bool],
        rest_seconds: float = REST_SECONDS,
    ) -> None:
        super().__init__(connect, inbox, duties)
        self.leads = leads
        self.rest_seconds = rest_seconds
        self.slow = duties

    def goes_on(self) -> bool:
        """Return whether this worker leads, is not stopping, and has something to do soon."""
        return super().goes_on() and self.leads() and self._is_due(KEPT_SECONDS)

    def run(self) -> None:
        """Serve whenever this worker leads and something is due."""
        while not self.stopping.is_set():
            if self._is_due(0.0):
                super().run()
            pause = min(duty.due for duty in self.slow) - clock.monotonic() if self.leads() else 0.0
            self.stopping.wait(min(max(pause, self.rest_seconds), LONGEST_SECONDS))

    def _is_due(self, seconds: float) -> bool:
        return any(duty.due <= clock.monotonic() + seconds for duty in self.slow)
