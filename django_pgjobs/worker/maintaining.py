"""The maintenance thread: does the duties in turn; a slow one delays no renewal, a failing one not the others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import psycopg

from django_pgjobs import store
from django_pgjobs.worker.connection import WorkerConnection
from django_pgjobs.worker.loop import Connect, Loop, Posts

log = logging.getLogger("django_pgjobs")

TICK_SECONDS = 0.5


class Duty(Protocol):
    """Something to be done now and then."""

    name: str

    def tick(self, db: store.Database) -> None:
        """Do it if it is due."""
        ...


class Maintainer(Loop):
    """Ticks duties each second."""

    role = "maintenance"

    def __init__(self, connect: Connect, inbox: Posts, duties: Sequence[Duty]) -> None:
        super().__init__(connect, inbox)
        self.duties = duties

    def serve(self, db: WorkerConnection) -> None:
        """Tick until stopped."""
        while not self.stopping.is_set():
            for duty in self.duties:
                self._tick(duty, db)
            self.stopping.wait(TICK_SECONDS)

    def _tick(self, duty: Duty, db: WorkerConnection) -> None:
        try:
            duty.tick(db)
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
            raise
        except Exception:
            log.exception("duty failed, the others go on duty=%s", duty.name)
