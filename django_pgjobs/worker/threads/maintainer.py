"""The maintenance thread: does the duties in turn; a slow one delays no renewal, a failing one not the others.

What only the leader does and what may take its time, as pruning does, has a thread of its own, so that no rescue waits
for it; that one has a connection only while its worker leads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import psycopg

from django_pgjobs.logs import safe_logger
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store import statements as store
from django_pgjobs.worker.shared.connection import TROUBLE, WorkerConnection
from django_pgjobs.worker.threads.loop import Connect, Loop, Posts

log = safe_logger("django_pgjobs")

TICK_SECONDS = 0.5


class Duty(Protocol):
    """Something to be done now and then."""

    name: str

    def tick(self, db: store.Database) -> None:
        """Do it if it is due."""
        ...

    def leave(self, db: store.Database) -> None:
        """Do what is to be done once, when the worker leaves."""
        ...


class Maintainer(Loop):
    """Ticks duties twice a second."""

    role = "maintenance"

    def __init__(self, connect: Connect, inbox: Posts, duties: Sequence[Duty]) -> None:
        super().__init__(connect, inbox)
        self.duties = duties

    def serve(self, db: WorkerConnection) -> None:
        """Tick until stopped, then take leave."""
        while self.goes_on():
            for duty in self.duties:
                self._do(duty.name, duty.tick, db)
            self.stopping.wait(TICK_SECONDS)
        for duty in self.duties:
            self._do(duty.name, duty.leave, db)

    def _do(self, name: str, work: Callable[[store.Database], None], db: WorkerConnection) -> None:
        """Do it; trouble with one duty (a locked table, a slow statement) keeps none of the others from its turn."""
        try:
            work(db)
        except TROUBLE as error:
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction) or db.gone:
                raise
            log.error("duty failed, tried again at its next turn duty=%s: %s", name, one_line(error))
        except Exception:
            log.exception("duty failed, the others go on duty=%s", name)


class Upkeeper(Maintainer):
    """Ticks duties while ``leads()``; a leader no more takes leave of them, and lets its connection go."""

    role = "upkeep"

    def __init__(self, connect: Connect, inbox: Posts, duties: Sequence[Duty], leads: Callable[[], bool]) -> None:
        super().__init__(connect, inbox, duties)
        self.leads = leads

    def goes_on(self) -> bool:
        """Whether this worker leads and is to go on."""
        return super().goes_on() and self.leads()

    def run(self) -> None:
        """Serve whenever this worker leads."""
        while not self.stopping.is_set():
            super().run()
            self.stopping.wait(TICK_SECONDS)
