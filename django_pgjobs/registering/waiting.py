"""Register jobs that wait: for others, by ``using(after=…)``, or for the members of a batch.

The jobs that a new one needs stay locked until its transaction ends, so each of their ends comes either before, and is
read here, or after, and counts in the gate. Then nothing is asked again: the transaction that ends the last of them, or
one otherwise than needed, releases it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django_pgjobs.exceptions import BatchClosed, DuplicateJob, InvalidJob, OldWorkers
from django_pgjobs.registering.conflicts import insert_all, insert_one
from django_pgjobs.registering.in_turn import insert_all_in_turn
from django_pgjobs.serialization.escapes import one_line
from django_pgjobs.states import FlowFlag, Rule
from django_pgjobs.store import gates, waking
from django_pgjobs.store.database import on
from django_pgjobs.store.gates import NewGate
from django_pgjobs.store.new_jobs import NewJob, NewJobList, NewJobs
from django_pgjobs.store.registering import Registered
from django_pgjobs.store.transactions import at_read_committed

if TYPE_CHECKING:
    from django_pgjobs.conf import Conf


def insert_waiting(using: str, new: NewJob, conf: Conf) -> Registered | int:
    """Insert a job that needs others, or return the id of the one that has its key; see ``insert_all_waiting``."""
    with at_read_committed(using):
        outcomes = _needed(using, [new], conf)
        stored = insert_one(using, new)
        if not isinstance(stored, int):
            added = [NewGate.behind(stored.id, dict(new.needs), outcomes)]
            notices = gates.add_gates(on(using), added)
            waking.notify(using, notices)
    return stored


def insert_all_waiting(using: str, given: Sequence[NewJobs], conf: Conf) -> tuple[list[int], list[int]]:
    """Insert jobs, some of which need others; return their ids, and the positions of those that were inserted.

    Raises ``InvalidJob`` if one that is needed does not exist, ``OldWorkers``, ``DuplicateJob``; then nothing is
    stored, and an open transaction stays usable. Waits for the locks of needed jobs, and keeps them until the commit.
    """
    with at_read_committed(using):
        outcomes = _needed(using, [some.first for some in given], conf)
        ids, fresh = insert_all_in_turn(using, given)
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


def insert_batch(
    using: str, batch: NewJob, callbacks: Sequence[tuple[Rule, NewJob]], conf: Conf, *, fail_fast: bool = False
) -> tuple[int, list[NewJob] | None]:
    """Insert a batch that is open for members, and what comes after it; return its id, and these with theirs.

    If its key is taken, return the id of the job that has it, and None, and insert nothing.
    """
    with at_read_committed(using):
        refuse_older_workers(using, conf, batch.flow)
        stored = insert_one(
            using, batch._replace(waits=True, flow=batch.flow | FlowFlag.GATED | (FlowFlag.NEEDED if callbacks else 0))
        )
        if isinstance(stored, int):
            return stored, None
        new = [NewGate(stored.id, pending=1, hands=1, eager=False, fail_fast=fail_fast)]
        after = [job._replace(waits=True, flow=FlowFlag.GATED) for _, job in callbacks]
        if after:
            ids, fresh = insert_all(using, [NewJobs.of(job) for job in after])
            after = [job._replace(id=job_id) for job, job_id in zip(after, ids, strict=True)]
            for at in set(range(len(callbacks))) - set(fresh):
                raise DuplicateJob(ids[at], callbacks[at][1].key or "", callbacks[at][1].queue)
            needs = [{stored.id: rule} for rule, _ in callbacks]
            new += [NewGate.behind(ids[at], needs[at], {stored.id: None}) for at in fresh]
        gates.add_gates(on(using), new)
    return stored.id, after


def insert_flow(using: str, flow: NewJob, nodes: Sequence[NewJob], conf: Conf) -> tuple[int, bool]:
    """Insert a flow and its nodes, whose ids and needs are known; return the flow's id, and whether it is new.

    If its key is taken, return the id of the flow that has it, and insert nothing.
    """
    with at_read_committed(using):
        refuse_older_workers(using, conf, flow.flow)
        stored = insert_one(using, flow._replace(waits=True, flow=flow.flow | FlowFlag.GATED))
        if isinstance(stored, int):
            return stored, False
        members = [node._replace(parent_id=stored.id, flow=node.flow | FlowFlag.MEMBER) for node in nodes]
        insert_all(using, [NewJobs.of(member) for member in members])
        waiting = [
            NewGate(node.id or 0, len(node.needs), len(node.needs), needs=dict(node.needs))
            for node in nodes
            if node.needs
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
