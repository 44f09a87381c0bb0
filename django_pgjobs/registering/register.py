"""Register jobs: from checked options to a stored row and the ``Job`` that the caller gets.

Only ``jobs`` calls this module. It refuses bad input before it sends the one statement, so bad input stores nothing and
leaves the caller's transaction usable. It runs in the caller's transaction and opens none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, TypeVar, cast

from django.core.exceptions import SynchronousOnlyOperation
from django.db import ProgrammingError
from django.db.models.base import Model, ModelState
from django.db.models.signals import ModelSignal, post_init, pre_init
from django.utils import timezone

from django_pgjobs.exceptions import InvalidJob, NoWorkerAvailable
from django_pgjobs.middleware import Registration, registering
from django_pgjobs.registering.destination import check_members, connection_for, job_model
from django_pgjobs.registering.encode import NewBatch, Row, check_key_given, encode_all, headers_of, new_job
from django_pgjobs.signals import job_registered
from django_pgjobs.states import FlowFlag, Hold, KeyScope
from django_pgjobs.store import waking
from django_pgjobs.store.database import NOT_MIGRATED, is_not_migrated
from django_pgjobs.store.new_jobs import SPECIAL_COLUMNS, NewJob, NewJobList, NewJobs
from django_pgjobs.store.registering import Registered, register_job, register_jobs, register_plain

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgjobs.conf import Conf
    from django_pgjobs.definition.policy import JobPolicy


_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def _parse(text: str) -> object:
    """Return the value of JSON text that ``encoder`` has just written."""
    return _scan(text, 0)[0]


_OPEN: AbstractContextManager[None] = nullcontext()
"""The context of an insert that needs none."""

F = TypeVar("F", bound=Callable[..., object])
M = TypeVar("M", bound=Model)

Checked = Callable[[NewBatch], None]
"""Raises if these must not be stored."""


def _with_cure(function: F) -> F:
    """Add the cure to errors of Django and the server that name only the trouble: async callers, missing tables."""

    @wraps(function)
    def register(*args: object) -> object:
        try:
            return function(*args)
        except SynchronousOnlyOperation:
            raise SynchronousOnlyOperation(
                "register() and register_many() wait for the database: in asynchronous code write "
                "await aregister(…) or await aregister_many(…)."
            ) from None
        except ProgrammingError as error:
            words = str(error).partition("\n")[0]
            # The missing table may be the project's own: one of its triggers may need it.
            if not is_not_migrated(error) or "pgjobs_" not in words:
                raise
            # Keep class and cause, since callers may catch them.
            raise type(error)(f"{NOT_MIGRATED} ({words}).") from error.__cause__

    return cast(F, register)


@_with_cure
def register_one(row: Row) -> Model:
    """Insert one job and return it, or return the job that has its key.

    Raises ``InvalidJob``, ``DuplicateJob``, ``RateLimited``, ``QueueFull``, ``NoWorkerAvailable`` for a bypass, and
    database errors. May block while another transaction holds the key or the queue.
    """
    with registering(row.definition.name, row.plan.queue) if row.plan.conf.middleware else _OPEN as registration:
        return _register_one(row, registration)


def _register_one(row: Row, registration: Registration | None) -> Model:
    plan, conf = row.plan, row.plan.conf
    if not plan.bypass:
        check_key_given(row)
    new = new_job(row, headers_of(row))
    if plan.bypass:
        return _bypass(new, conf, registration)
    needed = ((new.name, plan.after_rows),) if plan.after_rows else ()
    connection = connection_for(plan.database, (NewJobs.of(new),), needed)
    with passing(connection, conf, (new.queue,)):
        stored = _insert(connection, new, conf)
    if registration is not None:
        registration.count, registration.job = (0, stored) if isinstance(stored, int) else (1, stored.id)
    if isinstance(stored, int):
        return _existing(connection.alias, new, stored)
    if new.needs or new.sequence is not None:  # it may have been released at once, or wait for its turn
        job = as_fresh(_existing(connection.alias, new, stored.id))
        if new.sequence is not None and job.hold != Hold.BLOCKED:  # type: ignore[attr-defined]
            waking.registered(connection, (new.wakes,), conf)
    else:
        waking.registered(connection, (new.wakes,), conf)
        given: dict[str, object] = {"id": stored.id, "run_at": stored.run_at, "created_at": stored.created_at}
        if stored.expires_at is not None:
            given["expires_at"] = stored.expires_at
        job = _job(connection.alias, new, given)
    if job_registered.receivers:
        job_registered.send_robust(sender=row.definition, job=job)
    return job


def as_fresh(registered: M) -> M:
    """Note on a job that this call has stored it, and return it."""
    registered.fresh = True  # type: ignore[attr-defined]
    return registered


def _insert(connection: BaseDatabaseWrapper, new: NewJob, conf: Conf) -> Registered | int:
    if new.is_plain:
        return register_plain(connection, new)
    using = connection.alias
    if not new.is_special and (stored := register_job(using, new)):
        return stored
    if new.needs:
        from django_pgjobs.registering.waiting import insert_waiting  # here for start-up time

        return insert_waiting(using, new, conf)
    if new.sequence is not None:
        from django_pgjobs.registering.waiting import insert_in_turn  # here for start-up time

        return insert_in_turn(using, new)
    from django_pgjobs.registering.conflicts import insert_one  # here for start-up time

    return insert_one(using, new)


def passing(connection: BaseDatabaseWrapper, conf: Conf, queues: Iterable[str]) -> AbstractContextManager[None]:
    """Return the context in which to insert one job for each of ``queues``; see ``capacity.passing``."""
    if not conf.capacity.values and not conf.registration_rate.values:
        return _OPEN
    from django_pgjobs.registering import capacity  # here for start-up time

    return capacity.passing(connection, conf, queues)


def _existing(using: str, new: NewJob, job_id: int) -> Model:
    """Return the job that has the key; if its row is gone, an instance with the known fields, the rest deferred."""
    found = job_model()._base_manager.using(using).filter(pk=job_id).first()
    return found or job_model().from_db(using, ["id", "queue", "key"], [job_id, new.queue, new.key])


@_with_cure
def register_all(rows: Iterable[Row], database: str | None, conf: Conf) -> list[int]:
    """Insert many jobs of any kind in one statement; return their ids in the order of ``rows``.

    If a key is taken, the id is that of the job that has it. All jobs go to ``database``, or to the one alias that
    their options name. Raises ``InvalidJob`` naming the row, ``DuplicateJob``, ``RateLimited`` and ``QueueFull``; then
    nothing is stored.
    """
    return _register_all(rows, database, conf, None)[0]


@_with_cure
def register_all_fresh(rows: Iterable[Row], database: str | None, conf: Conf) -> tuple[list[int], Collection[int]]:
    """Do as ``register_all``, and also return the positions of the rows that were inserted."""
    return _register_all(rows, database, conf, None)


@_with_cure
def register_members(rows: Iterable[Row], database: str, conf: Conf, parent_id: int, is_routed: bool) -> int:
    """Insert jobs that are members of a batch, as ``register_all``; return how many were inserted.

    ``is_routed``: the routers sent the batch to ``database``.
    """

    def checked(batch: NewBatch) -> None:
        if others := batch.databases - {None, database}:
            raise InvalidJob(
                f"a member of batch {parent_id} has to go to database {database!r}, as the batch, not to "
                f"{', '.join(sorted(map(str, others)))}"
            )
        if is_routed:
            check_members(database, batch.new)

    return len(_register_all(rows, database, conf, parent_id, checked)[1])


def _register_all(
    rows: Iterable[Row], database: str | None, conf: Conf, parent_id: int | None, checked: Checked | None = None
) -> tuple[list[int], Collection[int]]:
    """Return the ids of the jobs, and the positions of those that were inserted."""
    with registering() if conf.middleware else _OPEN as registration:
        return _insert_all(rows, database, conf, parent_id, checked, registration)


def _insert_all(
    rows: Iterable[Row],
    database: str | None,
    conf: Conf,
    parent_id: int | None,
    checked: Checked | None,
    registration: Registration | None,
) -> tuple[list[int], Collection[int]]:
    batch = encode_all(rows, conf, database)
    if not batch.new:
        return [], ()
    if checked is not None:
        checked(batch)
    connection = connection_for(batch.database(), batch.new, batch.needed)
    given = batch.new
    if parent_id is not None and (batch.special or batch.senders):
        if any(parent_id in dict(some.first.needs) for some in given):
            raise InvalidJob(f"a member of batch {parent_id} cannot need it: the batch waits for its members")
        given = [
            some._replace(first=some.first._replace(flow=some.first.flow | FlowFlag.MEMBER, parent_id=parent_id))
            for some in given
        ]
    each = NewJobList(given)
    fresh: Collection[int] = range(batch.count)
    with passing(connection, conf, batch.queues()):
        if batch.special:
            ids, fresh = _insert_special(connection.alias, given, conf, parent_id)
            new = (some.first for some in given) if len(fresh) == batch.count else map(each.__getitem__, fresh)
            wakes = {job.wakes for job in new if not job.waits}
        else:
            ids = register_jobs(connection.alias, batch.new, limited=batch.limited, parent_id=parent_id)
            wakes = {some.first.wakes for some in batch.new}
    if registration is not None:
        note(registration, (some.first for some in batch.new), len(fresh))
    waking.registered(connection, wakes, conf)
    if batch.senders:
        for at in fresh:
            job = _deferred_job(connection.alias, each[at], ids[at])
            job_registered.send_robust(sender=batch.senders[at], job=job)
    return ids, fresh


def note(registration: Registration, new: Iterable[NewJob], count: int) -> None:
    """Complete what middleware learns of several jobs, ``count`` of which were inserted."""
    names, queues = zip(*{(job.name, job.queue) for job in new}, strict=True)
    registration.name = names[0] if len(set(names)) == 1 else ""
    registration.queue = queues[0] if len(set(queues)) == 1 else ""
    registration.count = count


def _insert_special(
    using: str, given: Sequence[NewJobs], conf: Conf, parent_id: int | None = None
) -> tuple[list[int], list[int]]:
    if parent_id is not None:
        from django_pgjobs.registering.waiting import insert_members  # here for start-up time

        return insert_members(using, parent_id, given, lambda some: _insert_special(using, some, conf))
    if any(some.first.needs for some in given):
        from django_pgjobs.registering.waiting import insert_all_waiting  # here for start-up time

        return insert_all_waiting(using, given, conf)
    if any(some.first.sequence is not None for some in given):
        from django_pgjobs.registering.waiting import insert_all_in_turn  # here for start-up time

        return insert_all_in_turn(using, given)
    from django_pgjobs.registering.conflicts import insert_all  # here for start-up time

    return insert_all(using, given)


def _not_ready(new: NewJob) -> None:
    raise RuntimeError("jobs run when Django's apps are ready")


run_bypassed: Callable[[NewJob], None] = _not_ready
"""Runs a job that is not stored, in the calling thread. The app's ``ready`` sets it: the runner is a room above."""


def _bypass(new: NewJob, conf: Conf, registration: Registration | None) -> Model:
    """Start a job in a local worker and return it, unsaved. Raises ``InvalidJob`` and ``NoWorkerAvailable``."""
    from django_pgjobs.registering import local_pool  # here for start-up time

    call = partial(run_bypassed, new)
    if not local_pool.of_this_process.submit(call, limit=conf.bypass_workers, exit_seconds=conf.bypass_exit_seconds):
        raise NoWorkerAvailable
    if registration is not None:
        registration.count = 1
    now = timezone.now()
    job = _job(None, new, {"id": None, "run_at": now, "created_at": now, "attempt": 1, "max_attempts": 1})
    job.__dict__["state"] = "running"
    job._state.adding = True
    return job


def announce(using: str, definitions: Iterable[JobPolicy], new: Iterable[NewJob]) -> None:
    """Send ``job_registered`` for jobs that have been inserted, whose ids are known."""
    if job_registered.receivers:
        for definition, job in zip(definitions, new, strict=True):
            job_registered.send_robust(sender=definition, job=_deferred_job(using, job, job.id or 0))


# The instance, without a second query


@cache
def _blank() -> dict[str, object]:
    """Return column → value of a new job, in the order of the model's fields."""
    fields = job_model()._meta.concrete_fields
    blank = {field.attname: None if field.null else field.db_default for field in fields}
    return blank | {"state": "ready", "tags": ()}


def _job(using: str | None, new: NewJob, stored: dict[str, object]) -> Model:
    values = {
        **_blank(),
        "name": new.name,
        "queue": new.queue,
        "priority": new.priority,
        "max_attempts": new.max_attempts,
        "timeout_seconds": new.timeout_seconds,
        "description": new.description,
        "payload": _parse(new.payload),
        "headers": None if new.headers is None else _parse(new.headers),
        **stored,
    }
    if new.is_special:
        values |= _special(new)
    model = job_model()
    if _is_listened_to(pre_init, model) or _is_listened_to(post_init, model):
        return as_fresh(model.from_db(using, list(values), list(values.values())))
    # Does what from_db does for a model whose fields store values unchanged, at a tenth of the cost.
    values["_state"] = state = ModelState()
    state.adding, state.db = False, using
    values["fresh"] = True
    job = model.__new__(model)
    job.__dict__ = values
    return job


def _special(new: NewJob) -> dict[str, object]:
    unique = new.key_scope in (KeyScope.UNTIL_FINISHED, KeyScope.UNTIL_STARTED)
    values = {"unique_key": new.key} if unique else {}
    if new.waits:
        values |= {"hold": "blocked", "state": "blocked"}
    elif new.limit_key is not None:
        values |= {"hold": "limited", "state": "limited"}
    return values | {name: getattr(new, name) for name in SPECIAL_COLUMNS}


def _is_listened_to(signal: ModelSignal, model: type[Model]) -> bool:
    return bool(signal.receivers) and signal.has_listeners(model)


def _deferred_job(using: str, new: NewJob, id_: int) -> Model:
    """Return a job that loads its instants on first access: the bulk statement returns ids only."""
    job = _job(using, new, {"id": id_})
    for unknown in ("run_at", "created_at", *(["expires_at"] if new.expires_seconds is not None else [])):
        del job.__dict__[unknown]
    return job
