"""Register jobs of sequences: one runs after the other, in the order in which their registrations get the lock.

A registration locks its sequences until its transaction ends, and takes the ids behind that. Of two registrations
the one that commits first thus has the smaller ids, and each sees all that stands before it. A job before which none
stands is an ordinary one; every other waits with a hand in its gate, until ``turns`` takes it out.
"""

from __future__ import annotations

from collections.abc import Sequence

from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.registering.conflicts import StoredBatch, insert_all, insert_one
from django_pgjobs.states import FlowFlag
from django_pgjobs.store import gates, turns, waking
from django_pgjobs.store.copying import reserve_ids
from django_pgjobs.store.database import on
from django_pgjobs.store.gates import NewGate
from django_pgjobs.store.new_jobs import NewJob, NewJobList, NewJobs
from django_pgjobs.store.registering import Registered
from django_pgjobs.store.transactions import at_read_committed
from django_pgjobs.store.turns import STALE_LEVELS


def insert_in_turn(using: str, new: NewJob) -> Registered | int:
    """Insert a job of a sequence, or return the id of the one that has its key; see ``insert_all_in_turn``."""
    with at_read_committed(using):
        if not _enter(using, {new.sequence or ""}):
            return insert_one(using, new)
        stored = insert_one(using, _waiting(new))
        if not isinstance(stored, int):
            gates.add_gates(on(using), [NewGate(stored.id, pending=1, hands=1)])
    return stored


def insert_all_in_turn(using: str, given: Sequence[NewJobs]) -> StoredBatch:
    """Insert jobs, some of which are in sequences; return their ids, and the positions of those that were inserted.

    Raises ``InvalidJob`` in a transaction that would not see what others have committed, and ``DuplicateJob``; then
    nothing is stored, and an open transaction stays usable. Waits for the sequences, and keeps them until the commit.
    """
    sequences = {some.first.sequence for some in given if some.first.sequence is not None}
    if not sequences:
        return insert_all(using, given)
    new = NewJobList(given)
    with at_read_committed(using):
        standing = _enter(using, sequences)
        placed: list[NewJob] = []
        begun: dict[str, int] = {}
        for at, (job, job_id) in enumerate(zip(new, reserve_ids(using, len(new)), strict=True)):
            placed.append(_waiting(job) if job.sequence in standing else job)
            placed[at] = placed[at]._replace(id=job_id)
            if job.sequence is not None and job.sequence not in standing:
                standing.add(job.sequence)
                begun[job.sequence] = at
        stored = insert_all(using, [NewJobs.of(job) for job in placed])
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
