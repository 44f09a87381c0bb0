"""The supervisor's own connections: made by the project's engine, used below Django.

``DatabaseWrapper`` of the configured engine connects (so PostGIS, tenants, service files and short-lived passwords
work), with pooling removed; then statements go to psycopg itself, outside query logging, with server-side
parameters, prepared once. Plans are pinned: three natural statements turned quadratic on a table analysed while
empty. Behind a transaction pooler nothing of a session survives, so each statement goes as one transaction with
the same settings. Every transaction is READ COMMITTED, regardless of the role's default.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
from django.db import DatabaseError as DjangoDatabaseError
from django.db import connections, transaction

from django_pgjobs import clock
from django_pgjobs.store import keeping
from django_pgjobs.store.database import PINS, Params, Rows, configure, configuring, rows_of, run_together, statement
from django_pgjobs.store.own_connection import cut, own_wrapper, use_autocommit

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

WAYS = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Parameters of libpq for a server that does not answer, unless the project's settings say otherwise.

Without them one that accepts and says nothing is waited for two minutes, one that has vanished a quarter of an hour,
and a connection that only listens believes in it for two hours, while leases run out.
"""

CANCEL_SECONDS = 2.0
ANSWER_SECONDS = 5.0
"""Time that the answer of the server may take to arrive after it has given a statement up."""

LONG_WAIT_SECONDS = 0.25
WAITS = 20
"""Longer waits for an answer are remembered, the last so many."""

TROUBLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    DjangoDatabaseError,
)
"""Errors that a loop survives: the server, or the way to it, is not there, or it has become a standby."""


LOCK_TIMEOUT = "1s"
"""Time that a statement outside a transaction waits for a lock: what comes behind it in the queue for that lock waits
too."""


class WorkerConnection:
    """One autocommit connection of a worker's thread; a ``Database``.

    ``statement_seconds`` bounds every statement; None makes it a connection for what takes as long as it needs, no
    transaction, and waits for locks a moment only, as VACUUM. ``durable=False`` lets commits return before they are on
    disk, which is safe for the claim alone: its fence is unique, and an end that follows it follows it in the log too.
    Raises one of ``TROUBLE`` when the server cannot be reached.
    """

    of_many = False
    """True for one schema among many, which may be dropped at any time."""

    has_turn: bool = True
    """False while the session serves other schemas."""

    sent_at: float = 0.0
    """The instant at which the last statement of one schema among many had its turn; else 0, as none waits for one."""

    def __init__(
        self, using: str, role: str, *, statement_seconds: float | None, durable: bool = True, lock_timeout: str = ""
    ) -> None:
        alone, seconds = statement_seconds is None, statement_seconds or 0.0
        self.remember(alone, float("inf") if alone else max(seconds, 1.0) + ANSWER_SECONDS)
        self._settings = {**PINS, "statement_timeout": "0" if self.alone else f"{max(1, round(seconds * 1000))}ms"}
        if self.alone:
            self._settings["lock_timeout"] = LOCK_TIMEOUT
        if not durable:
            self._settings["synchronous_commit"] = "off"
            # Sooner than the statement as a whole: a claim that was slow makes its scans smaller, a lock does not.
            self._settings["lock_timeout"] = f"{max(1, round(seconds * 750))}ms"
        if lock_timeout:
            self._settings["lock_timeout"] = lock_timeout
        self._wrapper = _connect(using, role)
        self.connection: psycopg.Connection[Any] = self._wrapper.connection
        self.pooled = False
        self.identity = keeping.read_identity(self)
        self.pooled = self.identity.backend_pid != self.connection.info.backend_pid
        if self.pooled:
            self.connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        else:
            self.connection.prepare_threshold = 0
            # Idle is what a connection that listens, or leads, is meant to be.
            own = {"default_transaction_isolation": "read committed", "idle_session_timeout": "0"}
            settings = {**self._settings, **own}
            configure(self, settings, local=False)

    def remember(self, alone: bool, patience: float) -> None:
        """Begin to note how long the server is waited for; an answer is overdue after ``patience`` seconds."""
        self.statements = 0
        self.connected_at = self.answered_at = clock.monotonic()
        self.asked_at: float | None = None
        self._waits: deque[tuple[float, float]] = deque(maxlen=WAITS)
        self.alone, self.patience = alone, patience

    @property
    def wrapper(self) -> BaseDatabaseWrapper:
        """Django's wrapper of the connection."""
        return self._wrapper

    def fetch(self, name: str, params: Params) -> Rows:
        """Run a statement of ``sql/`` and return its rows."""
        self.asked_at = clock.monotonic()
        try:
            if self.pooled and not self.alone:
                with self.connection.pipeline(), self.connection.transaction():
                    self._execute("configure", configuring(self._settings, local=True))
                    cursor = self._execute(name, params)
                # Only now, after the pipeline, does the cursor know what came of it.
            else:
                cursor = self._execute(name, params)
            # Not ``description``, which makes an object for each column.
            rows = rows_of(cursor) if cursor.pgresult is not None and cursor.pgresult.nfields else []
        finally:
            self._answered()
        self.statements += 1
        return rows

    def fetch_text(self, text: str, values: Sequence[object]) -> Rows:
        """Run a text made by ``store``, with parameters ``$1`` and so on, and return its rows."""
        self.asked_at = clock.monotonic()
        try:
            # psycopg reads no text of this cursor: it may be very long.
            rows = rows_of(psycopg.RawCursor(self.connection).execute(text.encode(), values, binary=True))
        finally:
            self._answered()
        self.statements += 1
        return rows

    def fetch_together(self, statements: Sequence[tuple[str, Params]]) -> list[Rows]:
        """Run statements as one transaction, sent as one message; return the rows of each."""
        asked = len(statements)
        if self.pooled:
            settings = ("configure", configuring(self._settings, local=True))
            statements = [("read_committed", {}), settings, *statements]
        self.asked_at = clock.monotonic()
        try:
            found = run_together(self.connection, statements)
        finally:
            self._answered()
        self.statements += 1
        return found[-asked:]

    @contextmanager
    def transaction(self, *, undo: bool = False) -> Iterator[None]:
        """Open a transaction for the statements of a block. ``undo``: roll it back at its end."""
        try:
            with self.connection.transaction(force_rollback=undo):
                yield
                self.asked_at = clock.monotonic()  # to commit
        finally:
            self._answered()

    def _execute(self, name: str, params: Params) -> psycopg.Cursor[object]:
        cursor = psycopg.Cursor(self.connection)
        cursor.execute(statement(name), params, binary=True)
        return cursor

    @contextmanager
    def orm(self) -> Iterator[str]:
        """Open a transaction in which Django's ORM of this thread works on this connection; yield the alias for it.

        For what is not hot: the ORM composes, a statement of ``sql/`` writes. The thread's own connection, if it has
        one, is back afterwards.
        """
        using = self._wrapper.alias
        before = next((each for each in connections.all(initialized_only=True) if each.alias == using), None)
        connections[using] = self._wrapper
        try:
            with transaction.atomic(using=using):
                with self._wrapper.execute_wrapper(self._asking):
                    yield using
                self.asked_at = clock.monotonic()  # to commit
        finally:
            self._answered()
            if self._wrapper.connection is not self.connection:
                self._wrapper.close()  # Django has connected again
            del connections[using]
            if before is not None:
                connections[using] = before

    def _asking(self, execute: Callable[..., object], *given: object) -> Any:
        self.asked_at = clock.monotonic()
        try:
            return execute(*given)
        finally:
            self._answered()

    def _answered(self) -> None:
        now, asked_at = clock.monotonic(), self.asked_at
        self.asked_at, self.answered_at = None, now
        if asked_at is not None and now - asked_at > LONG_WAIT_SECONDS:
            self.waited(now, now - asked_at)

    def waited(self, until: float, seconds: float) -> None:
        """Remember that for so long, and until then, the server has not answered."""
        self._waits.append((until, seconds))

    def inherit(self, old: WorkerConnection) -> None:
        """Remember what ``old``, in whose place this one is, has waited for, and how long there was none."""
        now = clock.monotonic()
        self._waits.extend(old._waits)
        self.waited(now, now - old.answered_at)

    def waits(self) -> list[tuple[float, float]]:
        """Return when long waits ended, and how many seconds they took; the current one as if it ended now."""
        now, asked_at = clock.monotonic(), self.asked_at
        return [*self._waits, *([] if asked_at is None else [(now, now - asked_at)])]

    def cut_if_mute(self, now: float) -> bool:
        """Cut a connection whose answer is overdue, from another thread; return whether it was.

        The server gives a statement up by itself, so what is silent is the way: a proxy that hangs would be waited
        for without end, though a new connection might work.
        """
        asked_at = self.asked_at
        if asked_at is None or now < asked_at + self.patience:
            return False
        cut(self.connection)
        return True

    def wait_for_news(self, seconds: float, bell: socket.socket) -> None:
        """Sleep until the server or ``bell`` has something to read, for so long at most; then no ring is left.

        psycopg itself would wake up ten times a second.
        """
        poll = select.poll()
        for each in (self.connection, bell):
            poll.register(each.fileno(), select.POLLIN)
        if bell.fileno() in dict(poll.poll(seconds * 1000)):
            with suppress(BlockingIOError):
                while bell.recv(4096):
                    pass

    @property
    def pid(self) -> int:
        """The server process that serves it."""
        return self.identity.backend_pid

    def cancel(self) -> None:
        """Cancel what is being asked, from another thread; never raises."""
        with suppress(psycopg.Error):
            self.connection.cancel_safe(timeout=CANCEL_SECONDS)

    @property
    def gone(self) -> bool:
        """True if it is closed, by us or by the server."""
        return self.connection.closed or self.connection.broken

    def close(self) -> None:
        """Close; never raises."""
        with suppress(psycopg.Error):
            self.connection.close()


def _connect(using: str, role: str) -> BaseDatabaseWrapper:
    """Return Django's wrapper of a new connection, in autocommit."""
    wrapper = own_wrapper(using, WAYS, {"application_name": role[:63]})
    wrapper.connect()
    use_autocommit(wrapper)
    return wrapper
