"""In the executor: a job finds the session of a kept connection as new, no matter what the job before did to it.

Settings, role, locks, channels, temporary tables, cursors, prepared statements: after a job that has sent statements,
or was led to a schema of many, one message resets them all. It is sent when the job is over, so that its locks go at
once; the answer is read before the next job begins, when it is usually there. Another that has sent none costs nothing,
nor does one whose few statements cannot have changed the session (``plain``).

Three kinds of connection are not worth a reset, or cannot have one, and are closed instead: one that does not answer,
one behind a pooler, and one of a database engine that may keep something of the session in Python. If receivers of
``connection_created`` set something up, they are called again.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import psycopg
from django.db.backends.signals import connection_created
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus

from django_pgjobs.store import sessions
from django_pgjobs.store.sessions import OpenedSession
from django_pgjobs.worker.executor import plain

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


RESET_SECONDS = 2.0
"""Time to wait for the answer to a reset."""

DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)

ENGINES = ("django.", "django_prometheus.")
"""Packages of database engines that keep nothing of a session in Python."""

RECEIVERS = ("django.", "django_pgjobs.")
"""Packages whose receivers of ``connection_created`` set nothing on the server that a reset does not restore."""

_MANNER = attrgetter(
    "autocommit", "isolation_level", "read_only", "deferrable", "row_factory", "cursor_factory", "prepare_threshold",
    "prepared_max",
)  # fmt: skip
"""Reads what a job may set on psycopg's connection."""

_pooled: set[str] = set()
"""The aliases that a pooler stands before: the session is not ours alone."""


class Unresettable(Exception):
    """The session cannot be made as new."""


_NOTES: dict[str, object] = {
    "sent": (), "text": None, "asked": False, "opened": None, "message": None, "manner": (), "layers": (),
    "named": (), "schema": None,
}  # fmt: skip
"""Notes of a watched connection about itself, with their first values."""


@cache
def _watched(kind: type[Any]) -> type[object]:
    """Return a class of psycopg's connections that note what is sent: all statements wait for answers.

    ``sent`` has the text of each wait, None where a cursor's ``execute`` has not said it. ``named`` has Django's
    server-side cursors that Python still knows, ``schema`` that of the job, if a worker serves many.
    """
    if hasattr(kind, "asked"):
        return kind

    def wait(self: Any, *args: object, **kwargs: object) -> object:
        if len(self.sent) <= plain.MOST_STATEMENTS:
            self.sent.append(self.text)
        self.text = None
        return kind.wait(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"__slots__": (), "wait": wait, **_NOTES})


@cache
def _watched_cursor(kind: type[Any]) -> type[object]:
    """Return a class of cursors that say the texts which they execute."""

    def execute(self: Any, query: object, *args: object, **kwargs: Any) -> object:
        self.connection.text = query
        try:
            return kind.execute(self, query, *args, **kwargs)
        finally:
            self.connection.text = None

    return type(kind.__name__, (kind,), {"__slots__": (), "execute": execute})


def _is_watched(raw: object) -> bool:
    return hasattr(type(raw), "asked")


def watch(wrapper: Any, *, checks: bool = False) -> None:
    """Note from now on whether statements are sent on this connection, which has just been opened.

    ``checks``: ``check_client`` was sent on it.
    """
    if not isinstance(wrapper.connection, psycopg.Connection):
        return
    raw: Any = wrapper.connection
    kind: Any = type(raw)
    raw.__class__ = _watched(kind)
    if raw.opened is None:  # else a pool has kept it
        role = wrapper.settings_dict["OPTIONS"].get("assume_role")
        status = raw.info.parameter_status
        raw.opened = OpenedSession(status("application_name") or "", status("TimeZone") or "", role, checks)
        if raw.cursor_factory.__module__.startswith(ENGINES):  # else it may send another text than it is given
            raw.cursor_factory = _watched_cursor(raw.cursor_factory)
        raw.manner = _MANNER(raw)
    raw.sent = []
    raw.layers = _layers(wrapper)
    wrapper.create_cursor = partial(_create_cursor, wrapper)


def _create_cursor(wrapper: BaseDatabaseWrapper, name: str | None = None) -> object:
    """Create a cursor as the wrapper's class does, and note it if it is a server-side one."""
    cursor = type(wrapper).create_cursor(wrapper, name)
    if name and _is_watched(raw := wrapper.connection):
        raw.named = raw.named or WeakSet()
        raw.named.add(cursor)
    return cursor


def is_watched(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether this connection was opened before, and a pool has kept it."""
    return getattr(wrapper.connection, "opened", None) is not None


def _layers(wrapper: BaseDatabaseWrapper) -> tuple[object, ...]:
    return (wrapper.force_debug_cursor, *wrapper.execute_wrappers)


def is_open(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction is open on the server, also one that a job has begun by a statement of its own."""
    return wrapper.connection.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def has_cursors(raw: object) -> bool:
    """Return whether a server-side cursor is left. Closed in the transaction of a later job, it would abort that."""
    return any(not cursor.closed for cursor in list(getattr(raw, "named", ())))


def trouble_on(wrapper: BaseDatabaseWrapper) -> str:
    """Return what else a job has left on this connection that no reset mends, in words; else an empty text."""
    raw = wrapper.connection
    if raw.pgconn.transaction_status == TransactionStatus.ACTIVE or raw.pgconn.pipeline_status != PipelineStatus.OFF:
        return "job left a statement unfinished, its connection is closed"
    if _is_watched(raw) and (_MANNER(raw) != raw.manner or _layers(wrapper) != raw.layers):
        return "job left its connection changed, closed"
    return ""


def ask_reset(wrapper: BaseDatabaseWrapper) -> None:
    """Send the reset if the job sent statements or had a schema. Raises ``Unresettable``, and what psycopg raises."""
    raw = wrapper.connection
    if not _is_watched(raw):
        raise Unresettable("unknown connection")
    if not raw.sent and raw.schema is None:
        return
    if wrapper.alias in _pooled or not type(wrapper).__module__.startswith(ENGINES):
        raise Unresettable("not a session of its own")
    # Tables are known by their names, and a name means another table in each schema.
    unchanged = raw.schema is None and plain.is_plain(wrapper, raw.sent)
    raw.sent = []
    if unchanged:
        return
    raw.schema = None
    raw.pgconn.send_query(_message(raw))
    raw.pgconn.flush()
    raw.asked = True


def await_reset(wrapper: BaseDatabaseWrapper) -> None:
    """Read the answer to the reset, if one was sent. Raises ``Unresettable``, and what psycopg or a receiver raises."""
    raw = wrapper.connection
    if not getattr(raw, "asked", False):
        return
    raw.asked = False
    if _answered(raw.pgconn) != raw.pgconn.backend_pid:
        _pooled.add(wrapper.alias)
        raise Unresettable("behind a pooler")
    _expire_prepared(raw)
    if receivers := _receivers(wrapper):
        wrapper.execute_wrappers = []
        for receive in receivers:
            receive(signal=connection_created, sender=type(wrapper), connection=wrapper)
        raw.layers = _layers(wrapper)
        raw.sent = []


def reset_pooled(raw: Any) -> None:
    """Reset a connection that goes back to its pool. If this raises, the pool closes it."""
    if not _is_watched(raw) or _MANNER(raw) != raw.manner or has_cursors(raw):
        raise Unresettable("changed by a job")
    raw.schema = None
    raw.pgconn.send_query(_message(raw))
    if _answered(raw.pgconn) != raw.pgconn.backend_pid:
        raise Unresettable("behind a pooler")
    _expire_prepared(raw)


def _message(raw: Any) -> bytes:
    made: bytes | None = raw.message
    if made is None:
        made = raw.message = sessions.resetting(raw, raw.opened)
    return made


def _answered(pgconn: Any) -> int:
    """Read the answers to the message; return the number of the process that serves the session."""
    until = time.monotonic() + RESET_SECONDS
    served_by = 0
    pgconn.consume_input()
    while True:
        while pgconn.is_busy():
            _wait_for(pgconn, until - time.monotonic())
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            return served_by
        if result.status not in DONE:
            raise Unresettable(pgconn.get_error_message())
        if result.ntuples:
            served_by = int(result.get_value(0, 1))


def _wait_for(pgconn: Any, seconds: float) -> None:
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if pgconn.flush() else 0))
    if not poll.poll(max(seconds, 0) * 1000):
        raise Unresettable(f"no answer within {RESET_SECONDS:g} s")


def _expire_prepared(raw: Any) -> None:
    """Have psycopg forget the statements that it had prepared: the reset has deallocated them."""
    if raw.prepare_threshold is not None:
        raw._prepared.clear()
        raw._prepared._to_flush.clear()


def _receivers(wrapper: object) -> list[Callable[..., object]]:
    """Return the project's receivers that set up new connections."""
    receivers, _ = connection_created._live_receivers(type(wrapper))
    return [receive for receive in receivers if not str(getattr(receive, "__module__", "")).startswith(RECEIVERS)]
