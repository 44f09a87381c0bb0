"""Effects of a retry on the jobs that wait for the retried one: their gates count one end less, and some wait again."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from django_pgjobs.states import Rule
from django_pgjobs.store.database import Database

REVIVED_AT_ONCE = 1000
"""Number of jobs that a statement revives: it compares them with each other."""


class FlowJob(NamedTuple):
    """A locked job of a flow. ``begun``: its body has started, or a worker has it.

    ``by_gate``, ``abandoned``: its gate has cancelled it, or it is abandoned, or is about to be, and no cancel was
    requested. ``well``: it succeeded, or was cancelled as it is not needed.
    """

    id: int
    outcome: str | None
    parent_id: int | None
    flow: int
    waits: bool
    begun: bool
    by_gate: bool
    well: bool
    abandoned: bool


class FlowGate(NamedTuple):
    """A locked gate, and what its job needs: the rule of each of ``needs``. ``is_closed``: some have not ended."""

    job_id: int
    unmet: int
    eager: bool
    is_closed: bool
    needs: dict[int, Rule]


@dataclass(slots=True)
class Reopened:
    """Counts to take off a gate, and whether it closes again."""

    job_id: int
    succeeded: int = 0
    abandoned: int = 0
    cancelled: int = 0
    unmet: int = 0
    closes: bool = False


def reach_dependents(db: Database, ids: Collection[int], *, limit: int) -> list[int]:
    """Return these jobs and those that a retry of them may concern, at most one more than ``limit``."""
    return [row[0] for row in db.fetch("reach_dependents", {"ids": sorted(ids), "limit": limit})]


def lock_flow(db: Database, ids: Collection[int]) -> dict[int, FlowJob]:
    """Lock these jobs in the order of their ids, and return them; the result leaves out those that are gone."""
    return {row[0]: FlowJob._make(row) for row in db.fetch("lock_flow", {"ids": sorted(ids)})}


def read_gates(db: Database, ids: Collection[int]) -> dict[int, FlowGate]:
    """Lock the gates of these jobs in the order of their ids, and return them."""
    rows = db.fetch("read_gates", {"ids": sorted(ids)})
    return {
        job_id: FlowGate(job_id, unmet, eager, is_closed, dict(zip(parents, map(Rule, rules), strict=True)))
        for job_id, unmet, eager, is_closed, parents, rules in rows
    }


def reopen_gates(db: Database, gates: Sequence[Reopened]) -> None:
    """Take ends off these locked gates."""
    db.fetch("reopen_gates", {"gates": json.dumps([asdict(gate) for gate in gates])})


def revive_jobs(db: Database, ids: Collection[int]) -> list[int]:
    """Let these locked jobs wait again, which their gates had ended; return them."""
    left = sorted(ids)
    slices = [left[start : start + REVIVED_AT_ONCE] for start in range(0, len(left), REVIVED_AT_ONCE)]
    return [row[0] for some in slices for row in db.fetch("revive_jobs", {"ids": some})]
