"""The jobs of this package itself: a batch, a flow, the cancel of their members, a notice. Every worker knows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from django_pgjobs.conf import get_conf
from django_pgjobs.context import JobContext, running_alias
from django_pgjobs.exceptions import Cancel, DuplicateJob, InvalidJob, Snooze
from django_pgjobs.jobs import BoundJob, JobDefinition, job
from django_pgjobs.states import (
    BUILT_IN,
    CANCEL_MEMBERS,
    FAIL_FAST,
    GATHER,
    GATHERING,
    NOTIFY,
    TIRELESS,
    UNDO,
    WAKE,
    MemoKind,
    Outcome,
)
from django_pgjobs.states import FlowFlag as Bits
from django_pgjobs.values.backoff import Backoff

if TYPE_CHECKING:
    from django_pgjobs.models import Job
    from django_pgjobs.store.new_jobs import NewJob

Each = TypeVar("Each")

MEMBERS_AT_ONCE = 1000
BUSY_SECONDS = 5
BATCH, FLOW = GATHERING

AGAIN = Backoff(1, factor=2, limit=300)
"""Backoff of jobs that are tried as often as it takes."""

DELIVERY_ATTEMPTS = 5
DELIVERY_SECONDS = 30.0
DELIVERY_PRIORITY = 50
"""Priority of a notice of failures, which must not wait behind a backlog."""


def holder(using: str, job_id: int, name: str) -> Job:
    """Return the batch or flow that has been stored, or that has its key. Raises ``DuplicateJob`` for another job."""
    from django_pgjobs.models import Job  # here: the models are not loaded yet

    found = Job.objects.using(using).get(pk=job_id)
    if found.name != name:
        raise DuplicateJob(found.pk, found.key or "", found.queue)
    return found


def own_call(own: JobDefinition[[], None], **options: Any) -> BoundJob:
    """Return the call for the row of a batch or flow; ``options`` that are None are not given, except keys."""
    given = {name: value for name, value in options.items() if value is not None or name == "unique"}
    return own.using(**given).bind()


def new_job_of(call: BoundJob, using: str | None, *, captures: bool = True) -> NewJob:
    """Return what a call writes to the database of its batch or flow. Raises ``InvalidJob``.

    ``captures``: whether middleware captures its headers here; else the caller knows them.
    """
    from django_pgjobs.registering.encode import check_key_given, headers_of, new_job  # here for start-up time

    row = call._row()
    check_key_given(row)
    if row.plan.database not in (None, using):
        raise InvalidJob(f"job {call.name!r}: it has to go to database {using!r}, not to {row.plan.database!r}")
    new = new_job(row, headers_of(row) if captures else None)
    if new.sequence is not None:
        raise InvalidJob(
            f"job {call.name!r}: it cannot be in a sequence here, where others need it or it needs others, as two "
            "orders could wait for each other; pass using(sequence=None)"
        )
    return new._replace(max_attempts=TIRELESS) if new.name.startswith(BUILT_IN) else new


def checked_undo(undo: bool, on_failure: str) -> str | None:
    """Return what happens if a part cannot be undone, None if nothing is to be undone. Raises ``InvalidJob``."""
    if on_failure not in ("go_on", "stop"):
        raise InvalidJob(f"undo_on_failure must be 'go_on' or 'stop', not {on_failure!r}")
    return on_failure if undo else None


def with_undo(new: NewJob, on_failure: str | None) -> NewJob:
    """Return the row of a batch or flow that is undone if it fails; as it is, if ``on_failure`` is None."""
    if on_failure is None:
        return new
    return new._replace(flow=new.flow | Bits.UNDOABLE, options={**(new.options or {}), "undo_on_failure": on_failure})


def checked_calls(calls: Iterable[Each]) -> Iterable[Each]:
    """Return ``calls``. Raises ``InvalidJob`` for a single one."""
    if isinstance(calls, BoundJob):
        raise InvalidJob(f"pass a list of calls, not the call of {calls.name!r} alone")
    return calls


@job(name=BATCH)
def batch() -> None:
    """Do nothing: the row of a batch waits for the members, and their ends are its end; workers only write it."""


@job(name=FLOW)
def flow() -> None:
    """Do nothing: the row of a flow waits for its nodes, as that of a batch for its members."""


@job(name=CANCEL_MEMBERS, backoff=AGAIN)
def cancel_members(batch_id: int, mode: str, by: str, reason: str) -> None:
    """Cancel the unfinished members of a batch, some at a time; run again if some were locked. Repeatable.

    The latest first: workers begin with the earliest, and may begin them faster than they are cancelled. If no job
    waits for the batch any longer, as its job has ended, it is asked to end before.
    """
    from django_pgjobs.models import Job  # here: the models are not loaded yet
    from django_pgjobs.models.gates import Gate  # here: the models are not loaded yet

    using = running_alias()
    if by == FAIL_FAST and not Gate.objects.using(using).filter(pk=batch_id, abandoned__gt=0).exists():
        raise Cancel("what was abandoned has been retried")
    jobs = Job.objects.using(using)
    if by == GATHER and (batch := jobs.filter(pk=batch_id, finished_at=None, cancel_requested_at=None).first()):
        if not _has_lost_its_job(batch):
            raise Cancel("the job that waits for it has been retried")
        if batch.cancel(mode=mode, by=by, reason=reason).skipped.get("busy"):
            raise Snooze(BUSY_SECONDS)
    members = jobs.filter(parent_id=batch_id, finished_at=None)
    busy = 0
    while ids := list(members.order_by("-pk").values_list("pk", flat=True)[:MEMBERS_AT_ONCE]):
        members = members.filter(pk__lt=ids[-1])
        busy += jobs.filter(pk__in=ids).cancel(mode=mode, by=by, reason=reason).skipped.get("busy", 0)
    if busy:
        raise Snooze(BUSY_SECONDS)


def _has_lost_its_job(batch: Job) -> bool:
    """Return whether the job that gathers this batch has ended without a success."""
    from django_pgjobs.models import Memo  # here: the models are not loaded yet

    event = (batch.options or {}).get("gather")
    waits = Memo.objects.using(batch._state.db).filter(kind=MemoKind.GATHER, event=event, finished_at=None)
    return waits.filter(job__outcome__in=[Outcome.ABANDONED, Outcome.CANCELLED]).exists()


@job(name=WAKE, priority=50, backoff=AGAIN, store_result=False)
def wake(event: str) -> None:
    """Wake the job that waits for this event: the jobs that it gathered have ended. Repeatable."""
    from django_pgjobs.models import Memo  # here: the models are not loaded yet
    from django_pgjobs.steering import events  # here for start-up time

    using = running_alias() or DEFAULT_DB_ALIAS
    waits = Memo.objects.using(using).filter(kind=MemoKind.GATHER, event=event, finished_at=None)
    if waits.filter(job__finished_at=None).exists():
        events.send(using, event, "null", WAKE)
    else:
        remove_event(using, event)


def remove_event(using: str, event: str) -> None:
    """Delete the event of a gather: the job that waited for it has ended, or has read the results."""
    from django_pgjobs.models import EventState  # here: the models are not loaded yet

    EventState.objects.using(using).filter(pk=event).delete()


@job(name=UNDO, backoff=AGAIN, store_result=False)
def undo(context: JobContext, job_id: int) -> None:
    """Undo what a job has done, the latest first, each part by a job of its own; continue where it stopped.
    Repeatable."""
    from django_pgjobs.flows import undoing  # here for start-up time

    undoing.undo(context, job_id)


@job(
    name=NOTIFY,
    priority=DELIVERY_PRIORITY,
    max_attempts=DELIVERY_ATTEMPTS,
    timeout=DELIVERY_SECONDS,
    backoff=Backoff(15, factor=4),
    store_result=False,
)
def notify(digest: dict[str, object]) -> object:
    """Deliver a notice of failures to the recipient that the settings name now; cancel it if they name none any
    more."""
    from django_pgjobs.notifying.delivery import load  # here for start-up time
    from django_pgjobs.notifying.notice import notice_of  # here for start-up time
    from django_pgjobs.registering.served import several_aliases  # here for start-up time

    conf = get_conf().notify_failures
    if conf is None:
        raise Cancel("NOTIFY_FAILURES is off")
    # Its value is awaited: a plain decorator may hide that it is async.
    database = running_alias() or DEFAULT_DB_ALIAS
    try:
        several = bool(several_aliases())
    except ImproperlyConfigured:
        several = True  # to name the database is never wrong
    return load(conf.to)(notice_of(digest, site=conf.site, database=database, several=several))
