"""The jobs of this package itself: a batch, a flow, and the cancel of their members. Every worker knows them."""

from __future__ import annotations

from django_pgjobs.jobs import job
from django_pgjobs.states import BUILT_IN, GATHERING

MEMBERS_AT_ONCE = 1000


@job(name=GATHERING[0])
def batch() -> None:
    """Do nothing: the row of a batch waits for the members, and what comes after the batch waits for its end."""


@job(name=GATHERING[1])
def flow() -> None:
    """Do nothing: the row of a flow waits for its nodes."""


@job(name=f"{BUILT_IN}cancel_members")
def cancel_members(batch_id: int, mode: str, by: str, reason: str) -> None:
    """Cancel the unfinished members of a batch, some at a time. Repeatable."""
    from django_pgjobs.models import Job  # here: the models are not loaded yet

    members = Job.objects.filter(parent_id=batch_id, finished_at=None)
    last = 0
    while ids := list(members.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:MEMBERS_AT_ONCE]):
        Job.objects.filter(pk__in=ids).cancel(mode=mode, by=by, reason=reason)
        last = ids[-1]
