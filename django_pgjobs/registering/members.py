"""A key names one member of a batch for as long as the batch is there, so that members can be added again.

Elsewhere a key is free when its job has ended. A producer that continues with an open batch, after a crash, adds all
members once more: those that have ended in the meantime must not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django_pgjobs.definition.keys import OnConflict
from django_pgjobs.exceptions import DuplicateJob
from django_pgjobs.registering.conflicts import StoredBatch
from django_pgjobs.store.database import on
from django_pgjobs.store.gates import lock_gate
from django_pgjobs.store.keys import KnownMember, find_members
from django_pgjobs.store.new_jobs import NewJob, NewJobList, NewJobs
from django_pgjobs.store.transactions import at_read_committed

TRIES = 5
"""Number of tries to insert a portion, if others add members with its keys at the same time."""

Insert = Callable[[Sequence[NewJobs]], tuple[list[int], list[int]]]


class _AddedBeside(Exception):
    """Another transaction has added a member with the same key, and it has ended already."""


def insert_members(using: str, batch_id: int, given: Sequence[NewJobs], insert: Insert) -> tuple[list[int], list[int]]:
    """Insert those whose key no member has had, by ``insert``; return the ids of all, and the positions of these.

    Raises ``DuplicateJob`` for a key that a member has had, if that is what the call asks for.
    """
    if not any(some.first.key is not None for some in given):
        return insert(given)
    new = NewJobList(given)
    for left in reversed(range(TRIES)):
        try:
            with at_read_committed(using):
                return _insert_once(using, batch_id, new, insert, is_last=not left)
        except _AddedBeside:
            pass
    raise AssertionError("the last try returns")


def _insert_once(
    using: str, batch_id: int, new: NewJobList, insert: Insert, *, is_last: bool
) -> tuple[list[int], list[int]]:
    known = {at: had.ids[0] for at, had in _known(using, batch_id, new).items() if _stands(new[at], had)}
    left = [at for at in range(len(new)) if at not in known]
    if not left:
        return [known[at] for at in range(len(new))], []
    stored = StoredBatch(*insert(new.only(left)))
    # Adding members locks the gate until the commit: members of others are seen once the lock is held.
    lock_gate(on(using), batch_id)
    beside = _known(using, batch_id, [new[at] for at in left])
    if not is_last and not {job_id for had in beside.values() for job_id in had.ids} <= set(stored.ids):
        raise _AddedBeside
    ids = known | dict(zip(left, stored.ids, strict=True))
    return [ids[at] for at in range(len(new))], [left[at] for at in stored.fresh]


def _known(using: str, batch_id: int, new: Sequence[NewJob]) -> dict[int, KnownMember]:
    """Return position → the member that has had its key."""
    keyed = [at for at, job in enumerate(new) if job.key is not None]
    return {keyed[at]: had for at, had in find_members(on(using), batch_id, [new[at] for at in keyed]).items()}


def _stands(new: NewJob, had: KnownMember) -> bool:
    """Return whether the member stays as it is; one that has not started may be postponed or replaced. Raises."""
    if new.on_conflict == OnConflict.RAISE:
        raise DuplicateJob(had.ids[0], new.key or "", new.queue)
    return had.started or new.on_conflict == OnConflict.EXISTING
