"""The maintenance thread: does the duties in turn. A slow duty delays no renewal, a failing one no other duty.

The leader's slow duties, such as pruning, have a separate thread, so that no rescue waits for them. That thread has a
connection only while its worker leads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import psycopg

from django_pgjobs.logs import safe_logger
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.database import Database
from django_pgjobs.worker.shared.connection import TROUBLE, WorkerConnection
from django_pgjobs.worker.threads.loop import Connect, Loop, Posts

log = safe_logger("django_pgjobs")

TICK_SECONDS = 0.5


class Duty(Protocol):
    """A recurring duty."""

    name: str

    def tick(self, db: Database) -> None:
        """Do it if it is due."""
        ...

    def leave(self, db: Database) -> None:
        """Do the last step, once, when the worker leaves."""
        ...


def do_duty(name: str, work: Callable[[Database], None], db: WorkerConnection) -> None:
    """Tick one duty; its trouble (a locked table, a slow statement) costs no other duty its turn."""
    try:
        work(db)
    except TROUBLE as error:
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction) or db.gone:
            raise
        log.error("duty failed, tried again at its next turn duty=%s: %s", name, one_line(error))
    except Exception:
        log.exception("duty failed, the others continue duty=%s", name)


class Maintainer(Loop):
    """Ticks duties twice a second."""

    role = "maintenance"

    def __init__(self, connect: Connect, inbox: Posts, duties: Sequence[Duty]) -> None:
        super().__init__(connect, inbox)
        self.duties = duties

    def serve(self, db: WorkerConnection) -> None:
        """Tick until stopped, then let every duty leave."""
        while self.goes_on():
            for duty in self.duties:
                do_duty(duty.name, duty.tick, db)
            self.stopping.wait(TICK_SECONDS)
        for duty in self.duties:
            do_duty(duty.name, duty.leave, db)


class Upkeeper(Maintainer):
    """Ticks duties while ``leads()``; after the term it lets them leave and closes its connection."""

    role = "upkeep"

    def __init__(self, connect: Connect, inbox: Posts, duties: Sequence[Duty], leads: Callable[[], bool]) -> None:
        super().__init__(connect, inbox, duties)
        self.leads = leads

    def goes_on(self) -> bool:
        """Return whether this worker leads and is not stopping."""
        return super().goes_on() and self.leads()

    def run(self) -> None:
        """Serve whenever this worker leads."""
        while not self.stopping.is_set():
            super().run()
            self.stopping.wait(TICK_SECONDS)
