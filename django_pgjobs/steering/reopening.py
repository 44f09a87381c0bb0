"""A retry of jobs that others wait for: gates count their ends no more, and what these had ended waits again.

A job that its gate has ended before it began, because a job that it needs ended otherwise, waits again if nothing else
keeps it from running; a batch that was abandoned always does. Then its own end counts no more either, and so on. What
has begun is left alone: only the figures of its gate change.

Everything is read under the locks of the jobs, then of the gates, each in the order of their ids, and decided in
memory. Two operators who retry parts of one flow may wait for each other; workers set aside the ends
that need their locks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from django_pgjobs.conf import get_conf
from django_pgjobs.exceptions import InvalidJob
from django_pgjobs.states import FlowFlag, Rule
from django_pgjobs.store import reopening, turns
from django_pgjobs.store.database import Database
from django_pgjobs.store.gates import is_met, notices_of
from django_pgjobs.store.memos import list_undone
from django_pgjobs.store.pruning import keep_jobs
from django_pgjobs.store.reopening import FlowGate, FlowJob, Reopened
from django_pgjobs.store.steering import Moved

BESIDE = 10_000
"""Maximum number of jobs that one retry may concern, beside those asked for and the nodes of a flow."""

RetryRows = Callable[[Sequence[int]], Moved]

Refuse = Callable[[Collection[int]], None]


@dataclass(slots=True)
class RetryPlan:
    """The changes of a retry: figures of gates, by the id of their jobs, and the jobs that wait again."""

    gates: dict[int, Reopened] = field(default_factory=dict)
    revived: set[int] = field(default_factory=set)


def retry(db: Database, held: Sequence[int], retry_jobs: RetryRows, refuse: Refuse) -> Moved:
    """Retry locked jobs by ``retry_jobs``, in the caller's transaction, and reopen what waits for them.

    A batch is not retried itself: it waits again when one of its members is retried. What has been undone, or begun to
    be, is neither retried nor reopened; ``refuse`` gets those of ``held``. A job of a sequence that had ended waits for
    its turn again, before those that were registered later and have not begun. Raises ``InvalidJob`` if the retry
    concerns more jobs besides these than a flow may have nodes, and ``BESIDE``.
    """
    keep_jobs(db)  # which a retried job needs, or a batch that waits again
    jobs = reopening.lock_flow(db, held)
    ended = {job.id for job in jobs.values() if job.outcome is not None}
    if not any(job.flow & ~FlowFlag.ITS_OWN for job in jobs.values()):
        undone = list_undone(db, held)
        refuse(undone)
        return retry_jobs([job_id for job_id in held if job_id not in undone])
    reached, most = set(held), get_conf().bounds.nodes + BESIDE
    # A job that is reached may end until it is locked, and then others are reached through it.
    while further := set(reopening.reach_dependents(db, held, limit=most + len(held))) - reached:
        reached |= further
        if len(reached) > most + len(held):
            raise InvalidJob(f"This retry concerns more than {most} jobs that wait for others: retry fewer at once.")
        jobs |= reopening.lock_flow(db, further - jobs.keys())
    sequences = turns.lock_turns(db, jobs)
    gates = reopening.read_gates(db, [job.id for job in jobs.values() if job.flow & FlowFlag.GATED])
    undone = list_undone(db, jobs)  # under the locks: none of these ends in the meantime
    refuse(undone.intersection(held))
    wanted = {job_id for job_id in held if job_id in jobs and not _is_batch(gates.get(job_id))} - undone
    plan = planned(jobs, gates, wanted, undone)
    moved = retry_jobs(sorted(wanted - plan.revived))
    if moved.taken:
        plan = planned(jobs, gates, wanted - set(moved.taken), undone)
    reopening.reopen_gates(db, list(plan.gates.values()))
    revived = reopening.revive_jobs(db, plan.revived)
    changed = moved.changed + [job_id for job_id in revived if job_id in held]
    if not sequences:
        return Moved(changed, moved.taken, moved.notices)
    # Each in its old place; one that was parked has the turn.
    turns.wait_again(db, sequences.keys() & ended.intersection(changed))
    opened = turns.pass_turns(db, set(sequences.values()))
    return Moved(changed, moved.taken, [*moved.notices, *notices_of(opened)])


def planned(
    jobs: Mapping[int, FlowJob],
    gates: Mapping[int, FlowGate],
    wanted: Collection[int],
    undone: Collection[int] = (),
) -> RetryPlan:
    """Return what a retry of ``wanted`` changes; what has been ``undone`` stays ended. Pure."""
    plan = RetryPlan()
    fed = _fed(jobs, gates)
    left = [job_id for job_id in sorted(wanted) if jobs[job_id].outcome is not None]
    # Cancelled while they waited: they wait again.
    plan.revived |= {job_id for job_id in left if _still_waits(jobs[job_id], gates.get(job_id))}
    seen = set(left)
    while left:
        job = jobs[left.pop()]
        for gate, rule in fed.get(job.id, ()):
            changes = plan.gates.setdefault(gate.job_id, Reopened(gate.job_id))
            _take_off(changes, job, rule)
            waiting = jobs[gate.job_id]
            if waiting.id in undone:
                continue
            if changes.closes or not _was_ended(waiting, gate) or (gate.eager and gate.unmet > changes.unmet):
                continue
            changes.closes = True
            plan.revived.add(waiting.id)
            if waiting.outcome is not None and waiting.id not in seen:
                seen.add(waiting.id)
                left.append(waiting.id)
    return plan


def _fed(jobs: Mapping[int, FlowJob], gates: Mapping[int, FlowGate]) -> dict[int, list[tuple[FlowGate, Rule | None]]]:
    """Return for each job the gates in which its end counts, and which end they need; None: it is a member."""
    fed: dict[int, list[tuple[FlowGate, Rule | None]]] = {}
    for job_id, gate, rule in _links(jobs, gates):
        fed.setdefault(job_id, []).append((gate, rule))
    return fed


def _links(jobs: Mapping[int, FlowJob], gates: Mapping[int, FlowGate]) -> Iterator[tuple[int, FlowGate, Rule | None]]:
    for gate in gates.values():
        yield from ((needed, gate, rule) for needed, rule in gate.needs.items() if needed in jobs)
    for job in jobs.values():
        if job.flow & FlowFlag.MEMBER and job.parent_id is not None and job.parent_id in gates:
            yield job.id, gates[job.parent_id], None


def _take_off(changes: Reopened, job: FlowJob, rule: Rule | None) -> None:
    outcome = job.outcome or ""
    setattr(changes, outcome, getattr(changes, outcome) + 1)
    changes.unmet += not (job.well if rule is None else is_met(rule, outcome))


def _was_ended(job: FlowJob, gate: FlowGate) -> bool:
    """Return whether the gate has ended its job, or is about to, and the job has not begun."""
    if job.begun or job.waits:
        return False
    return job.by_gate if gate.eager else job.abandoned


def _still_waits(job: FlowJob, gate: FlowGate | None) -> bool:
    return gate is not None and gate.is_closed and not gate.unmet and not job.begun


def _is_batch(gate: FlowGate | None) -> bool:
    return gate is not None and not gate.eager
