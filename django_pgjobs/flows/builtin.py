"""The jobs of this package itself: a batch, a flow, and the cancel of their members. Every worker knows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django_pgjobs.context import running_alias
from django_pgjobs.exceptions import DuplicateJob, InvalidJob, Snooze
from django_pgjobs.jobs import BoundJob, job
from django_pgjobs.states import BUILT_IN, GATHERING

if TYPE_CHECKING:
    from django_pgjobs.models import Job

MEMBERS_AT_ONCE = 1000
BUSY_SECONDS = 5
BATCH, FLOW = GATHERING


def holder(alias: str, job_id: int, name: str) -> Job:
    """Return the batch or flow that has been stored, or that has its key. Raises ``DuplicateJob`` for another job."""
    from django_pgjobs.models import Job  # here: the models are not loaded yet

    found = Job.objects.using(alias).get(pk=job_id)
    if found.name != name:
        raise DuplicateJob(found.pk, found.key or "", found.queue)
    return found


def checked_calls(calls: Iterable[BoundJob]) -> Iterable[BoundJob]:
    """Return ``calls``. Raises ``InvalidJob`` for a single one."""
    if isinstance(calls, BoundJob):
        raise InvalidJob(f"pass a list of calls, not the call of {calls.name!r} alone")
    return calls


@job(name=BATCH)
def batch() -> None:
    """Do nothing: the row of a batch waits for the members, and what comes after the batch waits for its end."""


@job(name=FLOW)
def flow() -> None:
    """Do nothing: the row of a flow waits for its nodes."""


@job(name=f"{BUILT_IN}cancel_members")
def cancel_members(batch_id: int, mode: str, by: str, reason: str) -> None:
    """Cancel the unfinished members of a batch, some at a time; run again if some were locked. Repeatable."""
    from django_pgjobs.models import Job  # here: the models are not loaded yet

    jobs = Job.objects.using(running_alias())
    members = jobs.filter(parent_id=batch_id, finished_at=None)
    last = busy = 0
    while ids := list(members.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:MEMBERS_AT_ONCE]):
        busy += jobs.filter(pk__in=ids).cancel(mode=mode, by=by, reason=reason).skipped.get("busy", 0)
        last = ids[-1]
    if busy:
        raise Snooze(BUSY_SECONDS)
