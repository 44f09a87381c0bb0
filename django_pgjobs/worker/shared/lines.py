"""Connections that the threads of many schemas share: each runs a statement, or a transaction, in turn.

A *line* is one connection for one purpose, such as claims. A home's thread has a ``SharedConnection``, which takes the
line for as long as a statement or a transaction of it lasts, and lets the session find tables in its own schema alone
before it does. Nothing of one schema is thus read or written for another, whatever its search path was before; a
schema that has been dropped is an error, and not the tables of ``public``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psycopg

from django_pgjobs import clock
from django_pgjobs.logs import log
from django_pgjobs.store import schemas
from django_pgjobs.store.database import Params, Rows
from django_pgjobs.worker.shared.connection import TROUBLE, WorkerConnection

KEPT_SECONDS = 60.0
"""Time without a statement after which a line closes its connection."""

RETRY_SECONDS = 1.0
"""Time after a failed try to connect in which all others fail at once: each would wait for a silent server in turn."""

CLOSE_SECONDS = 1.0
"""Time that closing waits for a statement to end."""

LOCK_TIMEOUT = "250ms"
"""Time that a statement waits for a lock: the other schemas wait behind it."""

CLAIM_SECONDS = 3.0
"""Time that a claim may take: those of the other schemas wait behind it."""


class FairLock:
    """A lock that goes to who has waited for longest, and that its owner may take again.

    With an ordinary one a thread with much to do would take it again and again before any other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    @property
    def waiting(self) -> int:
        """Number of threads that wait for it."""
        return len(self._waiting)

    def acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, or wait for it, and return whether that came to be."""
        me = threading.get_ident()
        with self._lock:
            if self._owner in (0, me):
                self._owner, self._depth = me, self._depth + 1
                return True
            if not blocking:
                return False
            waits = me, threading.Lock()
            waits[1].acquire()
            self._waiting.append(waits)
        if waits[1].acquire(timeout=timeout):
            return True
        with self._lock:
            if waits not in self._waiting:
                return True  # handed over just now
            self._waiting.remove(waits)
            return False

    def release(self) -> None:
        """Hand it to the first who waits."""
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            self._owner = 0
            if self._waiting:
                self._owner, lock = self._waiting.popleft()
                self._depth = 1
                lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class SharedLine:
    """One connection for the threads of many schemas. ``connect`` makes it, whenever one of them needs it.

    ``settle`` raises where a schema is the copy of another one; each connection asks once for each schema.
    """

    def __init__(
        self,
        role: str,
        connect: Callable[[], WorkerConnection],
        settle: Callable[[WorkerConnection], object] | None = None,
    ) -> None:
        self.role = role
        self.connect = connect
        self.settle = settle
        self.settled: set[str] = set()
        self.turn = FairLock()
        self.db: WorkerConnection | None = None
        self.schema = ""
        """The schema that the path of its session is; empty if that is not known."""

        self.broken = 0
        """Number of connections that it has lost: the next statement of who used one of them fails."""

        self.used_at = 0.0
        self.failed_at, self.failure = -RETRY_SECONDS, ""

    def open(self, schema: str) -> SharedConnection:
        """Return a connection for one schema. Raises one of ``TROUBLE`` when the server cannot be reached."""
        with self.turn:
            self.ready()
            return SharedConnection(self, schema)

    def ready(self) -> WorkerConnection:
        """Return the connection, made again if it has been closed or lost; called by who has the turn."""
        if self.db is not None and self.db.gone:
            self.db.close()
            self.db = None
            self.broken += 1
        if self.db is None:
            self.schema = ""
            self.settled.clear()
            if clock.monotonic() < self.failed_at + RETRY_SECONDS:
                raise psycopg.OperationalError(self.failure)
            try:
                self.db = self.connect()
            except TROUBLE as error:
                self.failed_at, self.failure = clock.monotonic(), str(error)
                raise
            self.db.wrapper.inc_thread_sharing()
        self.used_at = clock.monotonic()
        return self.db

    def watch(self, now: float) -> None:
        """Cut the connection if the server no longer answers, close one that rests; called by the main thread."""
        db = self.db
        if db is None:
            return
        if db.cut_if_mute(now):
            log.warning("database does not answer, the connection is cut loop=%s", self.role)
        elif now > self.used_at + KEPT_SECONDS and self.turn.acquire(blocking=False):
            try:
                self.close()
            finally:
                self.turn.release()

    def close(self) -> None:
        """Close the connection, if there is one; the next use makes another."""
        if self.turn.acquire(timeout=CLOSE_SECONDS):
            try:
                if self.db is not None:
                    self.db.close()
                    self.db = None
            finally:
                self.turn.release()


class SharedConnection(WorkerConnection):
    """A schema's part in a line: a ``WorkerConnection`` whose statements wait for their turn."""

    of_many = True

    def __init__(self, line: SharedLine, schema: str) -> None:
        db = line.ready()
        self.line, self.schema, self.began = line, schema, line.broken
        self.identity, self.pooled = db.identity, db.pooled
        self.closed = self.has_turn = False
        self.remember(db.alone, db.patience)

    @contextmanager
    def _turn(self) -> Iterator[WorkerConnection]:
        self.asked_at = self.asked_at or clock.monotonic()
        line = self.line
        try:
            with line.turn:
                if line.broken != self.began:
                    raise psycopg.OperationalError("the connection is lost")
                db = line.ready() if line.db is None else line.db
                line.used_at = clock.monotonic()
                before, self.has_turn = self.has_turn, True
                try:
                    if line.schema != self.schema:
                        line.schema = ""
                        schemas.enter(db, self.schema)
                        if line.settle is not None and self.schema not in line.settled:
                            line.settle(db)
                            line.settled.add(self.schema)
                        line.schema = self.schema
                    self.sent_at = clock.monotonic()
                    yield db
                    self.statements += 1
                except BaseException:
                    line.schema = ""  # a transaction that ends so takes a path back that was set in it
                    raise
                finally:
                    self.has_turn = before
        finally:
            self._answered()

    def fetch(self, name: str, params: Params) -> Rows:
        """Run a statement of ``sql/`` and return its rows."""
        with self._turn() as db:
            return db.fetch(name, params)

    def fetch_together(self, statements: Sequence[tuple[str, Params]]) -> list[Rows]:
        """Run statements as one transaction, sent as one message; return the rows of each."""
        with self._turn() as db:
            return db.fetch_together(statements)

    @contextmanager
    def transaction(self, *, undo: bool = False) -> Iterator[None]:
        """Open a transaction for the statements of a block. ``undo``: roll it back at its end."""
        with self._turn() as db, db.transaction(undo=undo):
            yield

    @contextmanager
    def orm(self) -> Iterator[str]:
        """Open a transaction in which Django's ORM of this thread works in the schema; yield the alias for it."""
        with self._turn() as db:
            wrapper = db.wrapper
            if not hasattr(wrapper, "set_schema"):
                with db.orm() as using:
                    yield using
                return
            # An engine for tenants sets the path itself, at each cursor.
            wrapper.set_schema(self.schema)
            with db.orm() as using:
                yield using
            self.line.schema = ""

    @property
    def pid(self) -> int:
        """The server process that serves the line."""
        return (self.line.db or self).identity.backend_pid

    def cancel(self) -> None:
        """Cancel what is being asked, if that is this schema's; never raises."""
        if self.has_turn and self.line.db is not None:
            self.line.db.cancel()

    def cut_if_mute(self, now: float) -> bool:
        """Leave that to the line."""
        return False

    @property
    def gone(self) -> bool:
        """True if it is closed, or the server has closed it."""
        return self.closed or self.line.broken != self.began or (self.line.db is not None and self.line.db.gone)

    def close(self) -> None:
        """Take no more turns; the line stays open for others."""
        self.closed = True
