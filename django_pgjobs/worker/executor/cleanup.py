"""The clean-up between jobs in an executor: one job leaves nothing behind for the next.

Each job runs in a fresh ``contextvars`` context, which takes the active time zone, translation and urlconf with it.
Connections are kept for a while, since a new one per job would cost milliseconds; ``sessions`` makes them as new. A
connection with an open transaction or with autocommit off is discarded and logged. A thread that never used a database
or a cache that needs closing pays nothing: Django's signal for new connections shows which ones it has.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import psycopg
from django.apps import apps
from django.core.cache import caches
from django.core.cache.backends.base import BaseCache
from django.db import DatabaseError, connections
from django.db.backends.signals import connection_created
from django.utils.module_loading import import_string
from psycopg.pq import TransactionStatus

from django_pgjobs.logs import AttemptFacts, facts, log
from django_pgjobs.store.database import WrapperDatabase, check_client, configure
from django_pgjobs.worker.executor import entering, sessions

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class _Mine(threading.local):
    """The database wrappers that this thread has connected."""

    def __init__(self) -> None:
        self.wrappers: list[BaseDatabaseWrapper] = []


_mine = _Mine()
_of_job: ContextVar[list[BaseDatabaseWrapper]] = ContextVar("django_pgjobs_connections")


def mine() -> list[BaseDatabaseWrapper]:
    """Return the live list of the wrappers that this thread has connected."""
    return _mine.wrappers


def of_this_job() -> list[BaseDatabaseWrapper]:
    """Return a live list of the wrappers that this asynchronous job connects, in any thread."""
    wrappers: list[BaseDatabaseWrapper] = []
    _of_job.set(wrappers)
    return wrappers


def active(wrappers: list[BaseDatabaseWrapper]) -> list[object]:
    """Return the psycopg connections of these wrappers that wait for the server now; called in another thread."""
    found = []
    for wrapper in list(wrappers):
        raw = wrapper.connection if wrapper.vendor == "postgresql" else None
        with suppress(Exception):  # its own thread may just be closing it
            if raw is not None and raw.info.transaction_status == TransactionStatus.ACTIVE:
                found.append(raw)
    return found


def prepare_connections(application_name: str, max_age_seconds: float) -> None:
    """Set up future connections of this process: kept, named, and ended by the server if this process is killed.

    ``application_name`` is unique to this process, so that the supervisor can end the sessions that it leaves behind.
    A pool gets back only connections that are as new, even if a job closes one itself.
    """
    of_pgjobs: Any = apps.get_app_config("pgjobs")
    for using in connections.settings:
        settings: Any = connections.settings[using]
        options = settings.get("OPTIONS", {})
        if pool := options.get("pool"):
            wrapper: Any = connections[using]
            if using in wrapper._connection_pools:  # an app has used it: it knows nothing of the reset
                wrapper.close_pool()
            pool = {} if pool is True else pool
            reset = partial(_reset_pooled, pool.get("reset"))
            settings["OPTIONS"] = {**options, "pool": {**pool, "reset": reset}}
        elif settings.get("CONN_MAX_AGE") == 0 and using not in of_pgjobs.closed_at_once and _can_reset(using):
            settings["CONN_MAX_AGE"] = max_age_seconds
    remember_connections()
    _process.application_name = application_name


def _can_reset(using: str) -> bool:
    """Return whether this alias is of PostgreSQL: connections to other databases cannot be made as new."""
    try:
        return connections[using].vendor == "postgresql"
    except Exception:  # its engine cannot be imported, as its users will see
        return False


def _reset_pooled(of_project: Callable[[object], object] | None, raw: object) -> None:
    sessions.reset_pooled(raw)
    if of_project is not None:
        of_project(raw)


class _Process:
    """Facts that are true of every connection of this process."""

    application_name: str | None = None


_process = _Process()


def remember_connections() -> None:
    """Record from now on which connections each thread makes, for ``tidy``."""
    connection_created.connect(_remember, dispatch_uid="django_pgjobs.remember")


def _remember(*, connection: BaseDatabaseWrapper, **_: object) -> None:
    # A wrapper that its alias does not lead to has another owner, such as an inline worker.
    its_alias = getattr(connections._connections, connection.alias, None) is connection  # type: ignore[attr-defined]
    checks = False
    if _process.application_name and connection.vendor == "postgresql" and not sessions.is_watched(connection):
        checks = _name(connection, _process.application_name)
    if its_alias and connection.vendor == "postgresql":
        sessions.watch(connection, checks=checks)
        entering.opened(connection)
    if its_alias and connection not in _mine.wrappers:
        _mine.wrappers.append(connection)
    if its_alias and (of_job := _of_job.get(None)) is not None:
        of_job.append(connection)


def _name(connection: BaseDatabaseWrapper, application_name: str) -> bool:
    """Name a new connection; return whether its server will notice if this process is killed."""
    database = WrapperDatabase(connection)  # its alias does not lead to it yet
    configure(database, {"application_name": application_name}, local=False)
    # Without the check a statement of a killed process continues in its backend, and commits. Some platforms of the
    # server lack it.
    with suppress(DatabaseError):
        check_client(connection)
        return True
    return False


def refresh() -> None:
    """Before a job: close this thread's connections that are too old, that the server has ended, or that are not clean.

    A healthy idle connection has nothing to read, so this costs no round trip.
    """
    for connection in list(_mine.wrappers):
        if connection.connection is None:
            continue
        try:
            sessions.await_reset(connection)
            too_old = connection.close_at is not None and time.monotonic() >= connection.close_at
            if too_old or (_has_news(connection) and not connection.is_usable()):
                connection.close()
        except (sessions.Unresettable, psycopg.OperationalError) as error:
            log.debug("connection is closed, not reset alias=%s: %s", connection.alias, error)
            discard(connection)
        except BaseException:
            log.exception("connection cannot be looked at, discarded alias=%s", connection.alias)
            discard(connection)


def _has_news(connection: BaseDatabaseWrapper) -> bool:
    if connection.vendor != "postgresql":
        return False
    raw = connection.connection
    if raw.closed:
        return True
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def tidy(job: str | AttemptFacts) -> None:
    """Clean up after a job in its own thread; ``job`` is its name for the report. Raises nothing."""
    try:
        if not _mine.wrappers and not closing_caches():
            return
        for using in closing_caches():
            caches[using].close()
        for connection in list(_mine.wrappers):
            _tidy_connection(connection, job)
    except BaseException:
        log.exception("cannot tidy up after %s", _named(job))
        discard_all()


def _named(job: str | AttemptFacts) -> str:
    return job if isinstance(job, str) else facts("name=%s job=%s", job.name, job.id)


def _tidy_connection(connection: BaseDatabaseWrapper, job: str | AttemptFacts) -> None:
    connection.queries_log.clear()
    if connection.connection is None:
        return
    ours = connection.vendor == "postgresql"
    if connection.in_atomic_block or not connection.get_autocommit() or (ours and sessions.is_open(connection)):
        log.error("job left a transaction open, rolled back %s alias=%s", _named(job), connection.alias)
        discard(connection)
        return
    if ours and sessions.has_cursors(connection.connection):
        discard(connection)
        return
    if ours and (trouble := sessions.trouble_on(connection)):
        log.error("%s %s alias=%s", trouble, _named(job), connection.alias)
        discard(connection)
        return
    try:
        if _goes_to_a_pool(connection):
            sessions.ask_reset(connection)
            sessions.await_reset(connection)
        connection.close_if_unusable_or_obsolete()
        if connection.connection is not None and connection.vendor == "postgresql":
            sessions.ask_reset(connection)
    except (sessions.Unresettable, psycopg.OperationalError):  # the server may have closed it
        discard(connection)


def _goes_to_a_pool(connection: object) -> bool:
    """Return whether a connection is given back as it is: an executor's pool resets it itself."""
    return _process.application_name is None and getattr(connection, "pool", None) is not None


@cache
def closing_caches() -> tuple[str, ...]:
    """Return the aliases of caches that must be closed after a job."""
    backends = {using: import_string(params["BACKEND"]) for using, params in caches.settings.items()}
    return tuple(using for using, backend in backends.items() if backend.close is not BaseCache.close)


def discard(connection: BaseDatabaseWrapper) -> None:
    """Close a connection and remove its wrapper: one inside a broken ``atomic()`` cannot be reused."""
    raw, using = connection.connection, connection.alias
    if connection in _mine.wrappers:
        _mine.wrappers.remove(connection)
    try:
        if raw is not None:
            raw.close()
            if (pool := getattr(connection, "pool", None)) is not None:
                pool.putconn(raw)  # the pool replaces it: otherwise its slot would be lost
    finally:
        if getattr(connections._connections, using, None) is connection:  # type: ignore[attr-defined]
            del connections[using]


def discard_all() -> None:
    """Discard every connection of this thread. Raises nothing."""
    for connection in [*_mine.wrappers, *connections.all(initialized_only=True)]:
        try:
            discard(connection)
        except BaseException:
            log.exception("connection cannot be discarded alias=%s", connection.alias)


def close_all() -> None:
    """Close this thread's connections: it is about to end. Raises nothing: the job's outcome is known already."""
    for connection in connections.all(initialized_only=True):
        try:
            connection.close()
        except BaseException:
            log.exception("connection cannot be closed alias=%s", connection.alias)
    _mine.wrappers.clear()
