"""In an executor whose jobs are of many schemas of one database: connections lead to that of the job.

The connection of the job's thread is led there before the job begins, or as it is opened. After the job the session is
reset, the path with it. An engine for tenants, with a ``set_schema`` of its own, is told before the job begins, open or
not, as it sets the path at each cursor, and the job may choose another. All that is done in threads that the worker
cleans up after each job; elsewhere a connection would stay in the schema of the job that opened it, and is refused.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections

from django_pgjobs.store import schemas
from django_pgjobs.store.database import WrapperDatabase

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class Tenancy(NamedTuple):
    """A schema in the database of an alias."""

    database: str
    schema: str


class _Thread(threading.local):
    """The schema of this thread, if the worker cleans it up, and the wrapper whose schema was set last."""

    tenancy: Tenancy | None = None
    was_set: tuple[object, Tenancy] | None = None


_here: ContextVar[Tenancy | None] = ContextVar("django_pgjobs_tenancy", default=None)
_thread = _Thread()


def enter(tenancy: Tenancy) -> None:
    """Let connections lead to this schema for the rest of the context, in threads that are led there."""
    _here.set(tenancy)


def lead(tenancy: Tenancy) -> None:
    """Lead this thread, which the worker cleans up, to this schema; so is the rest of the context."""
    _here.set(tenancy)
    _thread.tenancy = None  # should the next lines fail, it opens none
    wrapper = connections[tenancy.database]
    if not _set(wrapper, tenancy) and wrapper.connection is not None:
        _lead(wrapper, tenancy.schema)
    _thread.tenancy = tenancy


def opened(wrapper: BaseDatabaseWrapper) -> None:
    """Lead a new connection to the schema of the job that opens it, if that has one. Raises ``RuntimeError``."""
    tenancy = _here.get()
    if tenancy is None or wrapper.alias != tenancy.database:
        return
    if _thread.tenancy != tenancy and not schemas.closes_all.get():
        wrapper.close()
        raise RuntimeError(
            f"This thread has no connection to the schema {tenancy.schema!r}, as it is not one of the job's own: "
            "use sync_to_async() with thread_sensitive=True in place of asyncio.to_thread()."
        )
    if _thread.was_set != (wrapper, tenancy) and not _set(wrapper, tenancy):
        _lead(wrapper, tenancy.schema)


def _set(wrapper: BaseDatabaseWrapper, tenancy: Tenancy) -> bool:
    """Set the schema of a wrapper for tenants; return whether it is one."""
    if not hasattr(wrapper, "set_schema"):
        return False
    wrapper.set_schema(tenancy.schema)
    _thread.was_set = wrapper, tenancy
    return True


def _lead(wrapper: BaseDatabaseWrapper, schema: str) -> None:
    raw = wrapper.connection
    if getattr(raw, "schema", None) == schema:
        return
    schemas.enter_first(WrapperDatabase(wrapper), schema)
    if not wrapper.autocommit:
        raw.commit()  # a rollback of the job's would take the path back
    if hasattr(raw, "sent"):
        raw.schema, raw.sent = schema, []
