"""The skeleton of a thread that owns one connection and must outlive any trouble with it.

A loop survives database errors: it logs the trouble once, keeps its buffers, and tries again with a growing, jittered
pause. It survives bugs too: it logs an error and tries again in the same way.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Protocol

import psycopg

from django_pgjobs import clock
from django_pgjobs.logs import log, speaks_of
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.store.database import is_not_migrated, is_read_only
from django_pgjobs.store.schemas import NotServed
from django_pgjobs.worker.shared.connection import TROUBLE, WorkerConnection
from django_pgjobs.worker.threads.inbox_messages import InboxMessage

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 10.0

Connect = Callable[[], WorkerConnection]


def is_lost(db: WorkerConnection, error: BaseException) -> bool:
    """Return whether one of many schemas was dropped, replaced, or closed to this role; the rota says so, once."""
    return getattr(db, "of_many", False) and (
        is_not_migrated(error) or isinstance(error, psycopg.errors.InsufficientPrivilege | NotServed)
    )


class Posts(Protocol):
    """The receiver of a loop's messages: ``Inbox``."""

    def post(self, message: InboxMessage) -> None:
        """Accept a message; called in the loop's thread."""
        ...


class Outage:
    """An outage of one of several homes, as its threads have said it: one speaks for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_said = False
        self._over_at = 0.0

    def begins(self, connected_at: float) -> bool:
        """Return whether no thread has said so of a connection made at this time, or of a later one."""
        with self._lock:
            news = not self._is_said and connected_at >= self._over_at
            self._is_said = self._is_said or news
            return news

    def ends(self) -> bool:
        """Return whether no thread has said yet that it is over."""
        with self._lock:
            news, self._is_said = self._is_said, False
            self._over_at = clock.monotonic() if news else self._over_at
            return news


class Loop(threading.Thread):
    """A named thread; subclasses implement ``serve``, which uses the connection until ``stopping`` is set."""

    role = "loop"

    def __init__(self, connect: Connect, inbox: Posts) -> None:
        super().__init__(name=f"pgjobs-{self.role}", daemon=True)
        self.connect = connect
        self.inbox = inbox
        self.stopping = threading.Event()
        self.wake = threading.Condition()
        self.statements = 0
        self.reachable = True
        self.pausing = False
        """True while it waits after trouble."""
        self.unwritable = False
        """True if the server took no writes lately: a standby, or one made read-only."""
        self.lost = False
        """True once its schema, one of many, had no tables of ours, or none for this role."""
        self.connections = 0
        self.db: WorkerConnection | None = None
        self.alias = ""
        self.outage: Outage | None = None

    def belong(self, alias: str, outage: Outage) -> None:
        """Be a thread of one of several homes: what it logs says which."""
        self.alias, self.outage, self.name = alias, outage, f"{self.name}-{alias}"

    def serve(self, db: WorkerConnection) -> None:
        """Work on ``db`` until ``stopping`` is set. After any exception it is called again, with a sound connection."""
        raise NotImplementedError

    def goes_on(self) -> bool:
        """Return whether to continue; checked between steps."""
        return not self.stopping.is_set()

    def run(self) -> None:
        """Serve, connect again, serve."""
        speaks_of.set(self.alias)
        db: WorkerConnection | None = None
        failures = 0
        while self.goes_on():
            try:
                if db is None or db.gone:
                    db = self._reconnect(db)
                began = db.statements
                try:
                    self.serve(db)
                finally:
                    if db.statements > began:
                        failures = 0
            except TROUBLE as error:
                failures += 1
                if db is not None and isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                    db.close()  # a standby now: the same name may lead to the new primary
                    self.unwritable = True
                self._trouble(error, failures, gone=db is None or db.gone)
            except Exception as error:
                failures += 1
                if db is not None and is_lost(db, error):
                    self.lost = True
                    log.debug("schema has lost its tables loop=%s: %s", self.role, one_line(error))
                else:
                    log.exception("worker loop failed, continuing loop=%s", self.role)
                self._pause(failures)
        if db is not None:
            self.statements += db.statements
            db.close()

    def _reconnect(self, old: WorkerConnection | None) -> WorkerConnection:
        if old is not None:
            self.statements += old.statements
            old.statements = 0
            old.close()
        db = self.connect()
        if self.unwritable and is_read_only(db):
            db.close()
            raise psycopg.errors.ReadOnlySqlTransaction("the server still takes no writes")
        self.unwritable = False
        if old is not None:
            db.inherit(old)
        self.db = db
        self.connections += 1
        if not self.reachable and (self.outage is None or self.outage.ends()):
            log.warning("database is back loop=%s", self.role)
        self.reachable = True
        return db

    def _trouble(self, error: BaseException, failures: int, *, gone: bool) -> None:
        if self.reachable and (not gone or self.outage is None or self.outage.begins(self._connected_at())):
            log.warning("database trouble, will try again loop=%s: %s", self.role, one_line(error))
        self.reachable = self.reachable and not gone
        self._pause(failures)

    def _connected_at(self) -> float:
        return 0.0 if self.db is None else self.db.connected_at

    def _pause(self, failures: int) -> None:
        longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10))
        self.pausing = True
        self.stopping.wait(longest * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
        self.pausing = False

    def watch(self, now: float) -> None:
        """Cut the connection if the server no longer answers; called by the main thread."""
        db = self.db
        if db is not None and db.cut_if_mute(now):
            log.warning("database does not answer, the connection is cut loop=%s", self.role)

    def stop(self) -> None:
        """Ask the loop to end after its present step."""
        self.stopping.set()
        self.poke()

    def poke(self) -> None:
        """Wake the loop."""
        with self.wake:
            self.wake.notify_all()
