"""The records of steering actions: written with the change, found by job, deleted when they are old."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.states import FlowFlag
from django_pgjobs.store.database import Database
from django_pgjobs.store.keys import Expired
from django_pgjobs.store.notifying import ended, scan_behind, wake_up
from django_pgjobs.store.steering import Moved


def record_action(db: Database, words: Mapping[str, object], job_ids: Sequence[int], former: str | None = None) -> int:
    """Insert an action and the first jobs it changed; return its id. ``words``: its columns, including ``changed``.

    ``former``: where the jobs stood, as ``former_of`` returns it.
    """
    rows = db.fetch("record_action", {**words, "ids": sorted(job_ids), "former": former})
    action_id: int = rows[0][0]
    return action_id


def extend_action(
    db: Database, action_id: int, changed: int, part: int, job_ids: Sequence[int], former: str | None = None
) -> None:
    """Add the jobs of an action's next batch, which is part number ``part``, and where they stood."""
    params = {"id": action_id, "changed": changed, "part": part, "ids": sorted(job_ids), "former": former}
    db.fetch("extend_action", params)


LEFT = ("run_at", "queue", "priority", "ending", "hold")
"""By these an undo sees whether a job is still where the action has put it."""

NEEDED_BY_OTHERS = FlowFlag.COUNTED | FlowFlag.GATED


def read_former(db: Database, job_ids: Sequence[int]) -> dict[int, dict[str, object]]:
    """Return for each job the columns that a retry or a move changes, as JSON values."""
    return {row[0]: json.loads(row[1]) for row in db.fetch("read_former", {"ids": list(job_ids)})}


def former_of(before: Mapping[int, Mapping[str, object]], after: Mapping[int, Mapping[str, object]]) -> str:
    """Return what the record of an action keeps: where its jobs stood, and where it has put them."""
    kept = [
        {"id": job_id, **before[job_id], **{f"left_{name}": left[name] for name in LEFT if name in left}}
        for job_id, left in after.items()
    ]
    return json.dumps(kept)


def judge_former(db: Database, action_id: int, part: int) -> dict[int, str]:
    """Return for each job of a part why it cannot go back to where it stood; empty if it can, as things are now."""
    rows = db.fetch("judge_former", {"action": action_id, "part": part})
    # The gate of one that ended counts its end no more and waits for it again, or its work would not be undone.
    return {row[0]: row[1] or ("needed" if row[2] and row[2] & NEEDED_BY_OTHERS else "") for row in rows}


def revert_jobs(db: Database, action_id: int, part: int, ids: Sequence[int]) -> Moved:
    """Put jobs of a part back, which the caller has locked and judged; fails as ``retry_jobs`` does."""
    rows = db.fetch("revert_jobs", {"action": action_id, "part": part, "ids": list(ids)})
    notices = [ended(job_id) for job_id, *_, waited in rows if waited]
    notices += [wake_up(queue, priority) for _, queue, priority, _, _ in rows if queue is not None]
    notices += [scan_behind(queue) for _, queue, _, old, _ in rows if old]
    return Moved([row[0] for row in rows], [], notices)


def close_action(db: Database, action_id: int, skipped: Mapping[str, int]) -> None:
    """Store why an action skipped jobs: reason → number."""
    db.fetch("close_action", {"id": action_id, "skipped": json.dumps(dict(skipped))})


class ActionOfJob(NamedTuple):
    """An action that changed a job; ``changed``: how many jobs it changed in all; ``subject``: the event it sent."""

    id: int
    acted_at: datetime
    verb: str
    mode: str
    via: str
    acted_by: str
    reason: str
    asked: str
    changed: int
    subject: str


def list_actions(db: Database, job_id: int, *, limit: int) -> list[ActionOfJob]:
    """Return the latest ``limit`` actions that changed a job, latest first."""
    return [ActionOfJob._make(row) for row in db.fetch("list_actions", {"id": job_id, "limit": limit})]


def delete_actions(db: Database, *, older_than_seconds: float, after: str, limit: int) -> Expired:
    """Delete up to ``limit`` actions older than ``older_than_seconds``, oldest first, from ``after`` on."""
    params = {"seconds": older_than_seconds, "after": after, "limit": limit}
    count, until = db.fetch("delete_actions", params)[0]
    return Expired(count, until or after)
