"""The records of steering actions: written with the change, found by job, deleted when they are old."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from django_pgjobs.store.database import Database
from django_pgjobs.store.keys import Expired


def record_action(db: Database, words: Mapping[str, object], job_ids: Sequence[int]) -> int:
    """Insert an action and the first jobs it changed; return its id. ``words``: its columns, including ``changed``."""
    rows = db.fetch("record_action", {**words, "ids": sorted(job_ids)})
    action_id: int = rows[0][0]
    return action_id


def extend_action(db: Database, action_id: int, changed: int, part: int, job_ids: Sequence[int]) -> None:
    """Add the jobs of an action's next batch, which is part number ``part``."""
    db.fetch("extend_action", {"id": action_id, "changed": changed, "part": part, "ids": sorted(job_ids)})


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
