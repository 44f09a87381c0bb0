"""Requests for the stacks of running jobs, and the answers of the workers that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django_pgjobs.store.database import Database


class StackRequest(NamedTuple):
    """A request for the stack of a job; ``claim_id``: the claim that held it then."""

    id: int
    job_id: int
    claim_id: str


class StackAnswer(NamedTuple):
    """The answer to a request: a stack, or a ``problem``, a key of ``wording.STACK_PROBLEMS``."""

    id: int
    stack: str
    problem: str


def ask_stacks(db: Database, ids: Sequence[int], *, by: str, reason: str) -> list[int]:
    """Ask the workers that hold these jobs for their stacks; return the jobs whose worker is asked. Repeatable."""
    return [row[0] for row in db.fetch("ask_stacks", {"ids": list(ids), "by": by, "reason": reason})]


def list_stacks(db: Database, worker: object) -> list[StackRequest]:
    """Return the open requests to this worker."""
    return [StackRequest(row[0], row[1], str(row[2])) for row in db.fetch("list_stacks", {"worker": worker})]


def answer_stack(db: Database, worker: object, answer: StackAnswer) -> bool:
    """Store an answer of this worker; return whether it was: the claim holds the job, and it is the first."""
    return bool(db.fetch("answer_stack", {"worker": worker, **answer._asdict()}))


def delete_stacks(db: Database, *, limit: int) -> int:
    """Delete up to ``limit`` stacks of jobs that are gone; return how many."""
    return int(db.fetch("delete_stacks", {"limit": limit})[0][0])
