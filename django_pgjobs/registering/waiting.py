"""Register jobs that wait: for others, by ``using(after=…)``, for the members of a batch, or for their turn.

The jobs that a new one needs stay locked until its transaction ends, so each of their ends comes either before, and is
read here, or after, and counts in the gate. Then nothing is asked again: the transaction that ends the last of them, or
one otherwise than needed, releases it.

Operators lock jobs by ids, a registration those that it needs before those that have its keys. If the server ends that
as a deadlock, all is let go and tried again.

Jobs of a sequence run one after the other, in the order in which their registrations get the lock. A registration locks
its sequences until its transaction ends, and takes the ids behind that. Of two registrations
the one that commits first thus has the smaller ids, and each sees all that stands before it. A job before which none
stands is an ordinary one; every other waits with a hand in its gate, until ``turns`` takes it out.

One that replaces or postpones another locks the other's row behind the sequence, and operators lock them the other way
round. If the server ends that as a deadlock, the registration lets go of its sequences, too, before it tries again.

A key names one member of a batch for as long as the batch is there, so that members can be added again.

Elsewhere a key is free when its job has ended. A producer that continues with an open batch, after a crash, adds all
members once more: those that have ended in the meantime must not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from django_pgjobs.definition.keys import OnConflict
from django_pgjobs.exceptions import BatchClosed, DuplicateJob, InvalidJob, OldWorkers
from django_pgjobs.registering.conflicts import StoredBatch, despite_others, insert_all, insert_once
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import FlowFlag, Rule
from django_pgjobs.store import gates, turns, waking
from django_pgjobs.store.copying import reserve_ids
from django_pgjobs.store.database import at_read_committed, on
from django_pgjobs.store.gates import NewGate, lock_gate
from django_pgjobs.store.keys import KnownMember, find_members
from django_pgjobs.store.new_jobs import NewJob, NewJobList, NewJobs
from django_pgjobs.store.registering import Registered
from django_pgjobs.store.turns import STALE_LEVELS

if TYPE_CHECKING:
    from django_pgjobs.conf import Conf


def insert_in_turn(using: str, new: NewJob) -> Registered | int:
    """Insert a job of a sequence, or return the id of the one that has its key; see ``insert_all_in_turn``."""
    return despite_others(using, lambda: _insert(using, new))


def insert_all_in_turn(using: str, given: Sequence[NewJobs], *, once: bool = False) -> StoredBatch:
    """Insert jobs, some of which are in sequences; return their ids, and the positions of those that were inserted.

    Raises ``InvalidJob`` in a transaction that would not see what others have committed, and ``DuplicateJob``; then
    nothing is stored, and an open transaction stays usable. Waits for the sequences, and keeps them until the commit.
    ``once``: inside the caller's ``despite_others``.
    """
    sequences = {some.first.sequence for some in given if some.first.sequence is not None}
    if not sequences:
        return insert_all(using, given, once=once)
    if once:
        return _insert_all(using, NewJobList(given), sequences)
    return despite_others(using, lambda: _insert_all(using, NewJobList(given), sequences))


def _insert(using: str, new: NewJob) -> Registered | int:
    if not _enter(using, {new.sequence or ""}):
        return insert_once(using, new)
    stored = insert_once(using, _waiting(new))
    if not isinstance(stored, int):
        gates.add_gates(on(using), [NewGate(stored.id, pending=1, hands=1)])
    return stored


def _insert_all(using: str, new: NewJobList, sequences: set[str]) -> StoredBatch:
    standing = _enter(using, sequences)
    placed: list[NewJob] = []
    begun: dict[str, int] = {}
    for at, (job, job_id) in enumerate(zip(new, reserve_ids(using, len(new)), strict=True)):
        placed.append(_waiting(job) if job.sequence in standing else job)
        placed[at] = placed[at]._replace(id=job_id)
        if job.sequence is not None and job.sequence not in standing:
            standing.add(job.sequence)
            begun[job.sequence] = at
    stored = insert_all(using, [NewJobs.of(job) for job in placed], once=True)
    fresh = set(stored.fresh)
    db = on(using)
    # Those that wait for jobs of their own choice get their gates from the caller.
    behind = [at for at in stored.fresh if placed[at].waits and placed[at].sequence is not None]
    if added := [NewGate(stored.ids[at], pending=1, hands=1) for at in behind]:
        gates.add_gates(db, added)
    # The first of a sequence may have been left out, as its key is taken.
    if headless := {sequence for sequence, at in begun.items() if at not in fresh}:
        waking.notify(using, gates.notices_of(turns.pass_turns(db, headless)))
    return stored


def _enter(using: str, sequences: set[str]) -> set[str]:
    """Lock these sequences; return those in which a job stands. Raises ``InvalidJob``."""
    level = turns.lock_sequences(on(using), sequences)
    if level in STALE_LEVELS:
        raise InvalidJob(
            f"sequence {min(sequences)!r}: a transaction at {level.upper()} cannot see who stands before this job: "
            "register at READ COMMITTED."
        )
    return turns.list_standing(on(using), sequences)


def _waiting(new: NewJob) -> NewJob:
    return new._replace(waits=True, flow=new.flow | FlowFlag.GATED)


P = ParamSpec("P")
T = TypeVar("T")


def _whole(insert: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
    """Run this in one transaction, or a savepoint of the caller's; again from its beginning after a deadlock."""

    @wraps(insert)
    def run(using: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return despite_others(using, lambda: insert(using, *args, **kwargs))

    return run


@_whole
def insert_waiting(using: str, new: NewJob, conf: Conf) -> Registered | int:
    """Insert a job that needs others, or return the id of the one that has its key; see ``insert_all_waiting``."""
    outcomes = _needed(using, [new], conf)
    stored = insert_once(using, new)
    if not isinstance(stored, int):
        added = [NewGate.behind(stored.id, dict(new.needs), outcomes)]
        notices = gates.add_gates(on(using), added)
        waking.notify(using, notices)
    return stored


@_whole
def insert_all_waiting(using: str, given: Sequence[NewJobs], conf: Conf) -> tuple[list[int], list[int]]:
    """Insert jobs, some of which need others; return their ids, and the positions of those that were inserted.

    Raises ``InvalidJob`` if one that is needed does not exist, ``OldWorkers``, ``DuplicateJob``; then nothing is
    stored, and an open transaction stays usable. Waits for the locks of needed jobs, and keeps them until the commit.
    """
    outcomes = _needed(using, [some.first for some in given], conf)
    ids, fresh = insert_all_in_turn(using, given, once=True)
    new = NewJobList(given)
    added = [NewGate.behind(ids[at], dict(new[at].needs), outcomes) for at in fresh if new[at].needs]
    notices = gates.add_gates(on(using), added)
    waking.notify(using, notices)
    return ids, fresh


def _needed(using: str, new: Sequence[NewJob], conf: Conf) -> dict[int, str | None]:
    """Lock the jobs that ``new`` need; return id → outcome."""
    refuse_older_workers(using, conf)
    wanted = {needed for job in new for needed, _ in job.needs}
    outcomes = gates.need_jobs(on(using), sorted(wanted))
    if missing := sorted(wanted - outcomes.keys()):
        raise InvalidJob(
            f"after: there is no job {missing[0]} in database {using!r}"
            + (f", nor {len(missing) - 1} more of the {len(wanted)} jobs that are needed" if missing[1:] else "")
        )
    return outcomes


def refuse_older_workers(using: str, conf: Conf, flow: int = 0) -> None:
    """Raise ``OldWorkers`` if workers live that would end jobs without those that wait for them, or undo them."""
    protocol = gates.KNOWS_UNDO if flow & FlowFlag.UNDOABLE else gates.KNOWS_GATES
    names = gates.list_old_workers(on(using), protocol=protocol, silent_seconds=conf.silent_seconds)
    if names:
        raise OldWorkers(names=[one_line(name) for name in names])


# Batches


@_whole
def insert_batch(
    using: str, batch: NewJob, callbacks: Sequence[tuple[Rule, NewJob]], conf: Conf, *, fail_fast: bool = False
) -> tuple[int, list[NewJob] | None]:
    """Insert a batch that is open for members, and what comes after it; return its id, and these with theirs.

    If its key is taken, return the id of the job that has it, and None, and insert nothing.
    """
    refuse_older_workers(using, conf, batch.flow)
    stored = insert_once(
        using, batch._replace(waits=True, flow=batch.flow | FlowFlag.GATED | (FlowFlag.NEEDED if callbacks else 0))
    )
    if isinstance(stored, int):
        return stored, None
    new = [NewGate(stored.id, pending=1, hands=1, eager=False, fail_fast=fail_fast)]
    after = [job._replace(waits=True, flow=FlowFlag.GATED) for _, job in callbacks]
    if after:
        ids, fresh = insert_all(using, [NewJobs.of(job) for job in after], once=True)
        after = [job._replace(id=job_id) for job, job_id in zip(after, ids, strict=True)]
        for at in set(range(len(callbacks))) - set(fresh):
            raise DuplicateJob(ids[at], callbacks[at][1].key or "", callbacks[at][1].queue)
        needs = [{stored.id: rule} for rule, _ in callbacks]
        new += [NewGate.behind(ids[at], needs[at], {stored.id: None}) for at in fresh]
    gates.add_gates(on(using), new)
    return stored.id, after


@_whole
def insert_flow(using: str, flow: NewJob, nodes: Sequence[NewJob], conf: Conf) -> tuple[int, bool]:
    """Insert a flow and its nodes, whose ids and needs are known; return the flow's id, and whether it is new.

    If its key is taken, return the id of the flow that has it, and insert nothing.
    """
    refuse_older_workers(using, conf, flow.flow)
    stored = insert_once(using, flow._replace(waits=True, flow=flow.flow | FlowFlag.GATED))
    if isinstance(stored, int):
        return stored, False
    members = [node._replace(parent_id=stored.id, flow=node.flow | FlowFlag.MEMBER) for node in nodes]
    insert_all(using, [NewJobs.of(member) for member in members], once=True)
    waiting = [
        NewGate(node.id or 0, len(node.needs), len(node.needs), needs=dict(node.needs)) for node in nodes if node.needs
    ]
    added = [NewGate(stored.id, len(nodes), len(nodes), eager=False), *waiting]
    notices = gates.add_gates(on(using), added)
    waking.notify(using, notices)
    return stored.id, True


def count_members(using: str, batch_id: int, n: int, conf: Conf) -> None:
    """Count members that the open transaction has inserted, as its last write. Raises ``BatchClosed``."""
    if n and not gates.add_members(on(using), batch_id, n, most=conf.bounds.members):
        raise BatchClosed(
            f"Batch {batch_id} takes no more members: it has ended, was cancelled or has failed fast, or it would have "
            f"more than {conf.bounds.members} (BOUNDS['members']).",
            batch_id=batch_id,
        )


def close_batch(using: str, batch_id: int) -> None:
    """Let a batch end when its members have; one whose members have all ended ends at once. Repeatable."""
    with at_read_committed(using):
        opened = gates.open_gates(on(using), [batch_id], close=True)
    waking.notify(using, gates.notices_of(opened))


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
