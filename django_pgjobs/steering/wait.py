"""Wait for a job's end.

A waiter marks the row (``waited``), so that the statement that ends the job notifies. Then it listens on a connection
of its own. Notifications may be lost (a transaction pooler, a restart), so it also polls each second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from django.db import DatabaseError, connections, models

from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import (
    InvalidJob,
    JobDoesNotExist,
    JobFailed,
    JobNotCommitted,
    JobNotFinished,
    RemoteTraceback,
)
from django_pgjobs.fields import LATEST_FIRST
from django_pgjobs.serialization.payload import revive
from django_pgjobs.states import Outcome
from django_pgjobs.store import keeping, schemas
from django_pgjobs.store.database import WrapperDatabase, written_at
from django_pgjobs.store.keeping import Marked

J = TypeVar("J", bound=models.Model)
"""A job's row; this room does not know its model."""

T = TypeVar("T")

POLL_SECONDS = 1.0
MOST_RECEIVED = 10_000
"""Maximum number of notifications that one wait receives: every role of the database may send some."""
LOCKED_SECONDS = 0.01
"""The first pause where the row is locked, most likely by its end, which then sends no notification; each next is
doubled."""


def wait(job: J, timeout: float | timedelta | None) -> J:
    """Block until ``job`` has ended; see ``Job.wait``."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    given: object = seconds
    if isinstance(given, bool) or not isinstance(given, int | float | None):
        raise InvalidJob(f"timeout must be seconds, a timedelta, or None to wait without limit, not {timeout!r}.")
    using = written_at(job)  # waiting writes: the end notifies only if the row is marked
    row: Any = _refresh(job, using)
    if row.finished_at is None:
        _until_ended(job, using, None if seconds is None else time.monotonic() + seconds)
        _refresh(job, using)
    return job


def value(job: models.Model, timeout: float | timedelta | None) -> Any:
    """Block until ``job`` has ended and return its return value; see ``Job.value``."""
    ended: Any = wait(job, timeout)
    if ended.outcome == Outcome.SUCCEEDED:
        return revive(ended.result)
    raise _failure(ended)


def _failure(job: Any) -> JobFailed:
    last = job.attempts.using(job._state.db).order_by(LATEST_FIRST).first()
    error = job.error
    if job.outcome == Outcome.CANCELLED and (job.cancel_by or job.cancel_reason):
        error = ": ".join(part for part in (f"by {job.cancel_by}" if job.cancel_by else "", job.cancel_reason) if part)
    failed = JobFailed(
        job_id=job.pk, outcome=str(job.outcome), kind="" if last is None else last.exception, error=error
    )
    if last is not None and last.traceback:
        failed.__cause__ = RemoteTraceback(last.traceback)
    return failed


def in_thread(asked: Callable[[J, float | timedelta | None], T], job: J, timeout: float | timedelta | None) -> T:
    """Call ``asked`` in a thread for an async caller, and close the thread's connections afterwards."""
    mark = schemas.closes_all.set(True)
    try:
        return asked(job, timeout)
    finally:
        schemas.closes_all.reset(mark)  # else it would come to the caller
        connections.close_all()


def _refresh(job: J, using: str) -> J:
    found = type(job)._default_manager.using(using).filter(pk=job.pk).first()
    if found is None:
        raise JobDoesNotExist(f"There is no job {job.pk}: it was never committed, or has ended and is not kept.")
    job.__dict__.update({k: v for k, v in found.__dict__.items() if k != "_state"})
    return job


def _until_ended(job: models.Model, using: str, until: float | None) -> None:
    wrapper = connections.create_connection(using)
    wrapper.settings_dict = {**wrapper.settings_dict, "OPTIONS": _without_pool(wrapper.settings_dict)}
    try:
        own = WrapperDatabase(wrapper) if get_conf().schemas is None else _in_schema_of(connections[using], wrapper)
        own.fetch("listen_ended", {})
        _poll_until_ended(job, own, until)
    finally:
        wrapper.close()


def _in_schema_of(caller: Any, wrapper: Any) -> WrapperDatabase:
    """Let a connection, however often it is made, find the tables that the caller's finds: those of one schema."""
    if hasattr(caller, "set_schema"):
        wrapper.set_schema(caller.schema_name)
    elif schema := schemas.own_schema(WrapperDatabase(caller)):
        return schemas.SchemaDatabase(wrapper, schema)
    return WrapperDatabase(wrapper)


def _poll_until_ended(job: models.Model, own: WrapperDatabase, until: float | None) -> None:
    """Poll ``job`` on the waiter's own autocommit connection, now, each second and at a notification of its end."""
    locked = LOCKED_SECONDS
    while True:
        seen = _poll(own, job.pk)
        if seen is None:
            _poll_as_the_caller(job, own.wrapper.alias, until)
            return
        if seen.ended:
            return
        _listen(own, job.pk, min(_left(job, until), POLL_SECONDS if seen.marked else locked))
        locked = LOCKED_SECONDS if seen.marked else min(locked * 2, POLL_SECONDS)


def _poll_as_the_caller(job: Any, using: str, until: float | None) -> None:
    """Poll a job each second that only the caller's connection sees, as with row-level security by a setting."""
    _refresh(job, using)
    if connections[using].in_atomic_block:
        raise JobNotCommitted(
            f"Job {job.pk} is not committed: waiting inside the transaction that registered it would never end. (Or "
            "row-level security hides it from the connection that waits: wait outside of a transaction.)"
        )
    while job.finished_at is None:
        time.sleep(min(_left(job, until), POLL_SECONDS))
        _refresh(job, using)


def _left(job: models.Model, until: float | None) -> float:
    left = POLL_SECONDS if until is None else until - time.monotonic()
    if left <= 0:
        raise JobNotFinished(f"Job {job.pk} did not finish within the time given.")
    return left


def _poll(own: WrapperDatabase, job_id: int) -> Marked | None:
    """Return whether the job has ended and is marked; None if it is not committed."""
    try:
        return keeping.mark_waited(own, job_id)
    except DatabaseError:
        if not own.wrapper.is_usable():
            raise
        return Marked(ended=False, marked=False)


def _listen(own: WrapperDatabase, job_id: int, seconds: float) -> None:
    for received, notification in enumerate(own.wrapper.connection.notifies(timeout=seconds)):
        if notification.payload == str(job_id):
            return
        if received > MOST_RECEIVED:
            # A flood. The next poll connects again and does not listen: it would have to take all that comes before its
            # answer.
            own.wrapper.close()
            return


def _without_pool(settings_dict: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings_dict.get("OPTIONS", {}).items() if key != "pool"}
