"""Jobs of ours that serve another one: they cancel the members of a batch, or undo what a job has done.

The rows that they serve show what they are for, so one that is gone is registered again.

Their policy is only here, regardless of who registers them: the end of a job, an operator, or the leader, where one is
gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from django_pgjobs.states import CANCEL_MEMBERS, TIRELESS, UNDO, CancelMode
from django_pgjobs.store.database import Database

PRIORITIES = {CANCEL_MEMBERS: 100, UNDO: 50}
"""The first is the highest that there is: members that have not started must not start in the meantime."""


class Servant(NamedTuple):
    """A job to register: its name, the job that it serves, and its arguments.

    ``key``: there is no second unfinished one with it. ``target_id``: the job that it undoes.
    """

    name: str
    owner: int
    args: tuple[int | str, ...]
    key: str | None = None
    target_id: int | None = None


class Serving(NamedTuple):
    """A servant that was registered, and the workers to wake."""

    id: int
    queue: str
    priority: int


def undo_of(job_id: int) -> Servant:
    """Return the job that undoes what a job has done."""
    return Servant(UNDO, job_id, (job_id,), key=f"{UNDO}:{job_id}", target_id=job_id)


def cancel_of(batch_id: int, *, by: str, reason: str, mode: str = CancelMode.ASK, key: str | None = None) -> Servant:
    """Return the job that cancels the members of a batch."""
    return Servant(CANCEL_MEMBERS, batch_id, (batch_id, mode, by, reason), key)


def register_servants(db: Database, servants: Sequence[Servant]) -> list[Serving]:
    """Register them in the open transaction. Wakes no worker."""
    if not servants:
        return []
    given = [{**one._asdict(), "priority": PRIORITIES[one.name], "max_attempts": TIRELESS} for one in servants]
    return [Serving._make(row) for row in db.fetch("register_servants", {"servants": json.dumps(given)})]


def mend_undoing(db: Database, *, after: int, limit: int) -> list[tuple[int, bool]]:
    """Return the next jobs that are to be undone, and whether nothing undoes them any more; forget cancelled undos.

    Call it in a transaction, and register what undoes those in it.
    """
    return [(job_id, gone) for job_id, gone in db.fetch("mend_undoing", {"after": after, "limit": limit})]


class Uncancelled(NamedTuple):
    """A batch whose gate waits; with a ``mode``: its members are to be cancelled, and nothing does so."""

    id: int
    mode: str | None
    by: str | None
    reason: str | None
    last: int | None
    """The member after which it was looked no further; None if all were seen."""


def list_uncancelled(
    db: Database, *, first: int, member: int, limit: int, members: int, seconds: float
) -> list[Uncancelled]:
    """Return the next jobs whose gates wait, from ``first`` on, after having looked at so many ``members`` of each.

    Of ``first`` it looks at those behind ``member``. ``seconds``: how long a cancel may take before it counts as
    forgotten.
    """
    params = {"first": first, "member": member, "limit": limit, "members": members, "seconds": seconds}
    rows = db.fetch("list_uncancelled", params)
    return [Uncancelled._make(row) for row in rows]
