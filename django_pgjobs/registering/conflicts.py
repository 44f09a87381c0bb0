"""Settle a registration whose key is taken: ``existing``, ``replace``, ``postpone`` or ``raise``.

The insert itself finds out (ON CONFLICT DO NOTHING), so no error spoils the caller's transaction and there is no gap
between looking and inserting. If another transaction holds the key and has not committed, the insert waits for it. The
holder may end between our insert and our query for it: then we insert again, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from typing import NamedTuple, TypeVar

from django.db import OperationalError, connections

from django_pgjobs.conf import get_conf
from django_pgjobs.definition.keys import OnConflict
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import DuplicateJob
from django_pgjobs.states import NOT_NEEDED, CancelMode
from django_pgjobs.store import waking
from django_pgjobs.store.database import (
    DEADLOCK,
    SERIALIZATION_FAILURE,
    at_read_committed,
    on,
    opens_transaction,
    sqlstate_of,
)
from django_pgjobs.store.keys import KeyHolder, find_keys, free_keys, postpone_jobs
from django_pgjobs.store.new_jobs import NewJob, NewJobList, NewJobs
from django_pgjobs.store.notifying import scan_behind
from django_pgjobs.store.registering import COPY_FROM_JOBS, Registered, register_job, register_special_jobs
from django_pgjobs.store.steering import cancel_jobs, send_finished

T = TypeVar("T")

TRIES = 20
"""Number of inserts of a registration before it gives up: each time the key's holder ended before we found it."""

DEADLOCKS = 5
"""Number of runs of a registration in all, if it deadlocks with others: each holds one key and waits for another's."""

REPLACED = "replaced"
"""The reason on a job that was cancelled because a newer one took its key."""


def insert_one(using: str, new: NewJob) -> Registered | int:
    """Insert a job that has a key, or return the id of the one that has it. Raises ``DuplicateJob``."""
    # In a transaction, the old job is cancelled or moved only if this call succeeds.
    is_alone = new.on_conflict not in (OnConflict.REPLACE, OnConflict.POSTPONE)
    return despite_others(using, lambda: insert_once(using, new), is_alone=is_alone)


def insert_once(using: str, new: NewJob) -> Registered | int:
    """Insert a job as ``insert_one``, inside the caller's ``despite_others``: a deadlock is for that to end."""
    inserted, existing = _insert_chosen(using, [new], [0], lambda _: [register_job(using, new)])
    return inserted[0] if inserted else existing[0]


def _postpone(using: str, new: Sequence[NewJob]) -> dict[int, int]:
    """Move the jobs that hold these keys; return position → id of those moved; the others are free by now.

    Raises ``DuplicateJob`` if one of them has started: nothing of it can be moved, and to drop the call would lose it.
    """
    moved = postpone_jobs(on(using), new)
    holders = find_keys(on(using), new)
    waking.registered(connections[using], moved.wakes, get_conf())
    waking.notify(using, [scan_behind(queue) for queue in moved.behind])
    _refuse(new, holders, "postponed", moved.ids)
    return moved.ids


def _refuse_other_name(new: NewJob, holder: KeyHolder) -> None:
    if holder.name in (None, new.name):
        return
    known = registry.find(holder.name or "")
    if known is None or known.name != new.name:  # not a former name
        raise _duplicate(
            new,
            holder,
            f"Job {holder.id} ({holder.name}) has the key {new.key!r} in queue {new.queue!r}, and this is {new.name}. "
            "Jobs of all names share the keys of a queue: begin a key with what it is about.",
        )


def _refuse(new: Sequence[NewJob], holders: Sequence[KeyHolder | None], verb: str, done: Collection[int] = ()) -> None:
    """Raise ``DuplicateJob`` if a key is another kind of job's; or a started one's, but at the positions ``done``."""
    for at, (job, holder) in enumerate(zip(new, holders, strict=True)):
        if holder is None:
            continue
        _refuse_other_name(job, holder)
        if holder.started and at not in done:
            raise _duplicate(
                job,
                holder,
                f"Job {holder.id} has the key {job.key!r} in queue {job.queue!r} and has started: "
                f"it cannot be {verb}, and nothing was stored.",
            )


def _replace(using: str, new: Sequence[NewJob], holders: Sequence[KeyHolder | None]) -> None:
    """Cancel the jobs that hold these keys. Raises ``DuplicateJob`` if one of them has started."""
    _refuse(new, holders, "replaced")
    # A job claimed in the meantime keeps its key: the next try finds that it has started.
    freed = free_keys(on(using), new)
    for is_member in sorted(set(freed.values())):
        _cancel(using, [job_id for job_id in freed if freed[job_id] == is_member], NOT_NEEDED if is_member else "")


def _cancel(using: str, replaced: Sequence[int], by: str) -> None:
    """Cancel jobs that newer ones replace. A batch does not fail for a member that is not needed any more."""
    # Such a job usually has the name of the one that replaces it, which is known here. One of a name that no import
    # of this process has declared ends without its on_cancel.
    with_callback = [name for name in registry.names() if registry.get(name)._on_cancel_func is not None]
    cancelled = cancel_jobs(
        on(using), replaced, mode=CancelMode.ASK, by=by, reason=REPLACED, with_callback=with_callback
    )
    send_finished(using, cancelled.ended, registry.find)
    notices = set(cancelled.notices)
    if cancelled.gathering:
        from django_pgjobs.store.gates import cancel_members  # here for start-up time

        notices |= cancel_members(on(using), cancelled.gathering, mode=CancelMode.ASK, by="", reason=REPLACED)
    waking.notify(using, notices)


class StoredBatch(NamedTuple):
    """The result of many registrations: an id for each, and the positions of those that were inserted."""

    ids: list[int]
    fresh: list[int]


def insert_all(using: str, given: Sequence[NewJobs], *, once: bool = False) -> StoredBatch:
    """Insert many jobs, some with keys, all or none. Raises ``DuplicateJob``.

    ``once``: inside the caller's ``despite_others``: a deadlock is for that to end.
    """
    new = NewJobList(given)
    chosen: Sequence[int] = range(len(new))
    if not _keys_differ(given):
        jobs = list(new)
        chosen, new = _chosen(jobs), NewJobList([NewJobs.of(job) for job in jobs])

    def insert(left: Sequence[int]) -> list[int | None]:
        return register_special_jobs(using, new.only(left))

    left = sorted(set(chosen))
    if len(left) >= COPY_FROM_JOBS:
        from django_pgjobs.store.copying import copy_if_free  # here for start-up time

        if copied := copy_if_free(using, new.only(left), len(left)):
            ids = dict(zip(left, copied, strict=True))
            return StoredBatch([ids[at] for at in chosen], left)
    if once:
        inserted, existing = _insert_chosen(using, new, left, insert)
    else:
        inserted, existing = despite_others(using, lambda: _insert_chosen(using, new, left, insert))
    ids = inserted | existing
    return StoredBatch([ids[at] for at in chosen], sorted(inserted))


def _keys_differ(given: Sequence[NewJobs]) -> bool:
    """Return whether no two of these jobs have the same key."""
    known: dict[tuple[str, float | None], set[str | None]] = {}
    count = 0
    for some in given:
        new = some.first
        if new.key is not None:
            keys = some.keys or [new.key] * len(some.payloads)
            known.setdefault((new.queue, new.window_seconds), set()).update(keys)
            count += len(keys)
    return sum(map(len, known.values())) == count


def _insert_chosen(
    using: str, new: Sequence[NewJob], left: Sequence[int], insert: Callable[[Sequence[int]], Sequence[T | None]]
) -> tuple[dict[int, T], dict[int, int]]:
    """Insert the jobs at the positions ``left``; return position → what ``insert`` returned, and → key's holder."""
    inserted: dict[int, T] = {}
    existing: dict[int, int] = {}
    for _ in range(TRIES):
        inserted |= {at: row for at, row in zip(left, insert(left), strict=True) if row is not None}
        left = [at for at in left if at not in inserted]
        existing |= _settled(using, new, left)
        left = [at for at in left if at not in existing]
        if not left:
            return inserted, existing
    raise _duplicate(new[left[0]], None)


def despite_others(using: str, insert: Callable[[], T], *, is_alone: bool = False) -> T:
    """Run ``insert`` in a transaction, or in a savepoint of the caller's; again if the server ends it as a deadlock.

    Rolling the savepoint back releases its locks. Locks that the caller held before stay, and may deadlock again.
    ``is_alone``: it needs no transaction, unless the connection defaults to a higher isolation level, and the key's
    holder commits while we wait.
    """
    left = DEADLOCKS
    while True:
        try:
            with nullcontext() if is_alone else at_read_committed(using):
                return insert()
        except OperationalError as error:
            left -= 1
            state = sqlstate_of(error)
            if is_alone and state == SERIALIZATION_FAILURE and opens_transaction(using):
                is_alone = False
            elif is_alone or state != DEADLOCK or not left:
                raise


def _settled(using: str, new: Sequence[NewJob], left: Sequence[int]) -> dict[int, int]:
    """Return position → id of the key's holder, for jobs that accept an existing one; callers retry the others."""
    if not left:
        return {}
    found: dict[int, int] = {}
    replacing: list[tuple[NewJob, KeyHolder | None]] = []
    postponing: list[int] = []
    jobs = [new[at] for at in left]
    free_to_move: list[int] = []
    for at, job, holder in zip(left, jobs, find_keys(on(using), jobs), strict=True):
        if holder is not None and not holder.started and job.on_conflict in (OnConflict.REPLACE, OnConflict.POSTPONE):
            free_to_move.append(holder.id)
        if job.on_conflict == OnConflict.REPLACE:
            replacing.append((job, holder))
        elif job.on_conflict == OnConflict.POSTPONE:
            postponing.append(at)
        elif holder is not None and job.on_conflict == OnConflict.RAISE:
            raise _duplicate(job, holder)
        elif holder is not None:
            _refuse_other_name(job, holder)
            found[at] = holder.id
    if postponing and replacing:
        from django_pgjobs.store.reopening import lock_flow  # here for start-up time

        # Otherwise another such call might hold a job that this one replaces, and wait for one that it postpones.
        lock_flow(on(using), free_to_move)
    if postponing:
        moved = _postpone(using, [new[at] for at in postponing])
        found |= {postponing[position]: job_id for position, job_id in moved.items()}
    if replacing:
        _replace(using, [job for job, _ in replacing], [holder for _, holder in replacing])
    return found


def _chosen(new: list[NewJob]) -> list[int]:
    """Return for each job the position of the one to insert for it: the first with its key, or the last to replace.

    The result is as if they were registered one by one: if the first job's policy is to raise, that policy applies.
    """
    chosen = list(range(len(new)))
    positions: dict[tuple[str, str, float | None], list[int]] = {}
    for at, job in enumerate(new):
        if job.key is None:
            continue
        same = positions.setdefault((job.queue, job.key, job.window_seconds), [])
        if same and (job.on_conflict == OnConflict.RAISE or job.name != new[same[0]].name):
            raise _duplicate(
                job,
                None,
                f"rows {same[0]} and {at} have the same key {job.key!r} in queue {job.queue!r}"
                f"{'' if job.name == new[same[0]].name else ' and are different jobs'}; nothing was stored",
            )
        same.append(at)
    for same in positions.values():
        if len(same) == 1:
            continue
        winner = max((at for at in same if new[at].on_conflict == OnConflict.REPLACE), default=same[0])
        if postponers := [at for at in same if at > winner and new[at].on_conflict == OnConflict.POSTPONE]:
            new[winner] = _postponed(new[winner], new[postponers[-1]])
        if new[same[0]].on_conflict == OnConflict.RAISE:
            new[winner] = new[winner]._replace(on_conflict=OnConflict.RAISE)
        for at in same:
            chosen[at] = winner
    return chosen


def _postponed(new: NewJob, by: NewJob) -> NewJob:
    """Return ``new`` as a later row of the same key moves it; a key that is taken is then that row's matter."""
    policy = OnConflict.POSTPONE if new.on_conflict == OnConflict.EXISTING else new.on_conflict
    return new._replace(
        run_at=by.run_at,
        delay_seconds=by.delay_seconds,
        deadline=by.deadline,
        expires_at=by.expires_at,
        expires_seconds=by.expires_seconds,
        on_conflict=policy,
    )


def _duplicate(new: NewJob, holder: KeyHolder | None, why: str = "") -> DuplicateJob:
    return DuplicateJob(holder and holder.id, new.key or "", new.queue, why)
